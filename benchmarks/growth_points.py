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

from benchmarks.hlo import parse, type_bytes
from benchmarks.search_cost import (
    FLOAT32,
    attention_parameters,
    dtype_bytes,
    search_bytes,
    search_flops,
)
from benchmarks.turns import markdown
from transformer_jax.config.files import load_config
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config, MeshConfig
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
from transformer_jax.model.interfaces import Params
from transformer_jax.model.parameters import abstract_params
from transformer_jax.model.sides.embeddings import padded_vocabulary
from transformer_jax.parallel.mesh import make_mesh, own_rows, placed, put_rows
from transformer_jax.text.batches import Batch, packed_batch
from transformer_jax.text.encoded import EncodedPairs
from transformer_jax.text.packing import plan_rows
from transformer_jax.text.vocabulary import EOS
from transformer_jax.training.cost import parameter_count, training_flops
from transformer_jax.training.program import BatchShape, compile_program, shardings_of

logger = logging.getLogger("transformer_jax.benchmarks")

CONFIGS = Path(__file__).parents[1] / "configs"
D_K = 64  # per head, as in the paper: wider models have more heads
SENTENCE = 14  # mean number of subwords of a sentence of Multi30k, EOS included
BASE_VOCABULARY, BASE_SHAPE = 37_000, BatchShape(32, 128, 128)  # 4,096 target positions
MIB = 2**20
NO_WRITES = ("bitcast", "get-tuple-element", "parameter", "tuple")  # HLO that writes nothing


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
    return rows * (FLOAT32 * floats + dtype_bytes(model) * products)


def random_batch(shape: BatchShape, vocabulary_size: int) -> Batch:
    """Packed rows of random pairs, whose lengths are like those of Multi30k."""
    draw = np.random.default_rng(0)
    pairs = 2 * shape.rows * (shape.tgt_length // SENTENCE + 1)
    lengths = np.clip(draw.poisson(SENTENCE, (2, pairs)), 2, min(shape.lengths))
    sides = []
    for counts in lengths:
        ids = draw.integers(EOS + 1, vocabulary_size, counts.sum(), np.int32)
        ids[np.cumsum(counts) - 1] = EOS
        sides += [ids, np.concatenate([[0], np.cumsum(counts)])]
    plan = plan_rows(lengths[0], lengths[1], shape.src_length, shape.tgt_length, seed=0)
    return packed_batch(EncodedPairs(*sides), plan, np.arange(shape.rows))


def step_point(setting: Setting) -> Point:
    """Compiles a training step for one device."""
    config = setting.config
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    shape = BatchShape(setting.rows, setting.length, setting.length)
    program = compile_program(config.model, config.train, mesh, setting.vocabulary, shape)
    host_batch = random_batch(shape, setting.vocabulary)
    batch = put_rows(mesh, shape.rows, own_rows(mesh, shape.rows), host_batch)
    # Not `program.init`: it would take as long to compile as the step.
    state: Any = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), program.state)
    state = state._replace(params=random_params(program.state.params))
    state = jax.device_put(state, shardings_of(program.state))

    def run() -> None:
        nonlocal state
        (state,) = jax.block_until_ready(program.train_step((state,), batch))

    compiled: Any = program.train_step
    padded = padded_vocabulary(setting.vocabulary)
    return Point(
        flops=shape.rows * training_flops(config.model, padded, *shape.lengths),
        moved=step_bytes(config.model, setting.vocabulary, shape),
        xla_moved=(compiled.cost_analysis() or {}).get("bytes accessed"),
        memory=program.memory_bytes,
        run=run,
    )


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


def search_point(setting: Setting) -> Point:
    """Compiles a search in which sources and hypotheses have `length` subwords."""
    model_config = setting.config.model
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
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


# The base model's memory -----------------------------------------------------------------------


def base_memory() -> str:
    """Markdown table of the memory of the base model's step, which is compiled but not run."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    rows = []
    positions = BASE_SHAPE.rows * BASE_SHAPE.tgt_length * padded_vocabulary(BASE_VOCABULARY)
    for dtype in ("float32", "bfloat16"):
        config = load_config(f"{CONFIGS / 'wmt14.py'}:base", {"model.dtype": dtype})
        compiled: Any = compile_program(
            config.model, config.train, mesh, BASE_VOCABULARY, BASE_SHAPE
        ).train_step
        memory = compiled.memory_analysis()
        kept = activation_bytes(config.model, BASE_VOCABULARY, BASE_SHAPE) - FLOAT32 * positions
        held = [memory.temp_size_in_bytes, memory.argument_size_in_bytes, kept, FLOAT32 * positions]
        written = " ".join(logits_sized(compiled.as_text(), positions)) or "none"
        rows.append(
            [dtype, *(f"{b / MIB:,.0f}" for b in held), f"{held[0] / held[-1]:.2f}", written]
        )
    head = [
        "type",
        "temporary, MiB",
        "arguments, MiB",
        "activations counted, MiB",
        "logits in float32, MiB",
    ]
    return markdown([*head, "temporary over logits", "arrays of the logits' size"], rows)


def logits_sized(text: str, positions: int) -> list[str]:
    """Instructions that write at least as many numbers as the logits have: fusion:f32."""
    found = []
    for instruction in parse(text).values():
        kind = instruction.type.split("[")[0]
        if kind.startswith("(") or not instruction.in_entry or instruction.opcode in NO_WRITES:
            continue
        width = type_bytes(f"{kind}[1]")
        if width and type_bytes(instruction.type) // width >= positions:
            found.append(f"{instruction.opcode}:{kind}")
    return found
