"""The points of growth.py: a compiled training step or search, its counted costs and its run.

Batches and weights are random, because only the time matters.
"""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs import Steps, one_device, random_params, without_end
from benchmarks.search_cost import FLOAT32, attention_parameters, search_bytes, search_flops
from benchmarks.workload import random_pairs
from transformer_jax.config.files import load_config
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.decoding.rows import (
    SearchShape,
    Strengths,
    empty_rows,
    make_queue,
    prepared_output,
    row_shardings,
    search_rows,
)
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.model.sides.embeddings import padded_vocabulary
from transformer_jax.parallel.mesh import placed
from transformer_jax.text.batches import Batch, packed_batch
from transformer_jax.text.packing import plan_rows
from transformer_jax.text.vocabulary import EOS
from transformer_jax.training.cost import parameter_count, training_flops
from transformer_jax.training.program import BatchShape, Program, shardings_of
from transformer_jax.training.state import TrainState

logger = logging.getLogger("transformer_jax.benchmarks")

CONFIGS = Path(__file__).parents[1] / "configs"
D_K = 64  # per head, as in the paper: wider models have more heads
SENTENCE = 14  # mean number of subwords of a sentence of Multi30k, EOS included
MIB = 2**20


class Setting(NamedTuple):
    """A point: a training step over packed rows, or a search over sentences."""

    rows: int  # packed rows of a step, or sentences of a search
    length: int  # source and target positions of a row, or subwords of a source and its target
    d_model: int
    layers: int
    vocabulary: int
    beam: int = 0  # 0: a training step

    def __str__(self) -> str:
        sizes = f"d_model {self.d_model:,}, {self.layers} layers, vocabulary {self.vocabulary:,}"
        if self.beam:
            return f"{self.rows} sentences of {self.length} subwords, beam {self.beam}, {sizes}"
        return f"{self.rows} rows of {self.length} positions a side, {sizes}"

    @property
    def config(self) -> Config:
        """The paper's recipe in float32, with the sizes of the point."""
        sizes = {
            "model.d_model": self.d_model,
            "model.num_heads": self.d_model // D_K,
            "model.d_ff": 4 * self.d_model,
            "model.num_layers": self.layers,
        }
        recipe = {"model.norm": "post", "model.dropout": 0.1}
        return load_config(str(CONFIGS / "multi30k.py"), {**sizes, **recipe})


class Point(NamedTuple):
    """A compiled step or search, its counted costs, and a function that runs it."""

    flops: float
    moved: float  # bytes, at least
    xla_moved: float | None  # bytes, by XLA's count; None for a search: XLA counts one step of it
    memory: float  # bytes: arguments and temporaries
    run: Callable[[], Any]  # runs it once, and returns when it is finished


def step_bytes(model: ModelConfig, vocabulary_size: int, shape: BatchShape) -> int:
    """The bytes that a training step must move at least.

    It reads and writes parameters, gradients and Adam's two moments once, in float32: 32 bytes per
    parameter. The forward pass writes activations once, and the backward pass reads them once.
    Dropout masks are not stored: the backward pass computes their hash again.
    """
    parameters = parameter_count(model, padded_vocabulary(vocabulary_size))
    return 8 * FLOAT32 * parameters + 2 * activation_bytes(model, vocabulary_size, shape)


def activation_bytes(model: ModelConfig, vocabulary_size: int, shape: BatchShape) -> int:
    """The bytes that the forward pass stores for the backward pass.

    - Per position, in float32: the embedding, D; sums of residuals and outputs of norms, 4 D in an
      encoder layer and 6 D in a decoder layer; at target positions the logits of the padded V.
    - Per position and layer, in the products' type: queries, keys, values and head outputs of each
      attention, H (2 d_k + 2 d_v); the hidden features, d_ff.
    - Attention weights in float32: H per layer and pair of positions. A row has M^2 + L^2 + L M
      pairs.
    """
    rows, (src_length, tgt_length) = shape.rows, shape.lengths
    layers = model.num_layers
    d = model.d_model
    positions = src_length + tgt_length
    heads = attention_parameters(model) // d  # H (2 d_k + 2 d_v)
    pairs = src_length**2 + tgt_length**2 + src_length * tgt_length
    floats = positions * d + layers * d * (4 * src_length + 6 * tgt_length)
    floats += layers * model.num_heads * pairs + tgt_length * padded_vocabulary(vocabulary_size)
    # Cross-attention has keys and values of source positions, queries and outputs of target ones.
    products = layers * positions * (3 * heads // 2 + model.d_ff)
    return rows * (FLOAT32 * floats + jnp.dtype(model.dtype).itemsize * products)


def random_batch(shape: BatchShape, vocabulary_size: int) -> Batch:
    """Packed rows of random pairs, whose lengths are like those of Multi30k."""
    draw = np.random.default_rng(0)
    pairs = 2 * shape.rows * (shape.tgt_length // SENTENCE + 1)
    src, tgt = np.clip(draw.poisson(SENTENCE, (2, pairs)), 2, min(shape.lengths))
    plan = plan_rows(src, tgt, *shape.lengths, seed=0)
    return packed_batch(random_pairs(src, tgt, vocabulary_size), plan, np.arange(shape.rows))


def random_state(program: Program) -> TrainState:
    """A state with random weights. `program.init` would take as long to compile as the step."""
    state: Any = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), program.state)
    state = state._replace(params=random_params(program.state.params))
    return jax.device_put(state, shardings_of(program.state))


def step_point(setting: Setting) -> Point:
    """Compiles a training step for one device."""
    model = setting.config.model
    shape = BatchShape(setting.rows, setting.length, setting.length)
    steps = Steps(setting.config, setting.vocabulary, shape, start=random_state)
    batch = steps.put(random_batch(shape, setting.vocabulary))
    compiled: Any = steps.program.train_step
    padded = padded_vocabulary(setting.vocabulary)
    return Point(
        flops=shape.rows * training_flops(model, padded, *shape.lengths),
        moved=step_bytes(model, setting.vocabulary, shape),
        xla_moved=(compiled.cost_analysis() or {}).get("bytes accessed"),
        memory=steps.program.memory_bytes,
        run=lambda: steps.run([batch]),
    )


def search_point(setting: Setting) -> Point:
    """Compiles a search in which sources and hypotheses have `length` subwords."""
    model_config = setting.config.model
    mesh = one_device()
    model = make_model(model_config, setting.vocabulary)
    params = random_params(abstract_params(model))
    params = jax.device_put(without_end(params, setting.layers))
    rows, length = setting.rows, setting.length
    limits = {"size": length, "max_extra_length": 0, "penalizes_coverage": False}
    shape = SearchShape(rows, rows, length, setting.beam, 1, **limits)
    empty = functools.partial(empty_rows, model, shape)
    state = jax.jit(empty, out_shardings=row_shardings(model, shape, mesh))()
    draw = np.random.default_rng(0)
    ids = draw.integers(EOS + 1, setting.vocabulary, (rows, length), np.int32)
    queue = jax.device_put(make_queue(shape, range(rows), ids))
    strengths = Strengths(*map(jnp.float32, (0.6, 0.0, 0.0, 1.0, 1.0)))
    rest = (queue, strengths, jnp.bool_(False))  # no sentences follow
    with placed(mesh, model):
        weights = params, prepared_output(model, params)
        compiled = search_rows.lower(model, mesh, shape, *weights, state, *rest).compile()

    def run() -> None:
        nonlocal state
        state, *_ = jax.block_until_ready(compiled(*weights, state, *rest))

    run()
    steps = int(state.search.steps)
    if steps != length:
        raise RuntimeError(f"{setting}: search took {steps} steps, not {length}")
    memory: Any = compiled.memory_analysis()
    counts = (model_config, setting.vocabulary, rows, setting.beam, length, length)
    return Point(
        flops=search_flops(*counts),
        moved=search_bytes(*counts),
        xla_moved=None,
        memory=memory.temp_size_in_bytes + memory.argument_size_in_bytes,
        run=run,
    )


def make_point(setting: Setting) -> Point:
    """Compiles the point."""
    logger.info("compiling %s", setting)
    return search_point(setting) if setting.beam else step_point(setting)
