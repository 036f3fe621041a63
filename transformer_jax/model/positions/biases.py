"""Position biases: what is added to the scores of self-attention, a number for each distance.

A new one is a function here and its line in `POSITION_BIASES`, which makes it a value of
model.positions.

Dimension key
  H heads   N buckets of distances
"""

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params

BUCKETS, FARTHEST = 32, 128  # as in Raffel et al. 2020; distances from FARTHEST on share a bucket


def slopes(num_heads: int) -> np.ndarray:
    """2^(-8 h / H) for head h = 1, 2, ..., H: float32 `[heads]`.

    If H is not a power of 2, the slopes of the next lower power come first, then every second slope
    of the next higher power.

    Source: Press et al. 2022, section 3, and the authors' code for other numbers of heads.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    own = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    above = 2.0 ** (-4.0 * np.arange(1, 2 * power + 1, 2) / power)
    return np.concatenate([own, above])[:num_heads].astype(np.float32)


def linear_bias(config: ModelConfig, params: Params, distance: Array, causal: bool) -> Array:
    """-slope |distance| of each head: float32 `[..., heads, query_len, key_len]`.

    Args:
      config: has the number of heads.
      params: not used.
      distance: position of the key minus that of the query, int `[..., query_len, key_len]`.
      causal: not used.

    Source: Press et al. 2022, section 3; symmetric in the encoder.
    """
    return -jnp.asarray(slopes(config.num_heads))[:, None, None] * abs(distance)[..., None, :, :]


@functools.cache
def first_distances(buckets: int, farthest: int) -> tuple[int, ...]:
    """The least distance of each bucket.

    The first half of the buckets has one distance each. The limits of the others grow by a constant
    factor, and the last bucket holds all distances from a little below `farthest` on.

    Source: Raffel et al. 2020, section 2.1, and the authors' code.
    """
    exact = buckets // 2
    wide = buckets - buckets // 2
    limits = list(range(exact))
    for n in range(wide):
        # The least d with log(d / exact) / log(farthest / exact) * wide >= n, in whole numbers.
        distance = max(exact, limits[-1])
        while distance**wide * exact**n < farthest**n * exact**wide:
            distance += 1
        limits.append(distance)
    return tuple(limits)


def bucket_of(distance: Array, causal: bool) -> Array:
    """The number of the distance's bucket, from 0 to BUCKETS - 1.

    Args:
      distance: position of the key minus that of the query, int, any shape.
      causal: True if keys are never after their query; otherwise keys before and after a query have
        half of the buckets each.
    """
    sides = 1 if causal else 2
    limits = jnp.asarray(first_distances(BUCKETS // sides, FARTHEST))
    far = -jnp.minimum(distance, 0) if causal else abs(distance)
    bucket = jnp.searchsorted(limits, far, side="right") - 1
    return bucket if causal else bucket + (distance > 0) * (BUCKETS // 2)


def bucket_bias(config: ModelConfig, params: Params, distance: Array, causal: bool) -> Array:
    """A learned number for each bucket of distances and head, the same in all layers of a stack.

    The scores themselves stay divided by sqrt(d_k); T5 leaves this out.

    Args:
      config: of the model.
      params: "buckets", float32 `[buckets, heads]`.
      distance: position of the key minus that of the query, int `[..., query_len, key_len]`.
      causal: see `bucket_of`.

    Returns:
      float32 `[..., heads, query_len, key_len]`.

    Source: Raffel et al. 2020, section 2.1.
    """
    return jnp.moveaxis(params["buckets"][bucket_of(distance, causal)], -1, -3)


def logarithmic_bias(config: ModelConfig, params: Params, distance: Array, causal: bool) -> Array:
    """-r1 log(1 + r2 |distance|) of each head, the same in all layers of a stack.

    r1 and r2 are learned, and positive as the softplus of the parameters. At first r1 is between 0
    and 2, and r2 between 0 and 1. The paper divides the bias by sqrt(d_k), like the score.

    Args:
      config: not used.
      params: "height", of r1, and "rate", of r2, float32 `[heads]`.
      distance: position of the key minus that of the query, int `[..., query_len, key_len]`.
      causal: not used.

    Returns:
      float32 `[..., heads, query_len, key_len]`.

    Source: Chi et al. 2022, "KERPLE", section 4, the logarithmic variant; initial values as in the
    authors' code. Symmetric in the encoder.
    """
    height, rate = (jax.nn.softplus(params[name])[:, None, None] for name in ("height", "rate"))
    return -height * jnp.log1p(rate * abs(distance)[..., None, :, :])


def _softplus_below(high: float) -> Callable[..., Array]:
    """An initializer of parameters whose softplus is uniform between 0.01 and `high`."""

    def drawn(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jnp.log(jnp.expm1(jax.random.uniform(key, shape, dtype, 0.01, high)))

    return drawn


class Bias(NamedTuple):
    """An entry of the registry."""

    # (config, parameters, distances, causal) -> the bias
    of: Callable[[ModelConfig, Params, Array, bool], Array]
    parameters: Mapping[str, Parameter] = MappingProxyType({})  # all layers of a stack share them
    sizes: Mapping[str, int] = MappingProxyType({})  # sizes of axes that only these parameters have
    looks_ahead: bool = True  # whether a decoder's bias distinguishes keys after their query


POSITION_BIASES: dict[str, Bias] = {
    "alibi": Bias(linear_bias),
    "t5": Bias(
        bucket_bias,
        {"buckets": Parameter(nn.initializers.zeros, ("buckets", "heads"))},
        {"buckets": BUCKETS},
        looks_ahead=False,
    ),
    "kerple": Bias(
        logarithmic_bias,
        {
            "height": Parameter(_softplus_below(2.0), ("heads",)),
            "rate": Parameter(_softplus_below(1.0), ("heads",)),
        },
    ),
}
