"""Dropout whose mask is a hash of (key, row, position, feature).

A mask belongs to a row of the global batch, so it is the same on one device or many, and in any
micro-batch. It is a counter hash instead of jax.random.bernoulli, because on a CPU Threefry's 20
rounds per element take much of a training step.

Dimension key
  B rows   L length   D features
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


def mix(bits: Array) -> Array:
    """A bijection of uint32: one input bit flipped flips each output bit half of the time.

    Source: C. Wellons, "Prospecting for Hash Functions" (2018), lowbias32.
    """
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def keep_mask(key: Array, rows_B: Array, length: int, features: int, rate: float) -> Array:
    """Booleans `[rows, length, features]`, each True with probability 1 - rate.

    Args:
      key: a JAX random key; different keys give independent masks.
      rows_B: int `[rows]`, numbers of the rows in the global batch.
      length: positions in a row.
      features: features of a position.
      rate: probability of False, 0 <= rate < 1.
    """
    row_word, position_word, feature_word = jax.random.bits(key, (3,), jnp.uint32)
    row_B = mix(rows_B.astype(jnp.uint32) ^ row_word)
    position_BL = mix(row_B[:, None] + mix(jnp.arange(length, dtype=jnp.uint32) ^ position_word))
    feature_D = mix(jnp.arange(features, dtype=jnp.uint32) ^ feature_word)
    bits_BLD = mix(position_BL[:, :, None] ^ feature_D)
    return bits_BLD >= jnp.uint32(round(rate * 2**32))


class Dropout(nn.Module):
    """Zeroes a share `rate` of entries, divides the rest by 1 - rate (Srivastava et al. 2014).

    The key is the module's own "dropout" key, which Flax derives from the layer's path.
    """

    rate: float

    @nn.compact
    def __call__(self, x_BLD: Array, rows_B: Array | None) -> Array:
        """Applies dropout to x `[rows, length, features]`; without row numbers, returns x."""
        if rows_B is None or self.rate == 0.0:
            return x_BLD
        length, features = x_BLD.shape[1:]
        keep_BLD = keep_mask(self.make_rng("dropout"), rows_B, length, features, self.rate)
        return jnp.where(keep_BLD, x_BLD / (1.0 - self.rate), 0.0)
