"""LayerNorm(x + dropout(y)) in one kernel, for a GPU.

XLA compiles it to about five kernels forward and backward, which write the dropout mask and
intermediate sums to memory. Here one program reads a few positions of x and y, computes the mask
from its hash, and writes the sum and its norm; the backward pass computes the mask again. The
kernels are written in Pallas, as in fused_attention.py.

Dimension key
  B rows   L length   D d_model   P programs   l positions of one turn of a program
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import PartitionSpec, get_abstract_mesh

from transformer_jax.model.axes import BATCH, mesh_axes
from transformer_jax.model.dropout import Drawn, kept, position_bits

POSITIONS = 32  # of a program
ELEMENTS = 2_048  # of x that a program holds at once


class Setting(NamedTuple):
    """What the kernels depend on, except arrays."""

    rate: float  # of dropout
    epsilon: float  # of the norm


class Summands(NamedTuple):
    """The input of a residual: `[batch, length, d_model]` each."""

    x: Any
    y: Any  # the output of the sub-layer


def fits(features: int) -> bool:
    """Whether the kernels take this number of features: Triton's blocks are powers of 2."""
    return features.bit_count() == 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def fused_residual(
    summands: Summands, scale_D: Array, bias_D: Array, drawn: Drawn, setting: Setting
) -> Array:
    """LayerNorm(x + dropout(y)), `[batch, length, d_model]` in x's type.

    Args:
      summands: x and y; their sum is rounded to x's type.
      scale_D: the norm's gain.
      bias_D: the norm's bias.
      drawn: the words of the dropout mask and the rows' numbers.
      setting: rate and epsilon.

    Source: Vaswani et al. 2017, sections 3.1 and 5.4; Ba et al. 2016, equation 4.
    """
    return _forward(summands, scale_D, bias_D, drawn, setting)[0]


def _forward(
    summands: Summands, scale_D: Array, bias_D: Array, drawn: Drawn, setting: Setting
) -> tuple[Array, tuple]:
    x_BLD = summands.x
    of_each = jax.ShapeDtypeStruct(x_BLD.shape[:2], jnp.float32)
    outputs = x_BLD, x_BLD, of_each, of_each
    call = functools.partial(_call, _residual_kernel, setting=setting, outputs=outputs)
    normed_BLD, *kept_of_sum = _on_each_device(call, (*summands, scale_D, bias_D, drawn), 4)
    return normed_BLD, (*kept_of_sum, scale_D, drawn, jnp.zeros((), summands.y.dtype))


def _backward(setting: Setting, found: tuple, gradient_BLD: Array) -> tuple:
    sum_BLD, mean_BL, rate_BL, scale_D, drawn, like_y = found
    batch, length, features = sum_BLD.shape
    own = math.gcd(length, POSITIONS)
    outputs = (
        sum_BLD,
        jax.ShapeDtypeStruct(sum_BLD.shape, like_y.dtype),
        jax.ShapeDtypeStruct((batch, length // own, 2, features), jnp.float32),
    )
    call = functools.partial(_call, _residual_gradient_kernel, setting=setting, outputs=outputs)
    inputs = (gradient_BLD, sum_BLD, mean_BL, rate_BL, scale_D, drawn)
    x_gradient_BLD, y_gradient_BLD, parts_BP2D = _on_each_device(call, inputs, 3)
    scale_gradient_D, bias_gradient_D = parts_BP2D.sum((0, 1))
    return Summands(x_gradient_BLD, y_gradient_BLD), scale_gradient_D, bias_gradient_D, None


fused_residual.defvjp(_forward, _backward)


def _on_each_device(call: Any, inputs: tuple, outputs: int) -> Any:
    """Calls a kernel; on a mesh, which the compiler cannot divide it over, once a device."""
    if get_abstract_mesh().size <= 1:
        return call(*inputs)
    rows, whole = mesh_axes(BATCH), PartitionSpec()
    specs = tuple(
        Drawn(whole, rows) if isinstance(x, Drawn) else rows if x.ndim > 1 else whole
        for x in inputs
    )
    return jax.shard_map(call, in_specs=specs, out_specs=(rows,) * outputs, check_vma=False)(
        *inputs
    )


def _call(body: Any, *inputs: Any, setting: Setting, outputs: tuple) -> Any:
    """Runs a program of the kernel for every `POSITIONS` positions of each row."""
    batch, length, features = inputs[0].shape
    own = math.gcd(length, POSITIONS)
    turn = math.gcd(own, max(1, ELEMENTS // features))

    def spec(x: Any) -> pl.BlockSpec:
        if x.ndim == 4:
            return pl.BlockSpec((None, None, *x.shape[2:]), lambda b, n: (b, n, 0, 0))
        if x.ndim == 3:
            return pl.BlockSpec((None, own, features), lambda b, n: (b, n, 0))
        if x.ndim == 2:
            return pl.BlockSpec((None, own), lambda b, n: (b, n))
        return pl.BlockSpec(x.shape, lambda b, n: (0,))

    outputs = tuple(  # of a device, whose rows are fewer than those of the batch
        jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in outputs
    )
    run = functools.partial(
        pl.pallas_call,
        functools.partial(body, setting=setting, turn=turn),
        grid=(batch, length // own),
        in_specs=jax.tree.map(spec, inputs),
        out_specs=[spec(x) for x in outputs],
        out_shape=list(outputs),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        name=body.__name__.strip("_"),
    )
    return tuple(jax.lax.platform_dependent(*inputs, cuda=run(), default=run(interpret=True)))


def _of_program(drawn: Drawn) -> Drawn:
    """The words, and the number of the program's row, read from their references."""
    words = tuple(drawn.words[n] for n in range(3))
    return Drawn(words, drawn.rows_B[pl.program_id(0)].reshape(1))


def _dropped(x_lD: Array, drawn: Drawn, begin: Any, rate: float) -> Array:
    """Dropout of the positions of one row from `begin` on."""
    if rate == 0.0:
        return x_lD
    length, features = x_lD.shape
    bits_1l = position_bits(drawn.words, drawn.rows_B, begin, length)
    keep_1lD = kept(bits_1l, drawn.words, features, rate)
    return jnp.where(keep_1lD.reshape(x_lD.shape), x_lD / (1.0 - rate), 0.0)


def _residual_kernel(
    x_ref: Any, y_ref: Any, scale_ref: Any, bias_ref: Any, drawn: Drawn, *out_refs: Any, **static
) -> None:
    """Some positions of a row: sum, mean, deviation and norm."""
    normed_ref, sum_ref, mean_ref, rate_ref = out_refs
    setting, turn = static["setting"], static["turn"]
    own = x_ref.shape[0]
    begin, drawn = pl.program_id(1) * own, _of_program(drawn)
    scale_1D, bias_1D = scale_ref[...][None], bias_ref[...][None]

    def write(number: Any, carry: None) -> None:
        at = pl.ds(number * turn, turn)
        y_lD = _dropped(
            y_ref[at, :].astype(jnp.float32), drawn, begin + number * turn, setting.rate
        )
        sum_lD = (x_ref[at, :].astype(jnp.float32) + y_lD).astype(sum_ref.dtype)
        sum_ref[at, :] = sum_lD
        sum_lD = sum_lD.astype(jnp.float32)
        mean_l = sum_lD.mean(axis=1)
        centered_lD = sum_lD - mean_l[:, None]
        rate_l = jax.lax.rsqrt((centered_lD * centered_lD).mean(axis=1) + setting.epsilon)
        mean_ref[at], rate_ref[at] = mean_l, rate_l
        normed_lD = centered_lD * rate_l[:, None] * scale_1D + bias_1D
        normed_ref[at, :] = normed_lD.astype(normed_ref.dtype)

    jax.lax.fori_loop(0, own // turn, write, None)


def _residual_gradient_kernel(
    gradient_ref: Any,
    sum_ref: Any,
    mean_ref: Any,
    rate_ref: Any,
    scale_ref: Any,
    drawn: Drawn,
    *out_refs: Any,
    **static: Any,
) -> None:
    """Some positions of a row: gradients of x and y, and their share of those of gain and bias."""
    x_gradient_ref, y_gradient_ref, parts_ref = out_refs
    setting, turn = static["setting"], static["turn"]
    own, features = sum_ref.shape
    begin, drawn = pl.program_id(1) * own, _of_program(drawn)
    scale_1D = scale_ref[...][None]

    def add(number: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        at = pl.ds(number * turn, turn)
        gradient_lD, rate_l1 = gradient_ref[at, :].astype(jnp.float32), rate_ref[at][:, None]
        normed_lD = (sum_ref[at, :].astype(jnp.float32) - mean_ref[at][:, None]) * rate_l1
        inner_lD = gradient_lD * scale_1D
        along_l1 = (inner_lD * normed_lD).mean(axis=1)[:, None]
        inner_lD = inner_lD - inner_lD.mean(axis=1)[:, None] - normed_lD * along_l1
        x_gradient_lD = (inner_lD * rate_l1).astype(x_gradient_ref.dtype)
        x_gradient_ref[at, :] = x_gradient_lD
        y_gradient_lD = _dropped(
            x_gradient_lD.astype(jnp.float32), drawn, begin + number * turn, setting.rate
        )
        y_gradient_ref[at, :] = y_gradient_lD.astype(y_gradient_ref.dtype)
        scale_part_D, bias_part_D = carry
        return scale_part_D + (gradient_lD * normed_lD).sum(axis=0), bias_part_D + gradient_lD.sum(
            axis=0
        )

    zeros_D = jnp.zeros((features,), jnp.float32)
    parts = jax.lax.fori_loop(0, own // turn, add, (zeros_D, zeros_D))
    for n, part_D in enumerate(parts):
        parts_ref[n, :] = part_D
