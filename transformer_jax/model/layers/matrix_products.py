"""Products of activations with weights, and the order of factors that a CPU multiplies fastest.

Dimension key
  N positions of all rows   I input features   O output features
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike


def sum_type(dtype: DTypeLike) -> jnp.dtype:
    """The type of sums over numbers of this type: float32, or a wider one."""
    return jnp.promote_types(dtype, jnp.float32)


def settled(x: Array) -> Array:
    """Returns x. On a CPU it is stored as it is, before anything that uses it.

    Otherwise XLA may compute x once more for each transposed use, and write it column by column.
    """
    return jax.lax.platform_dependent(
        x, cpu=jax.lax.optimization_barrier, default=lambda same: same
    )


@jax.custom_vjp
def stored(x: Array, opaque: Array) -> Array:
    """Returns x. On a CPU it and its gradient are stored as they are, before anything uses them.

    Unlike `settled`, this also survives XLA's fusion of operations. A sum of
    residuals needs that. For each use XLA would compute it again, from the outputs of all layers:
    without it a training step of 6 + 6 layers takes 1.19 times as long (docs/speed.md).

    Args:
      x: any array.
      opaque: a boolean scalar whose value XLA does not know. The result does not depend on
        it.
    """
    return jax.lax.platform_dependent(x, opaque, cpu=_through_loop, default=lambda x, _: x)


def _through_loop(x: Array, opaque: Array) -> Array:
    """x through a loop that at most copies it once; XLA does not fuse across loops."""

    def copied(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        again, x = carry
        return jnp.zeros_like(again), jnp.where(again, x, 0)

    return jax.lax.while_loop(lambda carry: carry[0], copied, (opaque, x))[1]


stored.defvjp(
    lambda x, opaque: (stored(x, opaque), opaque),
    lambda opaque, gradient: (stored(gradient, opaque), None),
)


def einsum(axes: str, left: Array, right: Array) -> Array:
    """`jnp.einsum(axes, left, right)` in the operands' type, and gradients in it too.

    XLA for a CPU multiplies bfloat16 as float32 unless the result is float32. So on a CPU the
    result is rounded afterwards: with AMX a training step takes 330 ms instead of 470
    (docs/speed.md).

    Args:
      axes: for example "BHLM,BMHV->BLHV"; each letter is in at least two of the three arrays.
      left: an array.
      right: another, of the same type.
    """
    narrow = jnp.finfo(left.dtype).bits < 32
    return _narrow_einsum(axes, left, right) if narrow else jnp.einsum(axes, left, right)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _narrow_einsum(axes: str, left: Array, right: Array) -> Array:
    plain = functools.partial(jnp.einsum, axes)
    rounded = functools.partial(_rounded_einsum, axes)
    return jax.lax.platform_dependent(left, right, cpu=rounded, default=plain)


def _rounded_einsum(axes: str, left: Array, right: Array) -> Array:
    """The einsum as a product with a float32 result.

    XLA for a CPU has no fast product of this kind if it joins a transpose of the left factor or of
    the result with it. So both are stored in the order of the product, by a barrier.
    """
    operands, result = axes.split("->")
    of_left, of_right = operands.split(",")
    batch = "".join(axis for axis in of_left if axis in of_right and axis in result)
    rows = "".join(axis for axis in of_left if axis not in of_right)
    contracted = "".join(axis for axis in of_left if axis not in result)
    columns = "".join(axis for axis in of_right if axis not in of_left)
    barrier = jax.lax.optimization_barrier
    if of_left != batch + rows + contracted:
        left = barrier(jnp.einsum(f"{of_left}->{batch}{rows}{contracted}", left))
    wide = jnp.einsum(
        f"{batch}{rows}{contracted},{of_right}->{batch}{rows}{columns}",
        left,
        right,
        preferred_element_type=jnp.float32,
    )
    if result != batch + rows + columns:
        wide = jnp.einsum(f"{batch}{rows}{columns}->{result}", barrier(wide))
    return wide.astype(left.dtype)


def _narrow_backward(
    axes: str, operands: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    left, right = operands
    of_left, of_right = transposed_axes(axes)
    return _narrow_einsum(of_left, gradient, right), _narrow_einsum(of_right, left, gradient)


_narrow_einsum.defvjp(
    lambda axes, left, right: (_narrow_einsum(axes, left, right), (left, right)), _narrow_backward
)


def transposed_axes(axes: str) -> tuple[str, str]:
    """The axes of the gradients: (gradient, right) -> left, and (left, gradient) -> right."""
    operands, result = axes.split("->")
    left, right = operands.split(",")
    return f"{result},{right}->{left}", f"{left},{result}->{right}"


def operand_type(weights: Array, dtype: DTypeLike) -> jnp.dtype:
    """The type of a product's operands: `dtype`, or that of narrower weights (decode.weights)."""
    own = weights.dtype
    wanted = jnp.dtype(dtype)
    return own if jnp.finfo(own).bits < jnp.finfo(wanted).bits else wanted


def product(axes: str, x: Array, weights: Array, dtype: DTypeLike) -> Array:
    """`einsum(axes, x, weights)` in `dtype`, for weights whose first axes are the last axes of x.

    Args:
      axes: for example "BLD,DF->BLF", or "BLHV,HVD->BLD".
      x: activations; their first axes are positions.
      weights: the contracted axes, then those of the output. If they are stored in a narrower type
        than `dtype`, x is rounded to it, and only the result has `dtype`; this has no gradient.
      dtype: the type of the result, and usually of the operands.
    """
    operand = operand_type(weights, dtype)
    if operand == dtype:
        return _product(axes, x.astype(dtype), weights.astype(dtype))
    # Settled first, so that XLA for a CPU joins no transpose of x with the product.
    x = settled(x.astype(operand))
    return jnp.einsum(axes, x, weights, preferred_element_type=dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(axes: str, x: Array, weights: Array) -> Array:
    """Only the gradient of the weights is special, and only on a CPU: see `weight_gradient`."""
    return einsum(axes, x, weights)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # traced once for all layers
def _gradients(axes: str, x: Array, weights: Array, gradient: Array) -> tuple[Array, Array]:
    of_x, of_weights = transposed_axes(axes)

    def plain(x: Array, weights: Array, gradient: Array) -> tuple[Array, Array]:
        return einsum(of_x, gradient, weights), einsum(of_weights, x, gradient)

    def on_cpu(x: Array, weights: Array, gradient: Array) -> tuple[Array, Array]:
        # Stored first. Otherwise XLA computes both once more for each transposed use.
        x, gradient = jax.lax.optimization_barrier((x, gradient))
        contracted = (x.ndim + weights.ndim - gradient.ndim) // 2  # axes of x and of the weights
        x_NI = x.reshape(-1, math.prod(weights.shape[:contracted]))
        gradient_NO = gradient.reshape(x_NI.shape[0], -1)
        weights_gradient = weight_gradient(x_NI, gradient_NO).reshape(weights.shape)
        return einsum(of_x, gradient, weights), weights_gradient

    return jax.lax.platform_dependent(x, weights, gradient, cpu=on_cpu, default=plain)


_product.defvjp(
    lambda axes, x, weights: (einsum(axes, x, weights), (x, weights)),
    lambda axes, operands, gradient: _gradients(axes, operands[0], operands[1], gradient),
)


@jax.custom_vjp
def add_bias(x: Array, bias: Array) -> Array:
    """x + bias in the type of x, for a bias `[outputs]` and x `[..., outputs]`.

    Its gradient is a sum over all positions in float32. The sum that JAX derives rounds to the type
    of x after each addition: in bfloat16 it is wrong in the first digit, and slow on a CPU.
    """
    return x + bias.astype(x.dtype)


def _bias_backward(bias: Array, gradient: Array) -> tuple[Array, Array]:
    wide = gradient.astype(sum_type(gradient.dtype))
    return gradient, wide.sum(tuple(range(gradient.ndim - bias.ndim))).astype(bias.dtype)


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), bias), _bias_backward)


def weight_gradient(x_NI: Array, gradient_NO: Array) -> Array:
    """x^T g `[inputs, outputs]`, where the smaller factor is transposed before the product.

    XLA's products on a CPU read a transposed left factor slowly. One that is transposed first makes
    a training step in float32 1.02 to 1.06 times as fast with JAX 0.12 (docs/speed.md).
    """

    def transposed(x: Array) -> Array:
        return jax.lax.optimization_barrier(x.T)

    if x_NI.shape[1] <= gradient_NO.shape[1]:
        return einsum("IN,NO->IO", transposed(x_NI), gradient_NO)
    return einsum("ON,NI->OI", transposed(gradient_NO), x_NI).T
