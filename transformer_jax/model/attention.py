"""Multi-head attention (Vaswani et al. 2017, section 3.2).

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head   V d_v per head
Masks are booleans, True = may attend; a broadcast axis shows as 1 in the name.
"""

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.model.axes import BATCH, HEADS, constrain

KeysValues = tuple[Array, Array]


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


def attend_to_cache(query_BLHK: Array, blocks: Sequence[KeysValues], mask_BHML: Array) -> Array:
    """`dot_product_attention` of few queries over many keys, which lie head by head.

    On a CPU a small product is slow where the larger factor must be transposed for it, so the
    queries are, and keys and values are read as they lie: 3 ms for 29 (256 rows, 128 keys).

    Args:
      query_BLHK: queries `[batch, query_len, heads, d_k]`.
      blocks: keys `[batch, heads, length, d_k]` and values `[..., d_v]`, one block after the other.
      mask_BHML: booleans that broadcast to `[batch, heads, at least all keys, query_len]`.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    parts = [
        jnp.einsum("BHMK,BLHK->BHML", key, query_BLHK, preferred_element_type=jnp.float32)
        for key, _ in blocks
    ]
    scores_BHML = jnp.concatenate(parts, axis=2) * query_BLHK.shape[-1] ** -0.5
    mask_BHML = mask_BHML[:, :, : scores_BHML.shape[2]]
    scores_BHML = jnp.where(mask_BHML, scores_BHML, jnp.finfo(jnp.float32).min)
    weights_BHLM = jax.nn.softmax(scores_BHML, axis=2).swapaxes(2, 3)
    ends = np.cumsum([part.shape[2] for part in parts])
    heads_BHLV = sum(
        jnp.einsum("BHLM,BHMV->BHLV", weights.astype(value.dtype), value)
        for weights, (_, value) in zip(
            jnp.split(weights_BHLM, ends[:-1], axis=3), blocks, strict=True
        )
    )
    return jnp.swapaxes(heads_BHLV, 1, 2)


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
    scaled: bool = True

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
        query_BLHK = self._queries(x_BLD)
        if self.is_mutable_collection("intermediates"):  # asked for by plots alone
            weights_BHLM = attention_weights(query_BLHK, key_BMHK, mask_BHLM)
            self.sow("intermediates", "attention_weights", weights_BHLM)
        return self._joined(dot_product_attention(query_BLHK, key_BMHK, value_BMHV, mask_BHLM))

    def _queries(self, x_BLD: Array) -> Array:
        x_BLD = x_BLD.astype(self.dtype)
        query_BLHK = jnp.einsum("BLD,DHK->BLHK", x_BLD, self.query.astype(self.dtype))
        if not self.scaled:  # what attention divides scores by is taken back
            query_BLHK *= self.d_k**0.5
        return constrain(query_BLHK, BATCH, None, HEADS, None)

    def _joined(self, heads_BLHV: Array) -> Array:
        heads_BLHV = constrain(heads_BLHV, BATCH, None, HEADS, None)
        return jnp.einsum("BLHV,HVD->BLD", heads_BLHV, self.out.astype(self.dtype))

    def attend_to_cache(self, x_BKD: Array, blocks: Sequence[KeysValues], mask: Array) -> Array:
        """As a call, over keys and values that lie head by head; `[batch, beams, d_model]`."""
        return self._joined(attend_to_cache(self._queries(x_BKD), blocks, mask))

    def step(
        self, x_BKD: Array, cache: Sequence[KeysValues], position_B: Array, mask_B1MK: Array
    ) -> tuple[Array, tuple[KeysValues, ...]]:
        """Self-attention of one new position a hypothesis, over the cached keys and values.

        The beams stand where training has the length, and all beams' positions are keys of each:
        the mask leaves a hypothesis its own past. So nothing moves when search reorders its beam.

        Args:
          x_BKD: the new position's input `[batch, beams, d_model]`.
          cache: blocks of positions, keys `[batch, heads, length, beams, d_k]` and values
            `[..., d_v]`; as many are read as the furthest row needs.
          position_B: int32 `[batch]`, 0-based.
          mask_B1MK: booleans `[batch, 1, positions * beams, beams]`, True = may attend.

        Returns:
          Output `[batch, beams, d_model]`, and the cache with the new position written.
        """
        query_BKHK = self._queries(x_BKD)
        cache = _written(cache, self.keys_values(x_BKD), position_B)

        def read(blocks: int, query_BKHK: Array, cache: Sequence[KeysValues]) -> Array:
            flat = [(_keys_in_a_row(k), _keys_in_a_row(v)) for k, v in cache[:blocks]]
            return attend_to_cache(query_BKHK, flat, mask_B1MK)

        ends = np.cumsum([key.shape[2] for key, _ in cache])
        last = jnp.searchsorted(jnp.array(ends), position_B.max(), side="right")
        branches = [functools.partial(read, n + 1) for n in range(len(cache))]
        heads_BKHV = jax.lax.switch(last, branches, query_BKHK, cache)
        return self._joined(heads_BKHV), cache


def _written(
    cache: Sequence[KeysValues], new: KeysValues, position_B: Array
) -> tuple[KeysValues, ...]:
    """The cache with keys and values `[batch, beams, heads, ...]` at each row's position."""
    new_key, new_value = (x.swapaxes(1, 2) for x in new)
    rows_B, begin, blocks = jnp.arange(position_B.shape[0]), 0, []
    for key, value in cache:
        # What is not in this block falls away: numbers below 0 would count from its end.
        place_B = jnp.where(position_B < begin, key.shape[2], position_B - begin)
        key = key.at[rows_B, :, place_B].set(new_key, mode="drop")
        value = value.at[rows_B, :, place_B].set(new_value, mode="drop")
        blocks.append((key, value))
        begin += key.shape[2]
    return tuple(blocks)


def _keys_in_a_row(block: Array) -> Array:
    """Positions and beams as one axis of keys: `[batch, heads, length * beams, ...]`."""
    return block.reshape(*block.shape[:2], -1, block.shape[-1])
