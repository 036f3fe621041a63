"""Products of activations with weights, and the order of factors that a CPU multiplies fastest.

Dimension key
  N positions of all rows   I input features   O output features
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array


def settled(x: Array) -> Array:
    """Returns x. On a CPU it is stored as it is, before anything that uses it.

    Otherwise XLA may compute x once more for each transposed use, and write it column by column.
    """
    return jax.lax.platform_dependent(
        x, cpu=jax.lax.optimization_barrier, default=lambda same: same
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(axes: str, x: Array, weights: Array) -> Array:
    """`jnp.einsum(axes, x, weights)`, for weights whose first axes are the last axes of x.

    Only the gradient of the weights is special, and only on a CPU: see `weight_gradient`.

    Args:
      axes: for example "BLD,DF->BLF", or "BLHV,HVD->BLD".
      x: activations; their first axes are positions.
      weights: the contracted axes, then those of the output.
    """
    return jnp.einsum(axes, x, weights)


def _forward(axes: str, x: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
    return jnp.einsum(axes, x, weights), (x, weights)


def _backward(axes: str, operands: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weights = operands
    return _gradients(axes, x, weights, gradient)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # traced once for all layers
def _gradients(axes: str, x: Array, weights: Array, gradient: Array) -> tuple[Array, Array]:
    einsum = functools.partial(jnp.einsum, axes)

    def of_x(x: Array, weights: Array, gradient: Array) -> Array:
        (x_gradient,) = jax.linear_transpose(lambda x: einsum(x, weights), x)(gradient)
        return x_gradient

    def plain(x: Array, weights: Array, gradient: Array) -> tuple[Array, Array]:
        (of_weights,) = jax.linear_transpose(functools.partial(einsum, x), weights)(gradient)
        return of_x(x, weights, gradient), of_weights

    def on_cpu(x: Array, weights: Array, gradient: Array) -> tuple[Array, Array]:
        # Stored first. Otherwise XLA computes both once more for each transposed use.
        x, gradient = jax.lax.optimization_barrier((x, gradient))
        contracted = (x.ndim + weights.ndim - gradient.ndim) // 2  # axes of x and of the weights
        x_NI = x.reshape(-1, math.prod(weights.shape[:contracted]))
        gradient_NO = gradient.reshape(x_NI.shape[0], -1)
        of_weights = weight_gradient(x_NI, gradient_NO).reshape(weights.shape)
        return of_x(x, weights, gradient), of_weights

    return jax.lax.platform_dependent(x, weights, gradient, cpu=on_cpu, default=plain)


product.defvjp(_forward, _backward)


@jax.custom_vjp
def add_bias(x: Array, bias: Array) -> Array:
    """x + bias in the type of x, for a bias `[outputs]` and x `[..., outputs]`.

    Its gradient is a sum over all positions in float32. The sum that JAX derives rounds to the type
    of x after each addition: in bfloat16 it is wrong in the first digit, and slow on a CPU.
    """
    return x + bias.astype(x.dtype)


def _bias_backward(bias: Array, gradient: Array) -> tuple[Array, Array]:
    wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32))
    return gradient, wide.sum(tuple(range(gradient.ndim - bias.ndim))).astype(bias.dtype)


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), bias), _bias_backward)


def weight_gradient(x_NI: Array, gradient_NO: Array) -> Array:
    """x^T g `[inputs, outputs]`, where the smaller factor is transposed before the product.

    XLA's products on a CPU read a transposed left factor slowly. One that is transposed first makes
    a training step 1.1 times as fast (docs/speed.md).
    """

    def transposed(x: Array) -> Array:
        return jax.lax.optimization_barrier(x.T)

    if x_NI.shape[1] <= gradient_NO.shape[1]:
        return transposed(x_NI) @ gradient_NO
    return (transposed(gradient_NO) @ x_NI).T
