"""Dropout whose mask is a hash of (key, row, position, feature), and noise of the same kind.

A mask belongs to a row of the global batch, so it is the same on one device or many, and in any
micro-batch. It is a counter hash instead of jax.random.bernoulli, because on a CPU Threefry's 20
rounds per element take much of a training step.

Dimension key
  B rows   L length   D features   H heads   M keys
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.random import define_prng_impl

Drop = Callable[[Array], Array]  # dropout with a mask of its own


def mix(bits: Array) -> Array:
    """A bijection of uint32: one input bit flipped flips each output bit half of the time.

    Source: C. Wellons, "Prospecting for Hash Functions" (2018), lowbias32.
    """
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def _folded(words: Array, data: Array | int) -> Array:
    """The words `[2]` of a key, changed by one number, or by each of `[..., 1]`.

    It is linear, and leaves the mixing to `_bits`. `mix` uses its input several times, and XLA's
    code for a fused chain of them grows exponentially: with `mix` here, a training step took a
    minute to compile on a CPU.
    """
    factors = jnp.array([0x9E3779B1, 0x85EBCA77], jnp.uint32)
    return words * factors + jnp.asarray(data).astype(jnp.uint32)


def _bits(words: Array, width: int, shape: tuple[int, ...]) -> Array:
    """Random uint32 of this shape, fewer than 2^32 of them."""
    assert width == 32, "masks are drawn from 32 bits"
    counter = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return mix(words[0] + counter * jnp.uint32(0xC2B2AE3D)) + words[1]


HASH = define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: _folded(jnp.zeros(2, jnp.uint32), seed),
    split=lambda words, shape: _folded(words, jnp.arange(math.prod(shape)).reshape(*shape, 1)),
    random_bits=_bits,
    fold_in=_folded,
    name="hash",
    tag="hash",
)


def hashed(key: Array) -> Array:
    """A key whose descendants cost a few integer operations each, from any key of two words."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=HASH)


class NoiseSource(NamedTuple):
    """What dropout masks and noise are computed from."""

    bits: Any  # uint32 [3], random: for rows, positions and features
    rows_B: Any  # int [rows], numbers of the rows in the global batch


def noise_bits(key: Array) -> Array:
    """Random bits from a key: uint32 `[3]`."""
    return jax.random.bits(key, (3,), jnp.uint32)


def noise_of(module: nn.Module, rows_B: Array) -> NoiseSource:
    """New noise for rows of the global batch `[rows]`, from the module's own "dropout" key."""
    return NoiseSource(noise_bits(module.make_rng("dropout")), rows_B)


def noise_for(module: nn.Module, rate: float, rows_B: Array | None) -> NoiseSource | None:
    """New noise for dropout at this rate; None if nothing is to be dropped.

    Args:
      module: see `noise_of`.
      rate: probability that an entry is dropped.
      rows_B: numbers of the rows in the global batch `[rows]`; None outside training.
    """
    return None if rows_B is None or rate == 0.0 else noise_of(module, rows_B)


def keep_from(begin: Any, shape: tuple[int, ...], noise_source: NoiseSource, rate: float) -> Array:
    """Booleans `[rows, length, features]`, each True with probability 1 - rate.

    Args:
      begin: number of the first position: 0 for whole rows.
      shape: numbers of positions and features.
      noise_source: random bits, and the rows' numbers; other bits give an independent mask.
      rate: probability of False, 0 <= rate < 1.
    """
    length, features = shape
    position_BL = position_bits(begin, length, noise_source)
    feature_D = mix(jnp.arange(features, dtype=jnp.uint32) ^ noise_source.bits[2])
    return mix(position_BL[:, :, None] ^ feature_D) >= jnp.uint32(round(rate * 2**32))


def position_bits(begin: Any, length: int, noise_source: NoiseSource) -> Array:
    """Random bits of the positions from number `begin` on, uint32 `[rows, length]`."""
    row_B = mix(noise_source.rows_B.astype(jnp.uint32) ^ noise_source.bits[0])
    positions_L = jnp.arange(length, dtype=jnp.uint32) + jnp.uint32(begin)
    return mix(row_B[:, None] + mix(positions_L ^ noise_source.bits[1]))


def uniform_noise(noise_source: NoiseSource, shape: tuple[int, ...]) -> Array:
    """Numbers above 0 and below 1 for weights of attention, float32 `[rows, heads, length, keys]`.

    A number depends on the random bits, the row, the head, the position and the key alone.

    Args:
      noise_source: random bits, and the rows' numbers.
      shape: of the result.
    """
    _, heads, length, keys = shape
    position_BL = position_bits(0, length, noise_source)
    head_H = mix(jnp.arange(heads, dtype=jnp.uint32) ^ noise_source.bits[2])
    key_HM = mix(head_H[:, None] + jnp.arange(keys, dtype=jnp.uint32))
    bits_BHLM = mix(position_BL[:, None, :, None] ^ key_HM[:, None, :])
    return uniform(bits_BHLM)


def uniform(bits: Array) -> Array:
    """Numbers above 0 and below 1 from random bits (uint32), float32.

    Of 23 bits and a half: float32 holds each of these numbers exactly, and none of them is 0 or 1.
    """
    return ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


def standard_gumbel(uniform: Array) -> Array:
    """Noise of the standard Gumbel distribution, from numbers above 0 and below 1."""
    return -jnp.log(-jnp.log(uniform))


def dropped(x: Array, keep: Array, rate: float) -> Array:
    """x / (1 - rate) where the mask is True, and 0 elsewhere."""
    return jnp.where(keep, x / (1.0 - rate), 0.0)


def kept(x: Array) -> Array:
    """Returns x: dropout that drops nothing."""
    return x


def weight_dropout(module: nn.Module, rate: float, rows_B: Array | None) -> Drop:
    """Dropout of attention weights `[rows, heads, length, keys]`.

    Two calls of the result have the same mask. The arguments are those of `noise_for`.
    """
    if (noise_source := noise_for(module, rate, rows_B)) is None:
        return kept

    def drop(weights_BHLM: Array) -> Array:
        keep_BHLM = uniform_noise(noise_source, weights_BHLM.shape) >= rate
        return dropped(weights_BHLM, keep_BHLM, rate)

    return drop


class Dropout(nn.Module):
    """Zeroes a share `rate` of entries, divides the rest by 1 - rate (Srivastava et al. 2014).

    The key is the module's own "dropout" key, which Flax derives from the layer's path.
    """

    rate: float

    def __call__(self, x_BLD: Array, noise_source: NoiseSource | None) -> Array:
        """Applies the mask to x `[rows, length, features]`; without one, returns x."""
        if noise_source is None:
            return x_BLD
        return dropped(x_BLD, keep_from(0, x_BLD.shape[1:], noise_source, self.rate), self.rate)

    @nn.nowrap
    def noise_source(self, rows_B: Array | None) -> NoiseSource | None:
        """What the mask of rows `[rows]` is computed from; None if nothing is to be dropped."""
        return noise_for(self, self.rate, rows_B)
