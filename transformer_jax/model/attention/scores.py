"""Score functions: how well a query matches a key.

A new score is a function here and its line in `SCORES`. `(params, query, key) -> scores`, where
params holds the arrays that the entry's `parameters` ask for.

Dimension key
  B batch   L query length   M key length   H heads   K, J d_k per head
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params
from transformer_jax.model.layers.matrix_products import einsum, sum_type
from transformer_jax.model.layers.norms import unit

# The largest weight can be exp(20) times the smallest, so a few of hundreds of keys can stand out.
FIRST_GAIN = 10.0


def dot(params: Params, query_BLHK: Array, key_BMHK: Array) -> Array:
    """q . k, float32 `[batch, heads, query_len, key_len]`; the sum is in float32 or wider.

    Source: Luong et al. 2015, section 3.1.
    """
    if jnp.finfo(query_BLHK.dtype).bits < 32:
        return narrow_dot(query_BLHK, key_BMHK)
    return jnp.einsum("BLHK,BMHK->BHLM", query_BLHK, key_BMHK)


@jax.custom_vjp
def narrow_dot(query_BLHK: Array, key_BMHK: Array) -> Array:
    """q . k in float32, for operands of a narrower type, such as bfloat16.

    The gradient of the scores is rounded to that type too. Otherwise both of its products would
    have float32 operands, which matrix units multiply several times more slowly.
    """
    return jnp.einsum("BLHK,BMHK->BHLM", query_BLHK, key_BMHK, preferred_element_type=jnp.float32)


def _narrow_dot_forward(query_BLHK: Array, key_BMHK: Array) -> tuple[Array, tuple[Array, Array]]:
    return narrow_dot(query_BLHK, key_BMHK), (query_BLHK, key_BMHK)


def _narrow_dot_backward(
    operands: tuple[Array, Array], gradient_BHLM: Array
) -> tuple[Array, Array]:
    query_BLHK, key_BMHK = operands
    gradient_BHLM = gradient_BHLM.astype(query_BLHK.dtype)
    return (
        einsum("BHLM,BMHK->BLHK", gradient_BHLM, key_BMHK),
        einsum("BHLM,BLHK->BMHK", gradient_BHLM, query_BLHK),
    )


narrow_dot.defvjp(_narrow_dot_forward, _narrow_dot_backward)


def inverse_root(d_k: int) -> float:
    """1 / sqrt(d_k): it keeps the variance of a score near 1, so the softmax does not saturate."""
    return d_k**-0.5


def _one(d_k: int) -> float:
    return 1.0


def scaled_dot(params: Params, query_BLHK: Array, key_BMHK: Array) -> Array:
    """q . k / sqrt(d_k), float32 `[batch, heads, query_len, key_len]`.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    return dot(params, query_BLHK, key_BMHK) * inverse_root(query_BLHK.shape[-1])


def sum_score(query_BLHK: Array, key_BMHK: Array, vector_HK: Array) -> Array:
    """v . tanh(q + k) of each head, float32 `[batch, heads, query_len, key_len]`.

    Args:
      query_BLHK: queries `[batch, query_len, heads, d_k]`.
      key_BMHK: keys `[batch, key_len, heads, d_k]`.
      vector_HK: v `[heads, d_k]`.

    Source: Bahdanau et al. 2015, appendix A.1.2.
    """
    wide = sum_type(query_BLHK.dtype)
    sum_BLMHK = query_BLHK.astype(wide)[:, :, None] + key_BMHK.astype(wide)[:, None]
    return jnp.einsum("BLMHK,HK->BHLM", jnp.tanh(sum_BLMHK), vector_HK)


def additive(params: Params, query_BLHK: Array, key_BMHK: Array) -> Array:
    """v . tanh(q + k + b) of each head, float32 `[batch, heads, query_len, key_len]`.

    The projections of queries and keys are the paper's W_a and U_a. The tanh takes memory for every
    pair of positions and feature, so the backward pass computes it again.

    Args:
      params: "vector" v and "bias" b, float32 `[heads, d_k]`.
      query_BLHK, key_BMHK: as in `sum_score`.

    Source: Bahdanau et al. 2015, appendix A.1.2.
    """
    query_BLHK = query_BLHK + params["bias"]  # in the type of the bias
    return jax.checkpoint(sum_score)(query_BLHK, key_BMHK, params["vector"])


def turned(params: Params, query_BLHK: Array, key: Array) -> tuple[Array, Array]:
    """W^T q and k, whose product is the bilinear score q^T W k of each head.

    With W = I / sqrt(d_k), its initial value, it is the scaled dot product.

    Args:
      params: "matrix" W, float32 `[heads, d_k, d_k]`.
      query_BLHK: queries `[batch, query_len, heads, d_k]`.
      key: keys `[..., d_k]`.

    Source: Luong et al. 2015, section 3.1, "general".
    """
    matrix_HKJ = params["matrix"].astype(query_BLHK.dtype)
    return einsum("BLHK,HKJ->BLHJ", query_BLHK, matrix_HKJ), key


def unit_vectors(params: Params, query_BLHK: Array, key: Array) -> tuple[Array, Array]:
    """g q / |q| and k / |k|, whose product is the cosine score g cos(q, k) of each head.

    Args:
      params: "gain" g, float32 `[heads]`.
      query_BLHK, key: as in `turned`.

    Source: Henry et al. 2020, "Query-Key Normalization for Transformers".
    """
    query = unit(query_BLHK) * params["gain"][:, None]
    return query.astype(query_BLHK.dtype), unit(key)


Vectors = Callable[[Params, Array, Array], tuple[Array, Array]]


class Score(NamedTuple):
    """An entry of the registry."""

    compute: Callable[[Params, Array, Array], Array]
    # What a product of two vectors is multiplied by, from d_k; None: the score is no such product.
    # Search computes products in the layout of its cache, and any other score by `compute`.
    factor: Callable[[int], float] | None = None
    # Those vectors from queries `[B, L, H, K]` and keys `[..., K]`; None: these themselves.
    vectors: Vectors | None = None
    # Whether the score of rotated queries and keys depends on their distance alone.
    rotates: bool = False
    parameters: Mapping[str, Parameter] = MappingProxyType({})


def _product_of(vectors: Vectors, **more: Any) -> Score:
    """The score that is the product of these vectors, with more fields."""

    def compute(params: Params, query_BLHK: Array, key_BMHK: Array) -> Array:
        query_BLHK, key_BMHK = vectors(params, query_BLHK, key_BMHK)
        return dot(params, query_BLHK, key_BMHK)

    return Score(compute, _one, vectors, **more)


def _scaled_identity(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jnp.broadcast_to(jnp.eye(shape[-1], dtype=dtype) * inverse_root(shape[-1]), shape)


SCORES: dict[str, Score] = {
    "scaled_dot": Score(scaled_dot, factor=inverse_root, rotates=True),
    "dot": Score(dot, factor=_one, rotates=True),
    "bilinear": _product_of(
        turned, parameters={"matrix": Parameter(_scaled_identity, ("heads", "d_k", "d_k"))}
    ),
    "cosine": _product_of(
        unit_vectors,
        rotates=True,
        parameters={"gain": Parameter(nn.initializers.constant(FIRST_GAIN), ("heads",))},
    ),
    "additive": Score(
        additive,
        parameters={
            "vector": Parameter(
                nn.initializers.variance_scaling(1.0, "fan_in", "normal", in_axis=1, out_axis=0),
                ("heads", "d_k"),
            ),
            "bias": Parameter(nn.initializers.zeros, ("heads", "d_k")),
        },
    ),
}
