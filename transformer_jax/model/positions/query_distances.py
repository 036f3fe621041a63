"""Terms of a score that depend on the query and on how far away the key is.

A kind of positions with such a term has a file of its own, in which a `QueryPositions` is made:
relative_vectors.py, contextual.py.

Dimension key
  B batch   L query length   M key length   H heads   K d_k per head   V d_v per head
  C distances, 2 k + 1 with k = model.relative_distance
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.windows import Blocks
from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params
from transformer_jax.model.layers.matrix_products import sum_type

# [batch, heads, query_len, distances] -> [batch, heads, query_len, key_len]: each key gets the
# number of its distance from the query, clipped to -k, ..., k. It is linear, so JAX
# can transpose it.
Spread = Callable[[Array], Array]


class Distances(NamedTuple):
    """How far the keys of a call are from its queries."""

    # () -> position of the key minus that of the query, int [query_len, key_len] or
    # [batch, 1, key_len]; most kinds of positions do not ask.
    of: Callable[[], Array]
    spread: Spread


class Pairs(NamedTuple):
    """What a term may depend on."""

    query_BLHK: Array  # times the factor of the score
    scores_BHLM: Array  # without the term, float32
    mask: Array  # booleans that broadcast to the scores, True = may attend
    distances: Distances


def nothing_added(
    params: Params, heads_BLHV: Array, weights_BHLM: Array, distances: Distances
) -> Array:
    """The heads' outputs: nothing is added to the values."""
    return heads_BLHV


class QueryPositions(NamedTuple):
    """What each layer's self-attention computes from its queries and the distances of keys."""

    # Each layer has these parameters, and all its heads share them.
    parameters: Callable[[ModelConfig], Mapping[str, Parameter]]
    # (params, pairs) -> what is added to the scores, float32 [batch, heads, query_len, key_len].
    term: Callable[[Params, Pairs], Array]
    # (params, heads' outputs, weights, distances) -> the outputs with what is added to values.
    values: Callable[[Params, Array, Array, Distances], Array] = nothing_added


def size(config: ModelConfig) -> int:
    """2 k + 1: the number of vectors, one for each distance."""
    return 2 * config.relative_distance + 1


def products(query_BLHK: Array, vectors_CK: Array) -> Array:
    """Each query times the vector of each distance `[batch, heads, query_len, distances]`."""
    wide = sum_type(query_BLHK.dtype)
    return jnp.einsum("BLHK,CK->BHLC", query_BLHK, vectors_CK, preferred_element_type=wide)


def in_row(blocks: Blocks) -> Distances:
    """The distances of training, where key m of query l has the distance m - l - blocks.behind."""
    return Distances(
        blocks.distance, lambda x_BHLC: spread_in_row(x_BHLC, blocks.keys, blocks.behind)
    )


def in_cache(distance_BM: Array) -> Distances:
    """The distances of search, where all queries of a sentence have the same position.

    Args:
      distance_BM: position of the key minus that of the queries, int `[batch, key_len]`.
    """

    def spread(x_BHLC: Array) -> Array:
        reach = x_BHLC.shape[3] // 2
        number_BM = jnp.clip(distance_BM, -reach, reach) + reach
        return jnp.take_along_axis(x_BHLC, number_BM[:, None, None], axis=3)

    return Distances(lambda: distance_BM[:, None], spread)


def spread_in_row(x_BHLC: Array, keys: int, behind: int = 0) -> Array:
    """The `Spread` of training.

    Args:
      x_BHLC: a number for each query and distance.
      keys: the number of keys.
      behind: how many keys are before the position of the first query.

    Returns:
      `[batch, heads, query_len, key_len]`.
    """
    queries = x_BHLC.shape[2]
    reach = x_BHLC.shape[3] // 2
    # The distances that occur are first, ..., last; `first` is that of the last query's first key.
    first = 1 - queries - behind
    last = keys - 1 - behind
    inside = x_BHLC[..., max(first, -reach) + reach : min(last, reach) + reach + 1]
    before = max(0, -reach - first)
    after = max(0, last - reach)
    edges = ((0, 0), (0, 0), (0, 0))
    x_BHLC = jnp.pad(inside, (*edges, (before, after)), mode="edge")
    # A row of queries + keys - 1 numbers, and one more that is never read. Each query's keys begin
    # one number earlier than those of the query before (Huang et al. 2019, section 3.4.1).
    flat = jnp.pad(x_BHLC, (*edges, (0, 1))).reshape(*x_BHLC.shape[:2], -1)
    width = queries + keys - 1
    flat = flat[..., queries - 1 : queries - 1 + queries * width]
    return flat.reshape(*x_BHLC.shape[:2], queries, width)[..., :keys]
