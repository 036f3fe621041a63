"""Ten updates and a search on each of several meshes of CPU devices, for test_sharding.py.

    python -m tests.parallel.sharded_run FOLDER MESHES [PORT PROCESS]

MESHES is JSON, [[data, fsdp, tensor, micro-batches, kind], ...]; a kind is "transformer",
"recurrent", or "fused": a transformer with the fused kernels, which Pallas interprets. The results
of each go to FOLDER, as NumPy and JSON files, from the first process. The number of devices is
fixed when JAX starts, so this is a process of its own.
"""

import dataclasses
import functools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from tests.fixtures.tiny import VOCABULARY, lay_out, random_pairs, random_params
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config, MeshConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.decoding.rows import search_rows
from transformer_jax.decoding.translator import Translator
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.kernels.fused_loss import fused_loss_and_gradient
from transformer_jax.model.outputs.cross_entropy import LossSettings, loss_and_gradient
from transformer_jax.model.parameters import axis_names
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import (
    batch_sharding,
    batch_ways,
    decoding_mesh,
    local,
    make_mesh,
    own_rows,
    placed,
    put_rows,
)
from transformer_jax.training.program import BatchShape, Program, compile_program

STEPS = 10
FUSED = "fused"
ROWS, SRC_LENGTH, TGT_LENGTH = 32, 10, 9
LENGTHS = [(9, 7), (3, 9), (10, 2), (5, 5), (1, 1), (7, 8), (6, 4), (4, 3)] * 4
CONFIG = Config(
    model=ModelConfig(
        num_layers=1, d_model=16, num_heads=8, d_k=3, d_v=5, d_ff=24, d_hidden=24, dropout=0.3
    ),
    train=TrainConfig(warmup_steps=10, peak_learning_rate=0.01),
    seed=5,
)
DECODE = DecodeConfig(beam_size=3, max_extra_length=4, max_length=16, tokens_per_batch=128)


def run(
    mesh: tuple[int, int, int], accumulate: int, kind: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arrays, the rest) that the updates leave."""
    train = dataclasses.replace(CONFIG.train, accumulate_steps=accumulate)
    config = dataclasses.replace(CONFIG, model=model_of(kind), mesh=MeshConfig(*mesh), train=train)
    shape = BatchShape(ROWS, SRC_LENGTH, TGT_LENGTH)
    program = compile_program(config.model, config.train, make_mesh(config.mesh), VOCABULARY, shape)
    own = own_rows(program.mesh, ROWS)
    state = program.init(config.seed)
    losses = []
    first_gradient = None
    before = 0.0
    for step in range(STEPS):
        batch = lay_out(random_pairs(step, LENGTHS), [[n] for n in range(ROWS)], *shape.lengths)
        batch = jax.tree.map(lambda x: x[own], batch)
        batch = put_rows(program.mesh, ROWS, own, batch)
        (state,) = program.train_step((state,), batch)
        total = float(state.window.smoothed_nats)
        losses.append(total - before)
        before = total
        if step == 0:
            moments = program.replicated(optax.tree.get(state.opt_state, "mu"))
            first_gradient = flat(moments) / (1 - config.train.adam_b1)
    arrays = jax.tree.leaves((state.params, state.opt_state))
    on_one = sum(x.addressable_shards[0].data.size for x in arrays)
    return {
        "losses": np.array(losses),
        "first_gradient": first_gradient,
        "params": flat(program.replicated(state.params)),
    }, {
        "skipped": int(state.skipped),
        "steps": float(state.window.steps),
        "rows_a_device": [len(s.data) for s in batch.tgt.ids.addressable_shards],
        "share_of_the_state": on_one / sum(x.size for x in arrays),
        "loss_error": loss_error(program) if kind == FUSED else None,
    }


def model_of(kind: str) -> ModelConfig:
    """The model whose encoder and decoder are of that kind."""
    if kind == FUSED:
        return dataclasses.replace(CONFIG.model, attention_kernel="fused")
    return dataclasses.replace(CONFIG.model, encoder=kind, decoder=kind)


def loss_error(program: Program) -> float:
    """The largest error of the gradient of the fused loss, its rows divided over the mesh."""
    draw = np.random.default_rng(2)
    ways = batch_ways(program.mesh)
    logits_RbLV = draw.normal(size=(ways, 2, 4, 128)).astype(np.float32)
    targets_RbL = draw.integers(0, 100, (ways, 2, 4))
    real_RbL = draw.random((ways, 2, 4)) < 0.7
    block = jax.tree.map(
        lambda x: jax.device_put(x, batch_sharding(program.mesh)),
        (logits_RbLV, targets_RbL, real_RbL),
    )
    settings = LossSettings(0.1, 100, "float32", block=1, replicas=ways)
    with placed(program.mesh, program.model):
        found = jax.jit(functools.partial(fused_loss_and_gradient, settings=settings))(*block)
    assert len({str(shard.index) for shard in found[1].addressable_shards}) == ways
    wanted = loss_and_gradient(logits_RbLV, targets_RbL, real_RbL, 0.1, 100)
    errors = jax.tree.map(lambda x, y: float(abs(x - y).max()), found, wanted)
    return max(jax.tree.leaves(errors))


def flat(tree: Any) -> np.ndarray:
    """All arrays of a tree that is whole on every device, as one vector."""
    leaves = [np.asarray(x.addressable_data(0), np.float64) for x in jax.tree.leaves(tree)]
    return np.concatenate([leaf.ravel() for leaf in leaves])


@functools.cache  # micro-batches do not matter here
def translations(mesh_config: MeshConfig, config: ModelConfig) -> tuple[list[list[int]], int]:
    """Translations by a model drawn at random, on this process's part of the mesh.

    Also the largest number of programs that were started at the same time.
    """
    mesh = decoding_mesh(mesh_config)
    changes = {"norm": "pre", "tie_embeddings": False}  # answers that differ, of many lengths
    model = make_model(dataclasses.replace(config, **changes), VOCABULARY)
    replicated = NamedSharding(make_mesh(mesh_config), PartitionSpec())
    params = jax.device_put(random_params(model, seed=1), replicated)
    translator = Translator(model, local(params, axis_names(model), mesh), DECODE, mesh)
    sources = [np.array(src) for src, _ in random_pairs(3, LENGTHS)]
    starting, at_once = set[int](), set[int]()

    def started(*arguments: Any) -> Any:
        starting.add(threading.get_ident())
        time.sleep(0.01)  # long enough for another lane to start one too
        at_once.add(len(starting))
        found = search_rows(*arguments)
        starting.remove(threading.get_ident())
        return found

    with mock.patch("transformer_jax.decoding.translator.search_rows", started):
        found = [best.ids.tolist() for best, *_ in translator.translate(sources)]
    return found, max(at_once)


def main(folder: str, meshes: str, port: str = "", process: str = "") -> None:
    """Runs on all meshes, one after the other."""
    if port:
        processes.join(f"localhost:{port}", 2, int(process))
    every = json.loads(meshes)
    for mesh in every:
        arrays, rest = run(tuple(mesh[:3]), *mesh[3:])
        # Search does not use the fused kernels.
        if mesh[-1] != FUSED and (not port or mesh == every[-1]):
            found = translations(MeshConfig(*mesh[:3]), model_of(mesh[-1]))
            rest["translations"], rest["started_at_once"] = found
        if processes.is_first():
            name = "-".join(map(str, mesh))
            np.savez(Path(folder) / f"{name}.npz", **arrays)
            (Path(folder) / f"{name}.json").write_text(json.dumps(rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
