"""Norms of a position's features.

Dimension key
  B batch   L length   D d_model
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.axes import named

# As in the authors' tensor2tensor; the paper gives no value.
DEFAULT_EPSILON = ModelConfig.norm_epsilon


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
    x_BLD = x_BLD.astype(jnp.promote_types(x_BLD.dtype, jnp.float32))
    centered_BLD = x_BLD - x_BLD.mean(-1, keepdims=True)
    variance_BL1 = jnp.square(centered_BLD).mean(-1, keepdims=True)
    return centered_BLD * jax.lax.rsqrt(variance_BL1 + epsilon) * scale_D + bias_D


class LayerNorm(nn.Module):
    """Layer normalization with a learned gain and bias (Ba et al. 2016)."""

    epsilon: float = DEFAULT_EPSILON

    @nn.compact
    def __call__(self, x_BLD: Array) -> Array:
        """float32 `[batch, length, d_model]`."""
        features = (x_BLD.shape[-1],)
        scale_D = self.param("scale", named(nn.initializers.ones, None), features)
        bias_D = self.param("bias", named(nn.initializers.zeros, None), features)
        return layer_norm(x_BLD, scale_D, bias_D, self.epsilon)


NORMS: dict[str, type[LayerNorm]] = {"layer": LayerNorm}
