"""Norms of a position's features.

A new one is a module here and its line in `NORMS`, which makes it a value of model.norm_kind.

Dimension key
  B batch   L length   D d_model
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import named
from transformer_jax.model.layers.matrix_products import sum_type

# As in the authors' tensor2tensor; the paper gives no value.
DEFAULT_EPSILON = ModelConfig.norm_epsilon
SHORTEST = 1e-6  # `unit` divides shorter vectors by this length


def layer_norm(
    x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float = DEFAULT_EPSILON
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the features, in float32.

    Args:
      x_BLD: `[batch, length, d_model]`.
      scale_D: gain `[d_model]`.
      bias_D: `[d_model]`.
      epsilon: added to the variance.

    Returns:
      float32 (float64 if x is float64) `[batch, length, d_model]`.

    Source: Ba et al. 2016, equation 4.
    """
    if jnp.finfo(x_BLD.dtype).bits < 32:
        return narrow_layer_norm(x_BLD, scale_D, bias_D, epsilon)
    mean_BL1, inverse_std_BL1 = _mean_and_inverse_std(x_BLD, epsilon)
    return (x_BLD - mean_BL1) * inverse_std_BL1 * scale_D + bias_D


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def narrow_layer_norm(x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float) -> Array:
    """The layer norm of x in a narrow type, such as bfloat16; the same arguments and result.

    The backward pass keeps the narrow x, and mean and 1 / deviation of each position. The gradient
    that JAX derives keeps x - mean in float32: compiled for an H200, a step of the base model would
    take at least 30.8 ms instead of 29.7 (docs/speed.md, not measured).
    """
    return _narrow_forward(x_BLD, scale_D, bias_D, epsilon)[0]


def _narrow_forward(
    x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float
) -> tuple[Array, tuple]:
    # XLA may drop the rounding of x, and keep a wider array for the backward pass after all.
    x_BLD = jax.lax.optimization_barrier(x_BLD)
    mean_BL1, inverse_std_BL1 = _mean_and_inverse_std(x_BLD, epsilon)
    normed_BLD = (x_BLD - mean_BL1) * inverse_std_BL1
    return normed_BLD * scale_D + bias_D, (x_BLD, mean_BL1, inverse_std_BL1, scale_D)


def _narrow_backward(
    epsilon: float, kept: tuple, gradient_BLD: Array
) -> tuple[Array, Array, Array]:
    x_BLD, mean_BL1, inverse_std_BL1, scale_D = kept
    normed_BLD = (x_BLD - mean_BL1) * inverse_std_BL1
    inner_BLD = gradient_BLD * scale_D
    along_BL1 = (inner_BLD * normed_BLD).mean(-1, keepdims=True)
    inner_BLD = inner_BLD - inner_BLD.mean(-1, keepdims=True) - normed_BLD * along_BL1
    x_gradient_BLD = jax.lax.optimization_barrier((inner_BLD * inverse_std_BL1).astype(x_BLD.dtype))
    axes = tuple(range(x_BLD.ndim - 1))
    return x_gradient_BLD, (gradient_BLD * normed_BLD).sum(axes), gradient_BLD.sum(axes)


narrow_layer_norm.defvjp(_narrow_forward, _narrow_backward)


def _mean_and_inverse_std(x_BLD: Array, epsilon: float) -> tuple[Array, Array]:
    """Mean and 1 / deviation of the features, in float32 or wider, `[batch, length, 1]`."""
    x_BLD = x_BLD.astype(sum_type(x_BLD.dtype))
    mean_BL1 = x_BLD.mean(-1, keepdims=True)
    variance_BL1 = jnp.square(x_BLD - mean_BL1).mean(-1, keepdims=True)
    return mean_BL1, jax.lax.rsqrt(variance_BL1 + epsilon)


class LayerNorm(nn.Module):
    """Layer normalization with a learned gain and bias (Ba et al. 2016)."""

    epsilon: float = DEFAULT_EPSILON

    @nn.compact
    def __call__(self, x_BLD: Array, function: Callable[..., Array] = layer_norm) -> Array:
        """`function(x, gain, bias, epsilon)`: float32 `[batch, length, d_model]`."""
        features = (x_BLD.shape[-1],)
        scale_D = self.param("scale", named(nn.initializers.ones, None), features)
        bias_D = self.param("bias", named(nn.initializers.zeros, None), features)
        return function(x_BLD, scale_D, bias_D, self.epsilon)


def unit(x: Array) -> Array:
    """Vectors of length 1 in the same directions, in x's type; 0 stays 0.

    Args:
      x: any number of axes before the features.
    """
    wide = x.astype(sum_type(x.dtype))
    # The root of 0 has no gradient, so the sum is kept above 0.
    squares = jnp.maximum(jnp.square(wide).sum(-1, keepdims=True), SHORTEST**2)
    return (wide * jax.lax.rsqrt(squares)).astype(x.dtype)


class ScaleNorm(nn.Module):
    """g x / |x|, with one learned length g for all positions (Nguyen and Salazar 2019)."""

    epsilon: float = DEFAULT_EPSILON

    @nn.compact
    def __call__(self, x_BLD: Array) -> Array:
        """float32 `[batch, length, d_model]`; vectors shorter than epsilon are divided by it."""
        features = x_BLD.shape[-1]
        # The length that layer normalization gives a vector at first.
        gain = self.param("scale", named(nn.initializers.constant(features**0.5)), ())
        wide_BLD = x_BLD.astype(sum_type(x_BLD.dtype))
        squares_BL1 = jnp.square(wide_BLD).sum(-1, keepdims=True)
        return gain * wide_BLD * jax.lax.rsqrt(jnp.maximum(squares_BL1, self.epsilon**2))


def rms_norm(x: Array, epsilon: float) -> Array:
    """x / sqrt(mean(x^2) + epsilon) over the last axis, float32 or wider.

    Source: Zhang and Sennrich 2019, equation 4.
    """
    wide = x.astype(sum_type(x.dtype))
    return wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon)


class RMSNorm(nn.Module):
    """`rms_norm` times a learned gain: no mean is subtracted and nothing is added."""

    epsilon: float = DEFAULT_EPSILON

    @nn.compact
    def __call__(self, x_BLD: Array) -> Array:
        """float32 `[batch, length, d_model]`."""
        scale_D = self.param("scale", named(nn.initializers.ones, None), (x_BLD.shape[-1],))
        return rms_norm(x_BLD, self.epsilon) * scale_D


NORMS: dict[str, type[nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm, "scale": ScaleNorm}
