"""Two updates on each of several meshes of 8 CPU devices, as JSON lines, for test_sharding.py.

The number of devices is settled when JAX starts, hence a process of its own.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
import numpy as np

from tests.fixtures.tiny import VOCABULARY, lay_out, random_pairs
from transformer_jax.config import Config, MeshConfig, ModelConfig, TrainConfig
from transformer_jax.training.program import BatchShape, compile_program
from transformer_jax.training.sharding import make_mesh

ROWS, SRC_LENGTH, TGT_LENGTH = 16, 10, 9
LENGTHS = [(9, 7), (3, 9), (10, 2), (5, 5), (1, 1), (7, 8), (6, 4), (4, 3)] * 2
CONFIG = Config(
    model=ModelConfig(num_layers=1, d_model=16, num_heads=8, d_k=3, d_v=5, d_ff=24, dropout=0.3),
    train=TrainConfig(warmup_steps=1, peak_learning_rate=0.02, adam_epsilon=1e-3),
    seed=5,
)


def run(mesh: tuple[int, int, int], accumulate: int) -> dict[str, Any]:
    """What two updates leave in the metrics, and where the arrays lie."""
    train = dataclasses.replace(CONFIG.train, accumulate_steps=accumulate)
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(*mesh), train=train)
    shape = BatchShape(ROWS, SRC_LENGTH, TGT_LENGTH)
    program = compile_program(config, make_mesh(config.mesh), VOCABULARY, shape)
    state = program.init(config)
    for seed in (0, 1):
        batch = lay_out(random_pairs(seed, LENGTHS), [[n] for n in range(ROWS)], *shape[1:])
        batch = program.put(batch)
        state = program.train_step(state, batch)
    arrays = jax.tree.leaves((state.params, state.opt_state))
    on_one = sum(x.addressable_shards[0].data.size for x in arrays)
    return {
        "left_over": make_mesh(dataclasses.replace(config.mesh, data=-1)).devices.shape,
        "window": {name: float(value) for name, value in state.window._asdict().items()},
        "skipped": int(state.skipped),
        "rows_a_device": [len(s.data) for s in batch.tgt_ids.addressable_shards],
        "share_of_the_state": on_one / sum(x.size for x in arrays),
        "weights": float(sum(np.abs(np.asarray(x)).sum() for x in jax.tree.leaves(state.params))),
    }


if __name__ == "__main__":
    for data, fsdp, tensor, accumulate in json.loads(sys.argv[1]):
        print(json.dumps(run((data, fsdp, tensor), accumulate)), flush=True)
