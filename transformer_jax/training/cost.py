"""What a model costs: parameters, and the FLOPs of matrix products, counted in the traced program.

A product of [m, k] and [k, n] counts 2 m k n FLOPs. The program is traced without remat and without
the vocabulary's padding, so the count is that of the equations. A new part of a model needs no
formula of its own.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr

from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.model import parameters
from transformer_jax.model.attention.hard_attention import REINFORCE
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.outputs.objectives import loss_weights, objective_of, reads_watched
from transformer_jax.text.batches import Batch, Drawn
from transformer_jax.text.encoded import LIKELIEST
from transformer_jax.text.vocabulary import Sizes, both_sides
from transformer_jax.training.program import BatchShape
from transformer_jax.training.step import make_loss_fn

# Dense peak of the matrix units in FLOP/s as the vendors print it, for bfloat16 and for float32 (as
# TF32 if the chip has it), by the beginning of the device's name; the first that fits counts.
DEVICE_PEAKS = {
    "NVIDIA A100": (312e12, 156e12),
    "NVIDIA H100 PCIe": (756e12, 378e12),
    "NVIDIA H100 NVL": (835e12, 417e12),
    "NVIDIA H100": (989e12, 495e12),
    "NVIDIA H200 NVL": (835e12, 417e12),
    "NVIDIA H200": (989e12, 495e12),
    "NVIDIA GH200": (989e12, 495e12),
    "NVIDIA B200": (2250e12, 1125e12),
    "TPU v4": (275e12, 275e12),
    "TPU v5 lite": (197e12, 197e12),
    "TPU v5e": (197e12, 197e12),
    "TPU v5": (459e12, 459e12),  # v5p, which JAX calls by both names
    "TPU v6": (918e12, 918e12),
}


@functools.lru_cache(maxsize=256)
def parameter_count(model: ModelConfig, sizes: Sizes | int) -> int:
    """The number of trained parameters, without the vocabulary's padding."""
    return parameters.parameter_count(_unpadded(model, sizes))


def step_flops(
    model: ModelConfig, sizes: Sizes | int, lengths: tuple[int, int], train: TrainConfig
) -> int:
    """FLOPs of a run's forward and backward pass of one row, added over the trained directions.

    Args:
      model: the model of each direction.
      sizes: sizes of its vocabularies.
      lengths: source and target positions of a row.
      train: the losses on attention, and whether both directions are trained.
    """
    ways = (lengths,) if train.agreement_weight is None else (lengths, lengths[::-1])
    losses = tuple(loss_weights(train))
    full = train.alignment_context == "full"
    draws = objective_of(losses).draws(train)
    return sum(training_flops(model, sizes, *way, losses, full, draws) for way in ways)


@functools.lru_cache(maxsize=256)
def training_flops(
    model: ModelConfig,
    sizes: Sizes | int,
    src_length: int,
    tgt_length: int,
    losses: tuple[str, ...] = (),
    full_context: bool = False,
    draws: int = 0,
) -> int:
    """FLOPs of the forward and backward pass of one row.

    Args:
      sizes: sizes of its vocabularies.
      src_length: positions of the source.
      tgt_length: positions of the target.
      losses: names of auxiliary losses. Hard attention ("reinforce") saves a product, and
        "consistency" takes a second pass.
      full_context: whether a second pass of the decoder, which sees the whole target, aligns.
      draws: translations that are drawn of each source. The pass over them counts; how many
        steps it takes to draw them is not known, so these do not.
    """
    unpadded = _unpadded(model, sizes).clone(watch=reads_watched(losses))
    weights = dict.fromkeys(losses, 1.0)
    loss_fn = make_loss_fn(
        unpadded, TrainConfig.label_smoothing, auxiliary=weights, full_context=full_context
    )
    baseline = jnp.float32(0) if REINFORCE in losses else None

    def objective(params: Any, batch: Batch, rows_B: Any, key: Any) -> Any:
        return loss_fn(params, batch, rows_B, key, baseline).objective

    # With rows and a key, as in training: without them, hard attention has no gradient.
    rows_B = jax.ShapeDtypeStruct((1,), jnp.int32)
    key = jax.eval_shape(jax.random.key, 0)
    features = model.features
    batch = BatchShape(1, src_length, tgt_length, True, features, LIKELIEST).abstract()
    if draws:
        ids = jax.ShapeDtypeStruct((1, draws, tgt_length), jnp.int32)
        of_each = (jax.ShapeDtypeStruct((1, draws), dtype) for dtype in (jnp.int32, jnp.float32))
        batch = batch._replace(drawn=Drawn(ids, *of_each))
    params = parameters.abstract_params(unpadded)
    return product_flops(jax.value_and_grad(objective), params, batch, rows_B, key)


def _unpadded(model: ModelConfig, sizes: Sizes | int) -> EncoderDecoder:
    # The products are the same in every type; a trace in bfloat16 may contain other kernels too.
    changes: dict[str, Any] = {"attention_kernel": "plain", "dtype": "float32", "dropout": 0.0}
    plain = dataclasses.replace(model, **changes)
    return EncoderDecoder(plain, both_sides(sizes), vocabulary_multiple=1)


def product_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """FLOPs of a function's matrix products, from its trace.

    Products whose result nothing uses do not count, since XLA leaves them out. A scan's body counts
    as often as it runs. Of several branches, the most expensive one counts.

    Args:
      function: the function, which is traced but not run.
      arguments: arrays, or their shapes and types.

    Raises:
      NotImplementedError: the trace has a loop of unknown length or a call of a foreign kernel.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return _flops(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])


def _flops(jaxpr: Jaxpr) -> int:
    return sum(map(_flops_of, jaxpr.eqns))


def _flops_of(equation: JaxprEqn) -> int:
    name = equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left: Any = equation.invars[0].aval
        result: Any = equation.outvars[0].aval
        return 2 * math.prod(result.shape) * math.prod(left.shape[n] for n in contracted)
    if name in UNKNOWN:
        raise NotImplementedError(f"FLOPs of {name!r} cannot be counted from a trace.")
    inner = [_flops(jaxpr) for jaxpr in _inner(equation)]
    if name == "cond":
        return max(inner)
    return sum(inner) * (equation.params["length"] if name == "scan" else 1)


# Loops whose number of steps depends on data, products other than dot_general, foreign kernels.
UNKNOWN = {"while", "conv_general_dilated", "ragged_dot_general"}
UNKNOWN |= {"pallas_call", "ffi_call", "pure_callback", "io_callback"}


def _inner(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The programs inside an operation such as a call, a loop, a branch or a remat."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, Jaxpr):
                yield one


def device_peak(dtype: str) -> float | None:
    """Peak FLOP/s of one of this machine's devices, or None if it is not known, as for a CPU."""
    return peak_of(jax.devices()[0].device_kind, dtype)


def peak_of(kind: str, dtype: str) -> float | None:
    """Peak FLOP/s of a device of this kind, or None: it is not known, as for a part of a card."""
    for name, (bfloat16, float32) in DEVICE_PEAKS.items():
        if kind.startswith(name) and " MIG " not in kind:
            return bfloat16 if dtype == "bfloat16" else float32
    return None
