"""Contextual positions: the query decides which keys count between itself and a key (CoPE).

So a query can attend to, say, the third noun before it, however many subwords away that is.

Dimension key
  B batch   L query length   M key length   H heads   K d_k per head
  C positions, 2 k + 1 with k = model.relative_distance
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params
from transformer_jax.model.positions.query_distances import Pairs, QueryPositions, products


def parameters(config: ModelConfig) -> dict[str, Parameter]:
    """The vectors of one layer, zero at first as in the authors' code; all heads share them."""
    return {"contextual_keys": Parameter(nn.initializers.zeros, ("distances", "d_k"))}


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


def term(params: Params, pairs: Pairs) -> Array:
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


CONTEXTUAL = QueryPositions(parameters, term)
