"""Patterns: which position may attend to which.

A pattern is a predicate `(query place, key place) -> booleans [batch, 1, query_len, key_len]`,
True = may attend. Training and search use the same predicate: in search the query is the newest
position and the keys are the positions of the cache. Patterns are joined with `&`.

A new one for self-attention is a function here and its line in `SELF_PATTERNS`, which makes it a
value of model.pattern.

Dimension key
  B batch   L query length   M key length
"""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.interfaces import Place
from transformer_jax.model.layers.dropout import mix

Pattern = Callable[[Place, Place], Array]


def same_sentence(query: Place, key: Place) -> Array:
    """True where query and key belong to the same sentence pair of a packed row.

    Segment 0 is padding, to which nothing attends.
    """
    same_BLM = query.segments[:, :, None] == key.segments[:, None, :]
    return (same_BLM & (key.segments != 0)[:, None, :])[:, None]


def causal(query: Place, key: Place) -> Array:
    """True at the query's own position and before it.

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    return (key.positions[:, None, :] <= query.positions[:, :, None])[:, None]


def within(most: int) -> Pattern:
    """True where query and key are at most `most` positions apart."""

    def near(query: Place, key: Place) -> Array:
        apart_BLM = query.positions[:, :, None] - key.positions[:, None, :]
        return (abs(apart_BLM) <= most)[:, None]

    return near


def strided(stride: int) -> Pattern:
    """True where query and key are fewer than `stride` positions apart, or a multiple of it.

    In the paper some heads see the first kind of keys and the others the second; here each head
    sees both.

    Source: Child et al. 2019, "Sparse Transformers", section 4.3, strided attention.
    """

    def sees(query: Place, key: Place) -> Array:
        apart_BLM = abs(query.positions[:, :, None] - key.positions[:, None, :])
        period = apart_BLM.dtype.type(stride)  # the same type, in double precision too
        return ((apart_BLM < stride) | (jax.lax.rem(apart_BLM, period) == 0))[:, None]

    return sees


def read_before(wait_k: int) -> Pattern:
    """True where the key is a source subword that is read before the query's subword is generated.

    k of them are read before the first target position, and one more before each later one.

    Source: Ma et al. 2019, equation 3.
    """

    def is_read(query: Place, key: Place) -> Array:
        return (key.positions[:, None, :] < wait_k + query.positions[:, :, None])[:, None]

    return is_read


def waiting_place(config: ModelConfig, place: Place, bits: Array, rows_B: Array) -> Place:
    """The places of target positions for `read_before`, with a k drawn for each row.

    `read_before` uses model.wait_k; adding k - model.wait_k to a row's positions gives it its k.

    Args:
      config: with `wait_k` and `wait_k_max`, the smallest and the largest k.
      place: the places of the target positions `[batch, tgt_len]`.
      bits: random, uint32 scalar.
      rows_B: numbers of the rows in the global batch `[batch]`; a row's k depends on no other row.

    Source: Elbayad, Besacier and Verbeek 2020, section 2.3, where a batch has one k.
    """
    assert config.wait_k is not None and config.wait_k_max is not None
    choices = jnp.uint32(config.wait_k_max - config.wait_k + 1)
    more_B = (mix(rows_B.astype(jnp.uint32) ^ bits) % choices).astype(jnp.int32)
    return place._replace(positions=place.positions + more_B[:, None])


def cross_patterns(config: ModelConfig) -> tuple[Pattern, ...]:
    """The patterns of encoder-decoder attention."""
    if config.wait_k is None:
        return (same_sentence,)
    return same_sentence, read_before(config.wait_k)


# By the value of model.pattern: (config, is_decoder) -> what self-attention sees, beside what every
# kind of model forbids and model.window leaves out; None: all of it.
SELF_PATTERNS: dict[str, Callable[[ModelConfig, bool], Pattern | None]] = {
    "all": lambda config, is_decoder: None,
    "strided": lambda config, is_decoder: strided(config.stride),
}


def config_of_layer(config: ModelConfig, number: int) -> ModelConfig:
    """The config of the layer with this number, from 0; in some layers attention is global.

    With model.global_every=n, each n-th layer has no window, so the last layer of n sees what its
    window leaves out (as in Gemma Team 2024, section 2, where n is 2).
    """
    is_global = config.global_every is not None and (number + 1) % config.global_every == 0
    return dataclasses.replace(config, window=None) if is_global else config


def self_patterns(config: ModelConfig, is_decoder: bool) -> tuple[Pattern, ...]:
    """The patterns of self-attention.

    The encoder of a wait-k model sees no subword after its own. With model.window=r the encoder's
    query is in the middle of r positions, and the decoder's at their end.

    Source: Vaswani et al. 2017, sections 3.2.3 and 4.
    """
    one_way = is_decoder or config.wait_k is not None
    window = within(max(reach(config, is_decoder))) if config.window else None
    own = SELF_PATTERNS[config.pattern](config, is_decoder)
    asked = (same_sentence, causal if one_way else None, window, own)
    return tuple(pattern for pattern in asked if pattern is not None)


def reach(config: ModelConfig, is_decoder: bool) -> tuple[int, int]:
    """How many positions before and after its own a query sees in a window."""
    assert config.window is not None
    middle = (config.window - 1) // 2
    return (config.window - 1, 0) if is_decoder else (middle, middle)


def mask_of(patterns: tuple[Pattern, ...], query: Place, key: Place) -> Array:
    """Booleans `[batch, 1, query_len, key_len]`: True where every pattern allows attention."""
    first, *others = patterns
    mask = first(query, key)
    for pattern in others:
        mask &= pattern(query, key)
    return mask


def problems(config: ModelConfig) -> Iterator[str]:
    """Why the window or the range of k is invalid, with the fix; empty if both are valid."""
    if config.window is not None and config.window % 2 == 0:
        yield (
            f"model.window={config.window} is even: the encoder's window has its query in the "
            f"middle. Use {config.window + 1}."
        )
    largest, smallest = config.wait_k_max, config.wait_k
    if largest is not None and (smallest is None or largest < smallest):
        yield (
            f"model.wait_k_max={largest} is the largest k, and model.wait_k={smallest} is not a "
            f"smallest k from 1 to {largest}. Set model.wait_k."
        )
