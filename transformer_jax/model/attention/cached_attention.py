"""Equation 1 over the cache of search: few queries and many keys, which never move.

A layer's self-attention keeps one array of keys and one of values for each block of positions:

    block 0, positions 0 .. 15           block 1, positions 16 .. 31       block 2, 32 .. 63
    [B, G, 16, J, K]                     [B, G, 16, J, K]                  ...

    position            0           1           2          (one row of the batch, one head)
    beam slot         0 1 2       0 1 2       0 1 2
    key, flattened    0 1 2       3 4 5       6 7 8        index = position * beams + beam slot

Every hypothesis scores the keys of all beams, and the mask hides those that are not its ancestors.
So nothing moves when search reorders its beam. Each block is as long as all blocks before it, and a
search step reads only as many blocks as the longest hypothesis of the batch needs. Cross-attention
has one block, without an axis of beams.

Dimension key
  B batch   L query length (in search: the beams)   M key length   H heads   K d_k per head
  V d_v per head   J beams (K in files without d_k)   T positions   I beam slots
  G heads of keys and values   N queries of the heads that share a key   X any size
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.scores import Score
from transformer_jax.model.axes import BATCH, KEY_HEADS, zeros
from transformer_jax.model.interfaces import Params, Place
from transformer_jax.model.layers.matrix_products import einsum, sum_type

# [B, G, positions, K] and [B, G, positions, V]; in self-attention [B, G, positions, J, ...].
KeysValues = tuple[Array, Array]
SHORTEST_READ = 16  # positions of the first block


def attend_to_cache(
    query_BLHK: Array,
    blocks: Sequence[KeysValues],
    mask: Array,
    *,
    score: Callable[[Array, Array], Array],
    bias: Array | None = None,
    normalize: Callable[[Array, Array], Array] = softmax,
) -> tuple[Array, Array]:
    """`attend` over keys and values whose axis of heads comes before the positions.

    Args:
      query_BLHK: queries `[batch, query_len, heads, d_k]`.
      blocks: keys `[batch, key_heads, length, d_k]` and values `[..., d_v]`, one block after the
        other.
      mask: booleans that broadcast to `[batch, heads, query_len, keys]`; keys beyond those of
        `blocks` are cut off.
      score: the result of `cached_score`.
      bias: added to the scores; broadcasts like the mask.
      normalize: (scores, mask) -> weights.

    Returns:
      `[batch, query_len, heads, d_v]` in the values' type, and the weights
      `[batch, heads, query_len, keys]`, float32.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    scores_BHLM = jnp.concatenate([score(query_BLHK, key) for key, _ in blocks], axis=3)
    keys = scores_BHLM.shape[3]
    if bias is not None:
        scores_BHLM += bias[..., :keys]
    weights_BHLM = normalize(scores_BHLM, mask[..., :keys])
    ends = np.cumsum([key.shape[2] for key, _ in blocks])
    weights_BGNM = with_heads(weights_BHLM, blocks[0][1].shape[1])
    heads_BGNV: Any = sum(
        einsum("BGNM,BGMV->BGNV", weights.astype(value.dtype), value)
        for weights, (_, value) in zip(
            jnp.split(weights_BGNM, ends[:-1], axis=3), blocks, strict=True
        )
    )
    heads_BHLV = with_heads(heads_BGNV, weights_BHLM.shape[1])
    return jnp.swapaxes(heads_BHLV, 1, 2), weights_BHLM


def with_heads(x_BHLX: Array, heads: int) -> Array:
    """Regroups heads: `[batch, heads, H L / heads, X]`.

    If `heads` is below H, the queries of neighboring heads become those of one, head after head. A
    second call with H is the inverse.
    """
    batch, _, _, size = x_BHLX.shape
    return x_BHLX.reshape(batch, heads, -1, size)


def cached_score(score: Score, params: Params) -> Callable[[Array, Array], Array]:
    """(queries `[B, L, H, K]`, keys `[B, G, M, K]`) -> scores `[B, H, L, M]`.

    On a CPU a small product is slow if its larger factor must be transposed. So if the score is a
    product, the queries are transposed and the keys are read without a transpose: 3 ms instead of
    29 (256 rows, 128 keys).
    """

    def computed(query_BLHK: Array, key_BGMK: Array) -> Array:
        sharing = query_BLHK.shape[2] // key_BGMK.shape[1]
        key_BHMK = key_BGMK if sharing == 1 else jnp.repeat(key_BGMK, sharing, axis=1)
        return score.compute(params, query_BLHK, jnp.swapaxes(key_BHMK, 1, 2))

    if score.factor is None:
        return computed
    factor = score.factor

    def product(query_BLHK: Array, key_BGMK: Array) -> Array:
        if score.vectors is not None:
            query_BLHK, key_BGMK = score.vectors(params, query_BLHK, key_BGMK)
        heads = query_BLHK.shape[2]
        query_BGNK = with_heads(jnp.swapaxes(query_BLHK, 1, 2), key_BGMK.shape[1])
        wide = sum_type(query_BLHK.dtype)
        scores_BGMN = jnp.einsum(
            "BGMK,BGNK->BGMN", key_BGMK, query_BGNK, preferred_element_type=wide
        )
        # Without the barrier XLA folds the swap into the product, which then transposes the keys;
        # XLA for a CPU has no such product of bfloat16.
        scores_BGMN = jax.lax.optimization_barrier(scores_BGMN)
        scores_BHLM = with_heads(jnp.swapaxes(scores_BGMN, 2, 3), heads)
        return scores_BHLM * factor(query_BLHK.shape[-1])

    return product


def attend_to_past(
    query_BJHK: Array,
    blocks: Sequence[KeysValues],
    mask: Array,
    position_B: Array,
    attend: Callable[[Array, Sequence[KeysValues], Array], Array],
) -> Array:
    """Self-attention of the newest position of every hypothesis `[batch, beams, heads, d_v]`.

    Args:
      query_BJHK: queries `[batch, beams, heads, d_k]`.
      blocks: keys `[batch, key_heads, length, beams, d_k]` and values, the newest position
        included.
      mask: see `own_past`.
      position_B: 0-based positions of the newest subwords, int32 `[batch]`. Except on a GPU, blocks
        after the last of these positions are not read.
      attend: (queries, blocks, mask) -> heads: `attend_to_cache` without the weights.
    """

    def read(count: int, query_BJHK: Array, blocks: Sequence[KeysValues]) -> Array:
        flat = [(_flattened(key), _flattened(value)) for key, value in blocks[:count]]
        return attend(query_BJHK, flat, mask)

    last = last_block([key.shape[2] for key, _ in blocks], position_B)
    branches = [functools.partial(read, n + 1) for n in range(len(blocks))]
    return jax.lax.switch(last, branches, query_BJHK, blocks)


def last_block(lengths: Sequence[int], position_B: Array) -> Array:
    """The number of the last block to read, int32.

    A GPU waits for the host at each switch, which takes longer than to read all blocks. There the
    number is a constant, and XLA removes the switch.
    """

    def needed(position_B: Array) -> Array:
        return jnp.searchsorted(jnp.cumsum(jnp.array(lengths)), position_B.max(), side="right")

    def every(position_B: Array) -> Array:
        return jnp.full_like(needed(position_B), len(lengths) - 1)

    return jax.lax.platform_dependent(position_B, cuda=every, default=needed)


def _flattened(block: Array) -> Array:
    """Positions and beams as one axis of keys: `[batch, heads, length * beams, ...]`."""
    return block.reshape(*block.shape[:2], -1, block.shape[-1])


def own_past(allowed_B11T: Array, ancestors_BJT: Array) -> Array:
    """True for keys of the hypothesis's own past `[batch, 1, beams, T * beams]`.

    Args:
      allowed_B11T: where the patterns allow attention, by position.
      ancestors_BJT: see `Now`.
    """
    batch, beams, length = ancestors_BJT.shape
    own_BJTI = ancestors_BJT[..., None] == jnp.arange(beams)
    allowed = own_BJTI & allowed_B11T[:, 0, :, :, None]
    return allowed.reshape(batch, 1, beams, length * beams)


def cached_places(position_B: Array, length: int) -> tuple[Place, Place]:
    """The places of the newest position `[batch, 1]` and of the cache's positions `[1, T]`."""
    ones = jnp.ones((1, 1), jnp.int32)
    newest = Place(ones, position_B[:, None])
    return newest, Place(jnp.ones((1, length), jnp.int32), jnp.arange(length)[None])


def empty_blocks(config: ModelConfig, batch: int, beams: int, length: int) -> tuple:
    """Keys and values before the first position, boxed with the names of their axes."""
    ends = [0]
    while ends[-1] < length:
        ends.append(min(length, max(2 * ends[-1], SHORTEST_READ)))
    return tuple(
        empty_keys_values(config, batch, end - begin, beams)
        for begin, end in itertools.pairwise(ends)
    )


def empty_keys_values(config: ModelConfig, batch: int, *lengths: int) -> tuple:
    """Zeros `[batch, key_heads, *lengths, d_k]` and `[..., d_v]`, boxed with their axes' names."""
    names = (BATCH, KEY_HEADS, *(None,) * (len(lengths) + 1))
    shape = (batch, config.key_heads, *lengths)
    return tuple(zeros((*shape, size), names, config.dtype) for size in config.head_sizes)


def replaced(x: Array, index: Any, new: Array | int) -> Array:
    """`x.at[index].set(new, mode="drop")`.

    XLA for a CPU would convert a whole array of bfloat16 to float32 and back, so bfloat16 is
    written as uint16.
    """
    if x.dtype != jnp.bfloat16:
        return x.at[index].set(new, mode="drop")
    x_bits, new_bits = (
        jax.lax.bitcast_convert_type(one, jnp.uint16) for one in (x, jnp.asarray(new, x.dtype))
    )
    x_bits = x_bits.at[index].set(new_bits, mode="drop")
    return jax.lax.bitcast_convert_type(x_bits, x.dtype)


def with_new_position(
    blocks: Sequence[KeysValues], new: KeysValues, position_B: Array
) -> tuple[KeysValues, ...]:
    """The blocks with keys and values `[batch, beams, heads, ...]` at each row's position."""
    new_key, new_value = (x.swapaxes(1, 2) for x in new)
    rows_B = jnp.arange(position_B.shape[0])
    begin = 0
    result = []
    for key, value in blocks:
        # A position outside this block is dropped: a negative index would count from its end.
        offset_B = jnp.where(position_B < begin, key.shape[2], position_B - begin)
        here = (rows_B, slice(None), offset_B)
        result.append((replaced(key, here, new_key), replaced(value, here, new_value)))
        begin += key.shape[2]
    return tuple(result)
