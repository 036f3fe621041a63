"""LayerNorm(x + dropout(y)) in one kernel forward and one backward, for a GPU.

XLA makes about nine kernels of it, which write the dropout mask and intermediate sums to memory.
Here a program reads a few positions of x and y, computes the mask from its hash, and writes the sum
and its norm. The backward pass computes the mask again. No two programs write to the same place, so
the result is deterministic. The kernels are written in Pallas, as in fused_attention.py.

Dimension key
  B batch   L length   D d_model   P programs of a row   l positions of one turn of a program

A program is one instance of the kernel, a turn one iteration of its loop.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import PartitionSpec, get_abstract_mesh

from transformer_jax.model.axes import BATCH, mesh_axes
from transformer_jax.model.layers.dropout import NoiseSource, dropped, keep_from

POSITIONS = 32  # positions that a program computes
ELEMENTS = 2_048  # elements of x that a program holds at once


class Setting(NamedTuple):
    """What the kernels depend on, except arrays."""

    rate: float  # dropout's
    epsilon: float  # the norm's


class Summands(NamedTuple):
    """The input of a residual, or its gradients."""

    x: Any  # [B, L, D]
    y: Any  # [B, L, D], the output of the sub-layer


class Norm(NamedTuple):
    """The parameters of a layer norm, or their gradients."""

    scale: Any  # [D]
    bias: Any  # [D]


class SavedSum(NamedTuple):
    """What the backward pass needs of the sum."""

    total: Any  # [B, L, D]
    mean: Any  # float32 [B, L]
    inverse_std: Any  # float32 [B, L]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def fused_residual(summands: Summands, norm: Norm, noise: NoiseSource, setting: Setting) -> Array:
    """LayerNorm(x + dropout(y)), `[batch, length, d_model]` in x's type.

    The sum is rounded to x's type; everything else is float32.

    Args:
      summands: x and y, whose types may differ.
      norm: float32 gain and bias.
      noise: of the dropout mask.
      setting: rate and epsilon.

    Source: Vaswani et al. 2017, sections 3.1 and 5.4; Ba et al. 2016, equation 4.
    """
    return _forward(summands, norm, noise, setting)[0]


def _forward(
    summands: Summands, norm: Norm, noise: NoiseSource, setting: Setting
) -> tuple[Array, tuple]:
    x_BLD = summands.x
    of_each = jax.ShapeDtypeStruct(x_BLD.shape[:2], jnp.float32)
    normed_BLD, found = _on_each_device(
        functools.partial(_call, _residual_kernel, setting),
        (summands, norm, noise),
        (x_BLD, SavedSum(x_BLD, of_each, of_each)),
    )
    zero_of_y = jnp.zeros((), summands.y.dtype)  # carries the type of y
    return normed_BLD, (found, norm, noise, zero_of_y)


def _backward(setting: Setting, saved: tuple, gradient_BLD: Array) -> tuple:
    found, norm, noise, zero_of_y = saved
    batch, length, features = gradient_BLD.shape
    programs = length // math.gcd(length, POSITIONS)
    of_y = jax.ShapeDtypeStruct(gradient_BLD.shape, zero_of_y.dtype)
    part_BP1D = jax.ShapeDtypeStruct((batch, programs, 1, features), jnp.float32)
    summands, parts = _on_each_device(
        functools.partial(_call, _residual_gradient_kernel, setting),
        (gradient_BLD, found, norm, noise),
        (Summands(found.total, of_y), Norm(part_BP1D, part_BP1D)),
    )
    nothing: Any = None  # bits and numbers are integers, which have no gradient
    return summands, Norm(parts.scale.sum((0, 1, 2)), parts.bias.sum((0, 1, 2))), nothing


fused_residual.defvjp(_forward, _backward)


def _on_each_device(call: Callable[..., Any], inputs: tuple, outputs: tuple) -> Any:
    """`call(outputs, inputs)`; on a mesh, each device calls it for its own rows.

    The compiler cannot divide a kernel. The last two inputs are a Norm and a NoiseSource.
    """
    if get_abstract_mesh().size <= 1:
        return call(outputs, inputs)
    rows = mesh_axes(BATCH)
    whole = PartitionSpec()
    specs = (rows,) * (len(inputs) - 2) + (whole, NoiseSource(whole, rows))
    run = functools.partial(call, outputs)
    return jax.shard_map(run, in_specs=(specs,), out_specs=rows, check_vma=False)(inputs)


def _call(body: Callable[..., None], setting: Setting, outputs: tuple, inputs: tuple) -> Any:
    """Runs a program of the kernel for every `POSITIONS` positions of each row.

    Args:
      body: one of the two kernels below.
      setting: rate and epsilon.
      outputs: arrays or ShapeDtypeStructs of the outputs' shapes and types, for the whole batch.
      inputs: trees of arrays, of this device's rows.
    """
    batch, length, features = jax.tree.leaves(inputs)[0].shape  # x, or its gradient
    own = math.gcd(length, POSITIONS)

    def spec(x: Any) -> pl.BlockSpec:
        if x.ndim == 1:  # gain, bias, bits, numbers of rows
            return pl.BlockSpec(x.shape, lambda b, n: (0,))
        if x.ndim == 2:
            return pl.BlockSpec((None, own), lambda b, n: (b, n))
        if x.ndim == 3:
            return pl.BlockSpec((None, own, features), lambda b, n: (b, n, 0))
        return pl.BlockSpec((None, None, None, features), lambda b, n: (b, n, 0, 0))

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype), outputs)
    run = functools.partial(
        pl.pallas_call,
        functools.partial(body, setting=setting),
        grid=(batch, length // own),
        in_specs=jax.tree.map(spec, inputs),
        out_specs=jax.tree.map(spec, shapes),
        out_shape=shapes,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        name=body.__name__.strip("_"),
    )
    return jax.lax.platform_dependent(*inputs, cuda=run(), default=run(interpret=True))


# The kernels, which see references to arrays -----------------------------------------------------


def _residual_kernel(
    summands: Summands,
    norm: Norm,
    noise: NoiseSource,
    normed_ref: Any,
    found: SavedSum,
    *,
    setting: Setting,
) -> None:
    """Writes some positions of a row: the sum, its mean, 1 / deviation, and the normalized sum."""
    scale_1D, bias_1D = norm.scale[...][None], norm.bias[...][None]
    drop = _dropout(noise, summands.x.shape[0], setting.rate)

    def write(at: Any, begin: Any, carry: None) -> None:
        y_lD = drop(summands.y[at, :].astype(jnp.float32), begin)
        sum_lD = (summands.x[at, :].astype(jnp.float32) + y_lD).astype(found.total.dtype)
        found.total[at, :] = sum_lD
        sum_lD = sum_lD.astype(jnp.float32)
        mean_l = sum_lD.mean(axis=1)
        centered_lD = sum_lD - mean_l[:, None]
        inverse_std_l = jax.lax.rsqrt((centered_lD * centered_lD).mean(axis=1) + setting.epsilon)
        found.mean[at], found.inverse_std[at] = mean_l, inverse_std_l
        normed_lD = centered_lD * inverse_std_l[:, None] * scale_1D + bias_1D
        normed_ref[at, :] = normed_lD.astype(normed_ref.dtype)

    _over_turns(summands.x.shape, write, None)


def _residual_gradient_kernel(
    gradient_ref: Any,
    found: SavedSum,
    norm: Norm,
    noise: NoiseSource,
    *result_refs: Any,
    setting: Setting,
) -> None:
    """Some positions of a row: gradients of x and y, and their part of those of gain and bias."""
    summands, parts = result_refs
    scale_1D = norm.scale[...][None]
    drop = _dropout(noise, gradient_ref.shape[0], setting.rate)

    def add(at: Any, begin: Any, carry: Norm) -> Norm:
        gradient_lD = gradient_ref[at, :].astype(jnp.float32)
        inverse_std_l1, mean_l1 = found.inverse_std[at][:, None], found.mean[at][:, None]
        normed_lD = (found.total[at, :].astype(jnp.float32) - mean_l1) * inverse_std_l1
        # With g = gradient * scale: (g - mean(g) - normed * mean(g * normed)) / deviation.
        g_lD = gradient_lD * scale_1D
        along_l1 = (g_lD * normed_lD).mean(axis=1)[:, None]
        centered_lD = g_lD - g_lD.mean(axis=1)[:, None] - normed_lD * along_l1
        x_gradient_lD = (centered_lD * inverse_std_l1).astype(summands.x.dtype)
        summands.x[at, :] = x_gradient_lD
        y_gradient_lD = drop(x_gradient_lD.astype(jnp.float32), begin)
        summands.y[at, :] = y_gradient_lD.astype(summands.y.dtype)
        scale_part_D = carry.scale + (gradient_lD * normed_lD).sum(axis=0)
        return Norm(scale_part_D, carry.bias + gradient_lD.sum(axis=0))

    zeros_D = jnp.zeros(norm.scale.shape, jnp.float32)
    total = _over_turns(gradient_ref.shape, add, Norm(zeros_D, zeros_D))
    parts.scale[...], parts.bias[...] = total.scale, total.bias


def _over_turns(shape: tuple[int, int], add: Callable[..., Any], start: Any) -> Any:
    """Calls `add(slice of a turn's positions, the first of them, carry)` for each turn."""
    own, features = shape
    turn = math.gcd(own, max(1, ELEMENTS // features))
    return jax.lax.fori_loop(
        0, own // turn, lambda n, carry: add(pl.ds(n * turn, turn), n * turn, carry), start
    )


def _dropout(noise: NoiseSource, own: int, rate: float) -> Callable[[Array, Any], Array]:
    """A function from x `[l, D]` and its first position among the program's `own` positions."""
    if rate == 0.0:
        return lambda x_lD, begin: x_lD
    bits = tuple(noise.bits[n] for n in range(3))
    own_row = NoiseSource(bits, noise.rows_B[pl.program_id(0)].reshape(1))
    first = pl.program_id(1) * own

    def drop(x_lD: Array, begin: Any) -> Array:
        keep_1lD = keep_from(first + begin, x_lD.shape, own_row, rate)
        return dropped(x_lD, keep_1lD.reshape(x_lD.shape), rate)

    return drop
