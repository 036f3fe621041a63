"""What a run takes from the run that it starts from, or whose predictions it learns.

Dimension key
  B rows, one pair each   L target length   K the likeliest subwords   V vocabulary, padded
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import KEYS, Config, value_at
from transformer_jax.decoding.scoring import logits_and_watched, of_pairs
from transformer_jax.errors import ConfigError, RunError, UserError
from transformer_jax.files import kept
from transformer_jax.model.ensemble import Predictor
from transformer_jax.model.interfaces import Params
from transformer_jax.parallel import processes
from transformer_jax.runs.run_folder import NO_TEACHER, ORIGIN, TEACHER, RunFolder
from transformer_jax.runs.weights import load_params
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.encoded import LIKELIEST, EncodedPairs, Taught
from transformer_jax.text.features import how_read
from transformer_jax.training.data import TrainingData, load_data
from transformer_jax.training.elastic import Anchor, squared_gradients
from transformer_jax.training.program import Program
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import make_loss_fn
from transformer_jax.use.loading import LoadedModel, load_model

log = logging.getLogger(__name__)
OF_VOCABULARY = tuple(  # the keys with which a vocabulary was trained
    f"vocabulary.{name}"
    for name in ("size", "separate", "kind", "normalization", "max_lines", "path")
)
FISHER_ROWS = 512  # rows of text on which the Fisher information is measured, about
PAIRS = 2_000  # whose predictions by the teacher are on the device at once


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


def with_teacher(data: TrainingData, config: Config, run: RunFolder) -> TrainingData:
    """The data with what train.teacher predicts; the same data if the config has no teacher.

    Predictions are kept in the cache, since the rows of a table and a continued run share them.

    Raises:
      UserError: the teacher reads other subwords, or its weights have changed since the run began.
    """
    folder = config.train.teacher
    if folder is None:
        run.check_corpus(*data.fingerprints, NO_TEACHER)
        return data
    RunFolder(folder, TEACHER).read_config()  # to be blamed by its own name
    teacher = load_model(folder)
    _check_reads_the_same(teacher, data, config)
    weights = teacher.digest()
    fingerprints = (*data.fingerprints, weights)
    run.check_corpus(*fingerprints)
    encoded, pairs = data.train, np.sort(data.plan.pair_order)
    assert encoded.folder is not None
    limits = config.data.max_length, config.train.row_length
    name = f"{LIKELIEST} {weights} {encoded.folder.name.partition('.')[0]} {limits}"
    stored = processes.first_goes_ahead(
        lambda: kept("teachers", name, lambda: _predictions(teacher, encoded, pairs))
    )
    ids, probabilities = _empty(encoded)
    ids = np.frombuffer(stored[: ids.nbytes], ids.dtype).reshape(ids.shape)
    rest = np.frombuffer(stored[ids.nbytes :], probabilities.dtype)
    taught = Taught(ids, rest.reshape(probabilities.shape))
    # A teacher that knows the text by heart teaches what the text does.
    is_read = taught.probabilities[:, 0] > 0
    share = float(np.mean(taught.ids[is_read, 0] == encoded.tgt_ids[is_read]))
    log.info("the teacher's likeliest subword is the text's at %.1f %% of them", 100 * share)
    return data._replace(
        fingerprints=fingerprints,
        train=dataclasses.replace(encoded, taught=taught),
        shape=data.shape._replace(taught=LIKELIEST),
    )


def _check_reads_the_same(teacher: LoadedModel, data: TrainingData, config: Config) -> None:
    """Raises ConfigError if the teacher's batches are not those of the run."""
    folder = config.train.teacher
    if teacher.vocabulary.digest != data.vocabulary.digest:
        raise ConfigError(
            f"train.teacher={folder} has another vocabulary than this run, which learns what it "
            "predicts for each subword. Leave train.init_from out, and choose a new --workdir: "
            "the run then takes the teacher's vocabulary."
        )
    own, its = config.data, teacher.config.data
    sources = config.model.sources if own.src else 0
    if (sources, how_read(own), own.context) != (teacher.model.sources, how_read(its), its.context):
        raise ConfigError(
            f"train.teacher={folder} reads another source than this run: see model.sources, "
            "model.encoder, data.context and data.src_kind."
        )
    longest, row = teacher.model.longest(), max(data.shape.lengths)
    if longest is not None and longest < min(row, config.data.max_length):
        raise ConfigError(
            f"train.teacher={folder} has positions for {longest} subwords only. Set "
            f"data.max_length={longest}."
        )
    ways, known = ({*data.directions} or {f"{data.src}-{data.tgt}"} for data in (own, its))
    if bool(own.directions) != bool(its.directions) or not ways <= known:
        raise ConfigError(
            f"train.teacher={folder} translates {its.direction}, and this run {own.direction}: a "
            "teacher of several directions needs data.directions here too."
        )


def _predictions(teacher: LoadedModel, encoded: EncodedPairs, pairs: np.ndarray) -> bytes:
    """Ids and then probabilities of the target subwords of these pairs; of others they are 0."""
    taught = _empty(encoded)
    for start in range(0, len(pairs), PAIRS):
        numbers = pairs[start : start + PAIRS]
        sides: Any = [[read(i) for i in numbers] for read in (encoded.src, encoded.tgt)]
        found = of_pairs(_likeliest, teacher.translator, *sides)
        for i, target, (ids_LK, log_probs_LK) in zip(numbers, sides[1], found, strict=True):
            own = slice(*encoded.tgt_offsets[i : i + 2])
            exp = np.exp(log_probs_LK[: len(target)])
            taught.ids[own] = ids_LK[: len(target)]
            taught.probabilities[own] = exp / exp.sum(-1, keepdims=True)
        done = min(start + PAIRS, len(pairs))
        log.info("the teacher has read %d of %d pairs", done, len(pairs))
    return b"".join(x.tobytes() for x in taught)


def _empty(encoded: EncodedPairs) -> Taught:
    shape = len(encoded.tgt_ids), LIKELIEST
    return Taught(np.zeros(shape, encoded.tgt_ids.dtype), np.zeros(shape, np.float16))


@functools.partial(jax.jit, static_argnames="model")
def _likeliest(
    model: Predictor, params: Params, source: Packed, target: Packed
) -> tuple[Array, Array]:
    """The likeliest next subwords and their log probabilities, `[batch, tgt_len, K]`."""
    logits_BLV, _ = logits_and_watched(model, params, source, target)
    log_probs_BLV = jax.nn.log_softmax(logits_BLV.astype(jnp.float32))
    log_probs_BLK, ids_BLK = jax.lax.top_k(log_probs_BLV, LIKELIEST)
    return ids_BLK, log_probs_BLK
