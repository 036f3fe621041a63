"""Gradients of several models on one device and on a mesh of eight, for test_sharding.py.

    python -m tests.parallel.sharded_gradients NAME ...

NAME is a line of tests/model/configs.py, an objective other than translation, "agreement": two
directions of translation, or "muon": what the optimizer makes of the gradient. Prints a JSON
object: for each name, the relative error of the gradient on the mesh (data 2, fsdp 2, tensor 2)
with two micro-batches, and its norm.
"""

import dataclasses
import functools
import json
import sys

import jax
import numpy as np

from tests.fixtures.tiny import VOCABULARY, lay_out, random_pairs, random_params, relative_error
from tests.model.configs import CONFIGS, ONE_LAYER
from transformer_jax.config.decode import PARALLEL
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import MeshConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.decoding.candidates import draw_translations
from transformer_jax.model.attention.hard_attention import first_baseline
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.model.interfaces import Params
from transformer_jax.model.outputs.back_translation import BACK_TRANSLATION, CODES
from transformer_jax.model.outputs.cross_entropy import DISTILLATION
from transformer_jax.model.outputs.objectives import OBJECTIVES, reads_watched
from transformer_jax.model.outputs.sequence_objectives import ON_DRAWS
from transformer_jax.model.parameters import axis_names, product_axes
from transformer_jax.model.stacked_params import stacked
from transformer_jax.parallel.mesh import batch_sharding, batch_ways, make_mesh, placed, shardings
from transformer_jax.text.batches import Batch
from transformer_jax.text.encoded import Taught
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.state import AGREEMENT
from transformer_jax.training.step import accumulated_gradients, make_loss_fn
from transformer_jax.training.two_directions import make_two_way_loss

MUON = "muon"
ROWS, SRC_LENGTH, TGT_LENGTH = 8, 18, 16
PAIRS = random_pairs(0, [(9, 7), (3, 9), (8, 2), (5, 5), (1, 1), (7, 6), (6, 4), (4, 3)] * 2)
SIZES = ModelConfig(
    num_layers=1, d_model=16, num_heads=4, d_k=4, d_v=6, d_ff=24, d_hidden=24, dropout=0.3
)


def gradient(name: str, mesh_config: MeshConfig, micro_batches: int) -> np.ndarray:
    """The gradient of the loss, with dropout, of packed rows on a mesh, as one vector."""
    changes = {**CONFIGS.get(name, {}), **ONE_LAYER, "d_hidden": SIZES.d_hidden}
    both = name == AGREEMENT
    if name in PARALLEL:
        changes["parallel"] = name
    losses = {name: 1.0} if name in OBJECTIVES.keys() - set(PARALLEL) else {}
    watch = both or reads_watched(losses)
    model = make_model(dataclasses.replace(SIZES, **changes), VOCABULARY, watch=watch)
    mesh = make_mesh(mesh_config)
    params = random_params(model)
    names = axis_names(model)
    key = jax.random.key(3)
    if both:
        params = (params, random_params(model, seed=1))
        names = (names,) * 2
        key = (key,) * 2
    params = jax.device_put(params, shardings(params, names, mesh))
    draws = name in ON_DRAWS or name == BACK_TRANSLATION
    rows = [[2 * n] if draws else [2 * n, 2 * n + 1] for n in range(ROWS)]
    batch = lay_out(PAIRS, rows, SRC_LENGTH, TGT_LENGTH)
    if name == BACK_TRANSLATION:
        batch.src.ids[:, 0] = np.resize(CODES, ROWS)
    if name == DISTILLATION:
        batch = batch._replace(taught=taught(batch))
    batch = jax.device_put(batch, batch_sharding(mesh))
    loss_fn = make_loss_fn(model, 0.1, replicas=batch_ways(mesh), auxiliary=losses)
    loss_fn = functools.partial(loss_fn, baseline=first_baseline(VOCABULARY))
    if both:
        loss_fn = make_two_way_loss(model, TrainConfig(agreement_weight=30.0), batch_ways(mesh))
    gradients = functools.partial(accumulated_gradients, loss_fn, micro_batches=micro_batches)
    with placed(mesh, model):
        if draws:
            draw = jax.jit(functools.partial(draw_translations, model, draws=2))
            asked = batch._replace(src=OBJECTIVES[name].sources(batch))
            batch = batch._replace(drawn=draw(params, asked, key))
        found, _ = jax.jit(gradients)(params, batch, key)
        if name == MUON:
            found = jax.jit(functools.partial(first_update, model))(found)
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(found)])


def taught(batch: Batch) -> Taught:
    """Two predictions at each target position: another subword, and that of the text."""
    ids = np.stack([(batch.tgt.ids + 5) % VOCABULARY, batch.tgt.ids], -1)
    return Taught(ids, (batch.tgt.segments != 0)[..., None] * np.float32([0.75, 0.25]))


def first_update(model: EncoderDecoder, gradient: Params) -> Params:
    """The first update of the parameters, stacked by layer."""
    train = TrainConfig(optimizer=MUON, warmup_steps=0, schedule="constant", peak_learning_rate=1.0)
    optimizer = make_optimizer(train, model.config.d_model, product_axes(model))
    gradient = stacked(gradient)
    update, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    return update


def main(names: list[str]) -> None:
    """Prints the errors and norms."""
    errors = {}
    for name in names:
        one = gradient(name, MeshConfig(data=1), 1)
        eight = gradient(name, MeshConfig(data=2, fsdp=2, tensor=2), 2)
        errors[name] = [relative_error(eight, one), float(np.linalg.norm(one))]
    print(json.dumps(errors))


if __name__ == "__main__":
    main(sys.argv[1:])
