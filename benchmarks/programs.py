"""What several benchmarks run: a compiled training step, and weights for a search."""

import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.config.schema import Config, MeshConfig
from transformer_jax.model.interfaces import Params
from transformer_jax.parallel.mesh import batch_sharding, make_mesh
from transformer_jax.text.batches import Batch
from transformer_jax.text.vocabulary import EOS, Sizes
from transformer_jax.training.program import BatchShape, compile_program, shardings_of
from transformer_jax.training.state import Window


def one_device() -> Mesh:
    """The mesh of the first device."""
    return make_mesh(MeshConfig(), jax.devices()[:1])


class Steps:
    """A compiled training step and its state."""

    def __init__(
        self,
        config: Config,
        sizes: Sizes | int,
        shape: BatchShape,
        mesh: Mesh | None = None,
    ):
        started = time.perf_counter()
        mesh = mesh or one_device()
        self.program = compile_program(config.model, config.train, mesh, sizes, shape)
        self.compile_seconds = time.perf_counter() - started
        self.state: Any = self.program.init(0)

    def put(self, batch: Batch) -> Batch:
        """The batch on the mesh's devices."""
        return jax.device_put(batch, batch_sharding(self.program.mesh))

    def begin(self) -> None:
        """Sets the sums of metrics to 0."""
        zero = jax.device_put(Window.zero(), shardings_of(self.state.window))
        self.state = jax.block_until_ready(self.state._replace(window=zero))

    def run(self, batches: Iterable[Batch]) -> None:
        """Takes a step with each batch; returns when the last one has ended."""
        for batch in batches:
            (self.state,) = self.program.train_step((self.state,), batch)
        jax.block_until_ready(self.state.step)


def random_params(shapes: Params) -> Params:
    """Random float32 arrays of these shapes: matrices around 0, gains and biases around 1."""
    draw = np.random.default_rng(0)

    def random(x: Any) -> np.ndarray:
        values = draw.standard_normal(x.shape, np.float32)
        return values / 20 if x.ndim > 1 else 1 + values / 10

    return jax.tree.map(random, shapes)


def without_end(params: Params, layers: int) -> Params:
    """Changes weights so that EOS has a logit near -1,000: search then runs to its limit.

    The last norm makes feature 0 a constant 1, so column 0 of the tied embedding is a bias.
    """
    norm = params[f"decoder_{layers - 1}"]["feed_forward_residual"]["norm"]
    norm["scale"][0], norm["bias"][0] = 0.0, 1.0
    table_VD = params["embedding"]["table"]
    table_VD[:, 0] = 0.0
    table_VD[EOS, 0] = -1_000.0
    return params
