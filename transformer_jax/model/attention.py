"""Multi-head attention (Vaswani et al. 2017, section 3.2).

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head   V d_v per head
Masks are booleans, True = may attend; a broadcast axis shows as 1 in the name.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, HEADS, constrain


def attention_weights(query_BLHK: Array, key_BMHK: Array, mask_BHLM: Array) -> Array:
    """softmax(Q K^T / sqrt(d_k)), in float32 whatever the inputs' type.

    Args:
      query_BLHK: queries `[batch, query_len, heads, d_k]`.
      key_BMHK: keys `[batch, key_len, heads, d_k]`.
      mask_BHLM: booleans that broadcast to `[batch, heads, query_len, key_len]`, True = may attend.

    Returns:
      Weights `[batch, heads, query_len, key_len]`; each query's sum to 1. A query that may attend
      to nothing gets equal weights, not NaN.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    scores_BHLM = jnp.einsum(
        "BLHK,BMHK->BHLM", query_BLHK, key_BMHK, preferred_element_type=jnp.float32
    )
    # Scaling keeps the variance of a score near 1, so the softmax does not saturate.
    scores_BHLM *= query_BLHK.shape[-1] ** -0.5
    # finfo.min, not -inf: softmax of a fully masked row would be NaN.
    scores_BHLM = jnp.where(mask_BHLM, scores_BHLM, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores_BHLM)


def dot_product_attention(
    query_BLHK: Array, key_BMHK: Array, value_BMHV: Array, mask_BHLM: Array
) -> Array:
    """softmax(Q K^T / sqrt(d_k)) V: `[batch, query_len, heads, d_v]`, in the values' type.

    Args:
      query_BLHK: queries `[batch, query_len, heads, d_k]`.
      key_BMHK: keys `[batch, key_len, heads, d_k]`.
      value_BMHV: values `[batch, key_len, heads, d_v]`.
      mask_BHLM: booleans that broadcast to `[batch, heads, query_len, key_len]`, True = may attend.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    weights_BHLM = attention_weights(query_BLHK, key_BMHK, mask_BHLM)
    return jnp.einsum("BHLM,BMHV->BLHV", weights_BHLM.astype(value_BMHV.dtype), value_BMHV)


def segment_mask(query_segments_BL: Array, key_segments_BM: Array) -> Array:
    """True where query and key belong to the same pair of a packed row.

    Segment 0 is padding, to which nothing attends. Returns `[batch, 1, query_len, key_len]`.
    """
    same_BLM = query_segments_BL[:, :, None] == key_segments_BM[:, None, :]
    return (same_BLM & (key_segments_BM != 0)[:, None, :])[:, None]


def causal_mask(length: int) -> Array:
    """True where a position may look: at itself and before it, `[1, 1, length, length]`."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


_xavier = functools.partial(nn.initializers.variance_scaling, 1.0, "fan_avg", "uniform")
_split_heads_init = _xavier(in_axis=0, out_axis=(1, 2))
_join_heads_init = _xavier(in_axis=(0, 1), out_axis=2)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The projections have no bias: the equations of section 3.2.2 have none.
    """

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    dtype: jnp.dtype

    def setup(self) -> None:
        heads, d_model = self.num_heads, self.d_model
        self.query = self.param("query", _split_heads_init, (d_model, heads, self.d_k))
        self.key = self.param("key", _split_heads_init, (d_model, heads, self.d_k))
        self.value = self.param("value", _split_heads_init, (d_model, heads, self.d_v))
        self.out = self.param("out", _join_heads_init, (heads, self.d_v, d_model))

    def keys_values(self, memory_BMD: Array) -> tuple[Array, Array]:
        """What is attended to: keys and values `[batch, key_len, heads, d_k or d_v]`."""
        memory_BMD = memory_BMD.astype(self.dtype)
        key_BMHK = jnp.einsum("BMD,DHK->BMHK", memory_BMD, self.key.astype(self.dtype))
        value_BMHV = jnp.einsum("BMD,DHV->BMHV", memory_BMD, self.value.astype(self.dtype))
        return (
            constrain(key_BMHK, BATCH, None, HEADS, None),
            constrain(value_BMHV, BATCH, None, HEADS, None),
        )

    def __call__(self, x_BLD: Array, key_BMHK: Array, value_BMHV: Array, mask_BHLM: Array) -> Array:
        """Attends from x `[batch, query_len, d_model]`; returns `[batch, query_len, d_model]`."""
        x_BLD = x_BLD.astype(self.dtype)
        query_BLHK = jnp.einsum("BLD,DHK->BLHK", x_BLD, self.query.astype(self.dtype))
        query_BLHK = constrain(query_BLHK, BATCH, None, HEADS, None)
        if self.is_mutable_collection("intermediates"):  # asked for by plots alone
            weights_BHLM = attention_weights(query_BLHK, key_BMHK, mask_BHLM)
            self.sow("intermediates", "attention_weights", weights_BHLM)
        heads_BLHV = dot_product_attention(query_BLHK, key_BMHK, value_BMHV, mask_BHLM)
        heads_BLHV = constrain(heads_BLHV, BATCH, None, HEADS, None)
        return jnp.einsum("BLHV,HVD->BLD", heads_BLHV, self.out.astype(self.dtype))

    def step(
        self, x_BKD: Array, cache: tuple[Array, Array], position: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        """Self-attention of one new position a hypothesis, over the cached keys and values.

        Args:
          x_BKD: the new position's input `[batch, beams, d_model]`.
          cache: keys `[batch, beams, max_len, heads, d_k]` and values `[..., d_v]`; what stands
            at or after `position` is not read.
          position: int32 scalar, 0-based.

        Returns:
          Output `[batch, beams, d_model]`, and the cache with the new position written.
        """
        batch, beams, max_len = cache[0].shape[:3]
        new = self.keys_values(x_BKD)

        def write(old: Array, part: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(old, part[:, :, None], position, axis=2)

        cache = write(cache[0], new[0]), write(cache[1], new[1])
        # Each hypothesis attends to its own past alone: hypotheses become rows of a batch.
        key, value = (c.reshape(batch * beams, max_len, *c.shape[3:]) for c in cache)
        mask_111M = (jnp.arange(max_len) <= position)[None, None, None]
        out = self(x_BKD.reshape(batch * beams, 1, -1), key, value, mask_111M)
        return out.reshape(batch, beams, -1), cache
