"""Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017, section 3.2).

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head   V d_v per head
  E features of the memory, which is what is attended to   G heads of keys and values
Masks are booleans, True = may attend; a broadcast axis shows as 1 in the name.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.projections import PROJECTIONS, gated, normed, options
from transformer_jax.model.attention.scores import SCORES, scaled_dot
from transformer_jax.model.axes import BATCH, HEADS, KEY_HEADS, constrain, declared
from transformer_jax.model.layers.dropout import Drop, kept
from transformer_jax.model.layers.matrix_products import add_bias, einsum, product

SCALED_DOT = functools.partial(scaled_dot, None)
BY_HEAD = (BATCH, None, HEADS, None)
BY_KEY_HEAD = (BATCH, None, KEY_HEADS, None)


def attend(
    query_BLHK: Array,
    key_BMHK: Array,
    value_BMHV: Array,
    mask: Array,
    *,
    score: Callable[[Array, Array], Array] = SCALED_DOT,
    bias: Array | None = None,
    normalize: Callable[[Array, Array], Array] = softmax,
    drop: Drop = kept,
) -> tuple[Array, Array]:
    """softmax(Q K^T / sqrt(d_k)) V and its weights, or the same with another score or normalizer.

    Args:
      query_BLHK: queries `[batch, query_len, heads, d_k]`.
      key_BMHK: keys `[batch, key_len, heads, d_k]`.
      value_BMHV: values `[batch, key_len, heads, d_v]`.
      mask: booleans that broadcast to `[batch, heads, query_len, key_len]`, True = may attend.
      score: (queries, keys) -> float32 scores `[batch, heads, query_len, key_len]`.
      bias: added to the scores, float32, broadcasts to their shape.
      normalize: (scores, mask) -> weights.
      drop: dropout of the weights; by default none.

    Returns:
      `[batch, query_len, heads, d_v]` in the values' type, and the weights before dropout, float32.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    if mask.dtype != bool:
        raise TypeError(f"mask is of type {mask.dtype}: give booleans, True = may attend.")
    scores_BHLM = score(query_BLHK, key_BMHK)
    if bias is not None:
        scores_BHLM += bias
    weights_BHLM = normalize(scores_BHLM, mask)
    heads_BLHV = einsum("BHLM,BMHV->BLHV", drop(weights_BHLM).astype(value_BMHV.dtype), value_BMHV)
    return heads_BLHV, weights_BHLM


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The equations of section 3.2.2 have no bias; model.attention_bias adds one to each product.
    """

    config: ModelConfig
    score: str = "scaled_dot"
    memory_features: int | None = None  # E; None: d_model

    def setup(self) -> None:
        sizes = self.config.axis_sizes
        sizes["memory"] = self.memory_features or self.config.d_model
        self.projections = declared(self, PROJECTIONS, sizes)
        self.score_params = declared(self, SCORES[self.score].parameters, sizes)
        self.optional = declared(self, options(self.config), sizes)

    def scores(self, query_BLHK: Array, key_BMHK: Array) -> Array:
        """Scores `[batch, heads, query_len, key_len]`, float32."""
        return SCORES[self.score].compute(self.score_params, query_BLHK, key_BMHK)

    def queries(self, x_BLD: Array) -> Array:
        """Queries `[batch, query_len, heads, d_k]`."""
        query_BLHK = self._product("BLD,DHK->BLHK", x_BLD, "query")
        return constrain(query_BLHK, *BY_HEAD)

    def keys_values(self, memory_BME: Array) -> tuple[Array, Array]:
        """Keys and values of the memory, `[batch, key_len, key_heads, d_k or d_v]`."""
        key_BMGK = self._product("BME,EGK->BMGK", memory_BME, "key")
        value_BMGV = self._product("BME,EGV->BMGV", memory_BME, "value")
        return constrain(key_BMGK, *BY_KEY_HEAD), constrain(value_BMGV, *BY_KEY_HEAD)

    def joined(self, heads_BLHV: Array, x_BLD: Array) -> Array:
        """Concat(head_1, ..., head_h) W^O `[batch, query_len, d_model]`; x: the queries' input."""
        heads_BLHV = constrain(heads_BLHV, *BY_HEAD)
        if "gate" in self.optional:
            heads_BLHV = gated(heads_BLHV, x_BLD, self.optional["gate"])
        return self._product("BLHV,HVD->BLD", heads_BLHV, "out")

    def _product(self, axes: str, x: Array, name: str) -> Array:
        y = product(axes, x, self.projections[name], self.config.dtype)
        if (bias := self.optional.get(f"{name}_bias")) is not None:
            y = add_bias(y, bias)
        gain = self.optional.get(f"{name}_gain")
        return y if gain is None else normed(y, gain, self.config.norm_epsilon)
