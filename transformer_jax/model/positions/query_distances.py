"""Terms of a score that depend on the query and on how far away the key is.

A new one is its functions here, a `QueryPositions` of them and its line in choices.py.

**Relative positions** (Shaw et al.): a learned vector for each distance, added to keys and values.
No array has a vector for each pair of positions. A query is multiplied by the 2 k + 1 vectors, and
the products are then moved to the keys of these distances; `Spread` is this second step.

**Contextual positions** (CoPE): the query decides which keys count between itself and a key. So it
can attend to, say, the third noun before it, however many subwords away that is.

Dimension key
  B batch   L query length   M key length   H heads   K d_k per head   V d_v per head
  C distances or counted positions, 2 k + 1 with k = model.relative_distance
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.windows import Blocks
from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params
from transformer_jax.model.layers.matrix_products import einsum, sum_type

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


class QueryPositions(NamedTuple):
    """What each layer's self-attention computes from its queries and the distances of keys."""

    # Each layer has these parameters, and all its heads share them.
    parameters: Callable[[ModelConfig], Mapping[str, Parameter]]
    # (params, pairs) -> what is added to the scores, float32 [batch, heads, query_len, key_len].
    term: Callable[[Params, Pairs], Array]
    # (params, heads' outputs, weights, distances) -> outputs with what is added to values, if any.
    values: Callable[[Params, Array, Array, Distances], Array] | None = None


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


# Relative positions ------------------------------------------------------------------------------


def relative_parameters(config: ModelConfig) -> dict[str, Parameter]:
    """The vectors of one layer; all heads share them."""
    init = nn.initializers.xavier_uniform()
    vectors = {"relative_keys": Parameter(init, ("distances", "d_k"))}
    if config.relative_values:
        vectors["relative_values"] = Parameter(init, ("distances", "d_v"))
    return vectors


def vectors_of_keys(params: Params, pairs: Pairs) -> Array:
    """q . a for the vector a of each key's distance `[batch, heads, query_len, key_len]`.

    The score q . (k + a) is q . k and this term.

    Args:
      params: "relative_keys" `[distances, d_k]`.
      pairs: see `Pairs`.

    Source: Shaw et al. 2018, section 3.1, equation 4.
    """
    vectors_CK = params["relative_keys"].astype(pairs.query_BLHK.dtype)
    return pairs.distances.spread(products(pairs.query_BLHK, vectors_CK))


def vectors_of_values(
    params: Params, heads_BLHV: Array, weights_BHLM: Array, distances: Distances
) -> Array:
    """The heads' outputs with the vectors of the distances added to the values.

    Args:
      params: "relative_values" `[distances, d_v]`; without it, nothing is added.
      heads_BLHV: the weighted sums of the values `[batch, query_len, heads, d_v]`.
      weights_BHLM: the weights after dropout.
      distances: how far each key is from its query.

    Returns:
      `[batch, query_len, heads, d_v]`.

    Source: Shaw et al. 2018, section 3.1, equation 3.
    """
    if "relative_values" not in params:
        return heads_BLHV
    vectors_CV = params["relative_values"].astype(heads_BLHV.dtype)
    numbers = jax.ShapeDtypeStruct(
        (*weights_BHLM.shape[:3], vectors_CV.shape[0]), weights_BHLM.dtype
    )
    # The transpose of the spread sums the weights of all keys at one distance.
    (sums_BHLC,) = jax.linear_transpose(distances.spread, numbers)(weights_BHLM)
    return heads_BLHV + einsum("BHLC,CV->BLHV", sums_BHLC.astype(heads_BLHV.dtype), vectors_CV)


RELATIVE = QueryPositions(relative_parameters, vectors_of_keys, vectors_of_values)


# Contextual positions ----------------------------------------------------------------------------


def counts(scores_BHLM: Array, mask: Array, distance: Array) -> Array:
    """The position of each key as the query counts, float32 `[batch, heads, query_len, key_len]`.

    A key counts as much as its gate, the sigmoid of its score, and not at all if it is masked. The
    position is the sum of the gates from the key to the query, both included; keys up to the query
    have negative positions, later keys positive ones. The paper has only causal attention, so it
    has no later keys and no sign.

    Args:
      scores_BHLM: scores, float32.
      mask: booleans that broadcast to the scores, True = may attend.
      distance: position of the key minus that of the query, int, broadcasts to
        `[batch, query_len, key_len]`; keys are in the order of their positions.

    Source: Golovneva et al. 2024, "Contextual Position Encoding", equations 3 and 4.
    """
    distance = jnp.expand_dims(distance, -3)
    gates_BHLM = jnp.where(mask, jax.nn.sigmoid(scores_BHLM), 0.0)
    before_BHLM = jnp.where(distance <= 0, gates_BHLM, 0.0)
    after_BHLM = jnp.where(distance >= 0, gates_BHLM, 0.0)
    up_to_query_BHLM = jax.lax.cumsum(before_BHLM, axis=3, reverse=True)
    from_query_BHLM = jax.lax.cumsum(after_BHLM, axis=3)
    return jnp.where(distance <= 0, -up_to_query_BHLM, from_query_BHLM)


def between(x_BHLC: Array, at_BHLM: Array) -> Array:
    """Linear interpolation of x at positions from -k to k; those beyond are clipped.

    Args:
      x_BHLC: a number for each query and each whole position -k, ..., k.
      at_BHLM: the positions, float32.

    Returns:
      float32 `[batch, heads, query_len, key_len]`.

    Source: Golovneva et al. 2024, equation 5.
    """
    reach = x_BHLC.shape[3] // 2
    at_BHLM = jnp.clip(at_BHLM, -reach, reach) + reach
    share_BHLM = at_BHLM - jnp.floor(at_BHLM)
    number_BHLM = at_BHLM.astype(jnp.int32)  # the whole position below, from 0
    next_BHLM = jnp.minimum(number_BHLM + 1, 2 * reach)
    low_BHLM, high_BHLM = (
        jnp.take_along_axis(x_BHLC, numbers, axis=3) for numbers in (number_BHLM, next_BHLM)
    )
    return (1 - share_BHLM) * low_BHLM + share_BHLM * high_BHLM


def counted_vectors(params: Params, pairs: Pairs) -> Array:
    """q . e of each key's counted position `[batch, heads, query_len, key_len]`, float32.

    Args:
      params: "contextual_keys" e, float32 `[positions, d_k]`, those of -k, ..., k.
      pairs: see `Pairs`.

    Source: Golovneva et al. 2024, equations 5 to 7. The factor of the score multiplies the term
    too; the authors' code leaves it out here.
    """
    vectors_CK = params["contextual_keys"].astype(pairs.query_BLHK.dtype)
    at_BHLM = counts(pairs.scores_BHLM, pairs.mask, pairs.distances.of())
    return between(products(pairs.query_BLHK, vectors_CK), at_BHLM)


# The vectors are zero at first as in the authors' code.
_CONTEXTUAL_KEYS = Parameter(nn.initializers.zeros, ("distances", "d_k"))
CONTEXTUAL = QueryPositions(lambda config: {"contextual_keys": _CONTEXTUAL_KEYS}, counted_vectors)
