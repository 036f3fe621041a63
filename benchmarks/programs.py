"""What several benchmarks run: a compiled training step, its FLOPs, and weights for a search."""

import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config, MeshConfig
from transformer_jax.model.interfaces import Params
from transformer_jax.parallel.mesh import batch_sharding, make_mesh
from transformer_jax.text.batches import Batch
from transformer_jax.text.vocabulary import EOS, Sizes
from transformer_jax.training.cost import training_flops
from transformer_jax.training.program import BatchShape, compile_program, shardings_of
from transformer_jax.training.state import Window

SHORTEST = 2  # shortest length that `flops_of_pairs` traces


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


def flops_of_pairs(
    model: ModelConfig, vocabulary_size: int, src_lengths: np.ndarray, tgt_lengths: np.ndarray
) -> np.ndarray:
    """FLOPs of the forward and backward pass of each pair in a row of its own: int64 `[pairs]`.

    A matrix product works on single positions, on pairs of positions of one side, or on pairs of a
    source and a target position. So the FLOPs of a row are a polynomial of degree 2 in its two
    lengths, and six traces of the program (training/cost.py) determine it.

    Args:
      model: any model.
      vocabulary_size: the real one, not padded.
      src_lengths: source positions `[pairs]`.
      tgt_lengths: target positions `[pairs]`.

    Raises:
      ValueError: the polynomial and the trace disagree at the longest lengths.
    """

    def traced(src: int, tgt: int) -> int:
        return training_flops(model, vocabulary_size, src, tgt)

    # Newton's form: differences at SHORTEST, times binomials of the distances from SHORTEST.
    start = traced(SHORTEST, SHORTEST)
    src_1, src_2 = (traced(SHORTEST + n, SHORTEST) - start for n in (1, 2))
    tgt_1, tgt_2 = (traced(SHORTEST, SHORTEST + n) - start for n in (1, 2))
    both = traced(SHORTEST + 1, SHORTEST + 1) - start - src_1 - tgt_1

    def polynomial(src: np.ndarray, tgt: np.ndarray) -> np.ndarray:
        s, t = src.astype(np.int64) - SHORTEST, tgt.astype(np.int64) - SHORTEST
        linear = start + src_1 * s + tgt_1 * t + both * s * t
        squares = (src_2 - 2 * src_1) * (s * (s - 1) // 2)
        return linear + squares + (tgt_2 - 2 * tgt_1) * (t * (t - 1) // 2)

    longest = int(src_lengths.max()), int(tgt_lengths.max())
    wanted = traced(*longest)
    found = int(polynomial(*map(np.array, longest)))
    if found != wanted:
        raise ValueError(
            f"FLOPs are no polynomial of degree 2 in the lengths: it gives {found:,} for {longest} "
            f"positions, and their trace {wanted:,}."
        )
    return polynomial(src_lengths, tgt_lengths)
