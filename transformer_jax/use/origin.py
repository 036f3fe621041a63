"""What a run takes from the run that it starts from, or whose predictions it learns."""

import contextlib
import itertools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import KEYS, Config, value_at
from transformer_jax.errors import ConfigError, RunError, UserError
from transformer_jax.model.interfaces import Params
from transformer_jax.runs.run_folder import ORIGIN, TEACHER, RunFolder
from transformer_jax.runs.weights import load_params
from transformer_jax.text.batches import Batch
from transformer_jax.training.data import load_data
from transformer_jax.training.elastic import Anchor, squared_gradients
from transformer_jax.training.program import Program
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import make_loss_fn

log = logging.getLogger(__name__)
OF_VOCABULARY = tuple(  # the keys with which a vocabulary was trained
    f"vocabulary.{name}"
    for name in ("size", "separate", "kind", "normalization", "max_lines", "path")
)
FISHER_ROWS = 512  # rows of text on which the Fisher information is measured, about


def with_origin(config: Config, run: RunFolder | None) -> Config:
    """Fills in the seed of the text, and what comes from the run's origin or teacher.

    So a continued run need not repeat them. None: there is no folder of the run yet.
    """
    given = origin = config.train.init_from
    teacher = config.train.teacher
    values: dict[str, Any] = {}
    recorded = None
    if run is not None and run.config_file.exists():
        recorded = run.read_config()
        if config.data.seed == KEYS["data.seed"].default:  # in old runs it was `seed`
            values["data.seed"] = recorded.data.seed
        origin = recorded.train.init_from
        if given not in (None, origin):
            log.info("train.init_from has no effect: it is for the start of a run")
    elif given is not None:
        its = RunFolder(given, ORIGIN)
        recorded = its.read_config()
        if config.train.elastic_weight and its.made is not None:
            raise ConfigError(
                f"train.elastic_weight measures what mattered on the text of {given}, which was "
                f"{its.made}. Start from a run that was trained in its folder."
            )
    if teacher is not None:
        taught = RunFolder(teacher, TEACHER).read_config()
        if taught.model.parallel is not None:
            raise ConfigError(
                f"train.teacher={teacher}: a teacher predicts one subword after the other, and "
                "that run has model.parallel. Name another run."
            )
        recorded = recorded or taught
    if recorded is not None and (origin is not None or teacher is not None):
        values |= {name: value_at(recorded, name) for name in OF_VOCABULARY}
    for name, value in values.items():
        if value_at(config, name) != value:
            where = (origin or teacher) if name in OF_VOCABULARY or run is None else run.path
            log.info("%s is %r, as in %s", name, value, where)
    return with_values(config, {**values, "train.init_from": origin})


def initial_state(config: Config, program: Program) -> TrainState:
    """The state before the first step, with the weights of train.init_from if that is set."""
    state = program.init(config.seed)
    if config.train.init_from is not None:
        origin = RunFolder(config.train.init_from)
        params, name = load_params(origin, "latest", program.saved_state.params)
        log.info("starting from the weights of %s, checkpoint %s", origin.path, name)
        state = state._replace(params=program.from_saved(params))
        if state.anchor is not None:
            state = state._replace(anchor=_anchor(origin, program, state.params))
    return state


def _anchor(origin: RunFolder, program: Program, params: Params) -> Anchor:
    """The weights of the origin, and what mattered to it, by its own training text.

    Every process measures that whole, on one of its devices: a row is too little to divide.
    """
    try:
        data = load_data(origin.read_config(), origin)
    except UserError as error:  # what it advises is for training that run
        raise RunError(
            f"train.elastic_weight needs the text that {origin.path} was trained on: "
            f"{str(error).partition('. ')[0]}."
        ) from None
    loss_fn = make_loss_fn(program.model, 0.0)
    replicated = jax.jit(lambda x: x, out_shardings=NamedSharding(program.mesh, P()))(params)
    whole = jax.tree.map(lambda x: x.addressable_data(0), replicated)

    @jax.jit
    def added(total: Params, params: Params, batch: Batch) -> Params:
        return jax.tree.map(jnp.add, total, squared_gradients(loss_fn, params, batch))

    count = -(-FISHER_ROWS // data.shape.rows)
    total = jax.tree.map(jnp.zeros_like, whole)
    with contextlib.closing(data.train_batches(None, 0)) as batches:
        for batch in itertools.islice(batches, count):
            total = added(total, whole, batch)
    rows = count * data.shape.rows
    log.info("elastic weights: what mattered to %s, on %d rows of its text", origin.path, rows)

    def divided(total: jax.Array, like: jax.Array) -> jax.Array:
        mean = np.asarray(total) / rows
        return jax.make_array_from_callback(mean.shape, like.sharding, mean.__getitem__)

    return Anchor(jax.tree.map(jnp.copy, params), jax.tree.map(divided, total, params))
