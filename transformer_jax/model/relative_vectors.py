"""Relative positions: a learned vector for each distance, added to keys and values (Shaw et al.).

No array has a vector for each pair of positions. A query is multiplied by the 2 k + 1 vectors, and
the products are then moved to the keys of these distances; `Spread` is this second step.

Dimension key
  B batch   L query length   M key length   H heads   K d_k per head   V d_v per head
  C distances, 2 k + 1
"""

from collections.abc import Callable, Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import DISTANCES, Parameter
from transformer_jax.model.dropout import Drop, kept
from transformer_jax.model.products import einsum, sum_type
from transformer_jax.model.records import Params
from transformer_jax.model.scores import SCORES

# [batch, heads, query_len, distances] -> [batch, heads, query_len, key_len], linear: the entry of
# each key is that of its distance from the query, clipped to -k, ..., k.
Spread = Callable[[Array], Array]
Attended = Callable[..., tuple[Array, Array]]  # (bias=...) -> heads and weights


def parameters(config: ModelConfig) -> dict[str, Parameter]:
    """The vectors of one layer; all heads share them."""
    init = nn.initializers.xavier_uniform()
    vectors = {"relative_keys": Parameter(init, ("distances", "d_k"), (DISTANCES, None))}
    if config.relative_values:
        vectors["relative_values"] = Parameter(init, ("distances", "d_v"), (DISTANCES, None))
    return vectors


def distances(config: ModelConfig) -> int:
    """2 k + 1: the number of vectors."""
    return 2 * config.relative_distance + 1


def spread_in_row(x_BHLC: Array, keys: int, behind: int = 0) -> Array:
    """The `Spread` of training, where key m of query l has the distance m - l - behind.

    Args:
      x_BHLC: a number for each query and distance.
      keys: the number of keys.
      behind: how many keys are before the position of the first query.
    """
    queries = x_BHLC.shape[2]
    reach = x_BHLC.shape[3] // 2
    # Every distance that occurs, in order: from the first key and the last query on.
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


def spread_in_cache(x_BHLC: Array, distance_BM: Array) -> Array:
    """The `Spread` of search, where all queries of a sentence have the same position.

    Args:
      x_BHLC: a number for each query and distance.
      distance_BM: position of the key minus that of the queries, int `[batch, key_len]`.
    """
    reach = x_BHLC.shape[3] // 2
    number_BM = jnp.clip(distance_BM, -reach, reach) + reach
    return jnp.take_along_axis(x_BHLC, number_BM[:, None, None], axis=3)


def with_relative_vectors(
    params: Params,
    query_BLHK: Array,
    spread: Spread,
    attended: Attended,
    drop: Drop = kept,
) -> tuple[Array, Array]:
    """Attention whose keys, and values, have the vector of their distance added.

    The score (q . (k + a)) is q . k, which `attended` computes, and q . a, which is a bias of it.

    Args:
      params: "relative_keys" a `[distances, d_k]` and perhaps "relative_values" `[distances, d_v]`.
      query_BLHK: queries times the factor of the score `[batch, query_len, heads, d_k]`.
      spread: from distances to keys.
      attended: attention to keys and values without such vectors, with the same dropout.
      drop: dropout of the weights; by default none.

    Returns:
      `[batch, query_len, heads, d_v]`, and the weights.

    Source: Shaw et al. 2018, section 3.1, equations 3 and 4.
    """
    wide = sum_type(query_BLHK.dtype)
    vectors_CK = params["relative_keys"].astype(query_BLHK.dtype)
    products = jnp.einsum("BLHK,CK->BHLC", query_BLHK, vectors_CK, preferred_element_type=wide)
    heads_BLHV, weights_BHLM = attended(bias=spread(products))
    if "relative_values" not in params:
        return heads_BLHV, weights_BHLM
    # The transpose of the spread sums the weights of all keys at one distance.
    (sums_BHLC,) = jax.linear_transpose(spread, products)(drop(weights_BHLM))
    vectors_CV = params["relative_values"].astype(heads_BLHV.dtype)
    own_BLHV = einsum("BHLC,CV->BLHV", sums_BHLC.astype(heads_BLHV.dtype), vectors_CV)
    return heads_BLHV + own_BLHV, weights_BHLM


def problems(config: ModelConfig) -> Iterator[str]:
    """Why relative positions cannot be combined with the model's other keys."""
    score = SCORES[config.score]
    if config.positions == "relative" and (score.factor is None or score.vectors is not None):
        yield (
            f"model.positions='relative' with model.score={config.score!r}: vectors are added to "
            "keys that a query is multiplied by. Use model.score='scaled_dot', or another score in "
            "model.cross_score alone."
        )
