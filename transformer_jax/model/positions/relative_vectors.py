"""Relative positions: a learned vector for each distance, added to keys and values (Shaw et al.).

No array has a vector for each pair of positions. A query is multiplied by the 2 k + 1 vectors, and
the products are then moved to the keys of these distances; `Spread` is this second step.

Dimension key
  B batch   L query length   M key length   H heads   K d_k per head   V d_v per head
  C distances, 2 k + 1 with k = model.relative_distance
"""

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params
from transformer_jax.model.layers.matrix_products import einsum
from transformer_jax.model.positions.query_distances import (
    Distances,
    Pairs,
    QueryPositions,
    products,
)


def parameters(config: ModelConfig) -> dict[str, Parameter]:
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


RELATIVE = QueryPositions(parameters, vectors_of_keys, vectors_of_values)
