"""Self-attention as a sub-layer, in all positions at once and in one step of search.

What replaces it is in running_mixers.py and encoder_mixers.py.

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head   V d_v per head
  J beams (K in files without d_k)   G heads of keys and values
"""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.attention_sublayer import (
    AttentionSublayer,
    for_every_head,
    gives_weights,
)
from transformer_jax.model.attention.cached_attention import (
    KeysValues,
    attend_to_cache,
    attend_to_past,
    empty_blocks,
    empty_keys_values,
    with_new_position,
)
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.normalizers import NORMALIZERS, Normalize
from transformer_jax.model.attention.patterns import self_patterns
from transformer_jax.model.attention.windows import Blocks, blocks_of
from transformer_jax.model.axes import declared
from transformer_jax.model.interfaces import Cache, Context, SearchSizes, StepContext, is_prefix
from transformer_jax.model.kernels.choices import Keys, Queries
from transformer_jax.model.layers.dropout import Drop, kept, weight_dropout
from transformer_jax.model.positions import query_distances
from transformer_jax.model.positions.choices import POSITIONS
from transformer_jax.model.positions.query_distances import Distances, Pairs


class SelfAttention(AttentionSublayer):
    """Attention of a sequence to itself (Vaswani et al. 2017, section 3.2.3)."""

    def setup(self) -> None:
        config = self.config
        sizes = config.axis_sizes
        self.normalizer = NORMALIZERS[config.normalizer]
        self.declare(config.score, self.normalizer, sizes)
        self.by_query = POSITIONS[config.positions].by_query
        if self.by_query is not None:
            sizes["distances"] = query_distances.size(config)
            self.position_params = declared(self, self.by_query.parameters(config), sizes)

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, Array | None]:
        """`[batch, length, d_model]` and the weights `[batch, heads, length, length]`.

        The weights are None from the fused kernel, and block by block in a window (windows.py).
        """
        config = self.config
        is_decoder = self.side.is_decoder
        query_BLHK, *shared = self._projected(x_BLD, context.place.positions)
        key_BLHK, value_BLHV = (for_every_head(config, x) for x in shared)
        sight = context.sight
        is_plain = sight.bias is None and self.by_query is None
        if is_plain and self.fuses(config.normalizer, context):
            queries = Queries(query_BLHK, context.self_place)
            keys = Keys(key_BLHK, value_BLHV, context.self_place)
            heads_BLHV = self.in_kernel(queries, keys, self_patterns(config, is_decoder))
            return self.attention.joined(heads_BLHV, x_BLD), None
        blocks = self_blocks(self, config, x_BLD.shape[1], is_decoder)
        query_BLHK = blocks.of_queries(query_BLHK)
        key_distances = query_distances.in_row(blocks)
        drop = weight_dropout(self, config.attention_dropout, blocks.of_rows(context.rows_B))
        heads_BLHV, weights_BHLM = attend(
            query_BLHK,
            blocks.of_keys(key_BLHK),
            blocks.of_keys(value_BLHV),
            sight.mask,
            score=self.attention.scores,
            bias=sight.bias,
            normalize=self.probed(self._normalize(query_BLHK, key_distances)),
            drop=drop,
        )
        heads_BLHV = self._with_values(heads_BLHV, weights_BHLM, key_distances, drop)
        self.keep_for_plots(weights_BHLM)
        return self.joined(blocks.joined(heads_BLHV), x_BLD), weights_BHLM

    def _normalize(self, query_BLHK: Array, key_distances: Distances) -> Normalize:
        """(scores, mask) -> weights, with the term of the layer's positions if they have one."""
        normalize = self.normalizer.of(self.config, self.normalizer_params, None)
        if (by_query := self.by_query) is None:
            return normalize
        scaled_BLHK = query_BLHK * self.factor()

        def with_term(scores_BHLM: Array, mask: Array) -> Array:
            pairs = Pairs(scaled_BLHK, scores_BHLM, mask, key_distances)
            return normalize(scores_BHLM + by_query.term(self.position_params, pairs), mask)

        return with_term

    def _with_values(
        self, heads_BLHV: Array, weights_BHLM: Array, key_distances: Distances, drop: Drop = kept
    ) -> Array:
        """The heads' outputs, with what the layer's positions add to the values."""
        if self.by_query is None or self.by_query.values is None:
            return heads_BLHV
        weights_BHLM = drop(weights_BHLM)
        return self.by_query.values(self.position_params, heads_BLHV, weights_BHLM, key_distances)

    def _projected(self, x_BLD: Array, positions_BL: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values; several heads of queries may share a head of the others."""
        query_BLHK = self.attention.queries(x_BLD)
        key_BLGK, value_BLGV = self.attention.keys_values(x_BLD)
        if rotate := POSITIONS[self.config.positions].rotate:
            query_BLHK, key_BLGK = (rotate(x, positions_BL) for x in (query_BLHK, key_BLGK))
        return query_BLHK, key_BLGK, value_BLGV

    def read(self, x_BMD: Array, context: Context) -> tuple[Array, KeysValues]:
        """`__call__` on a prefix, and its keys and values, head by head, for `step`."""
        y_BMD, _ = self(x_BMD, context)
        _, *keys_values = self._projected(x_BMD, context.place.positions)
        key_BGMK, value_BGMV = (x.swapaxes(1, 2) for x in keys_values)
        return y_BMD, (key_BGMK, value_BGMV)

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> tuple:
        """Keys and values of a prefix, if the source is one."""
        if not (self.side.is_decoder and is_prefix(self.config)):
            return ()
        return empty_keys_values(self.config, sizes.batch, sizes.src_length)

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """Blocks of keys and values."""
        return Cache(empty_blocks(self.config, sizes.batch, sizes.beams, sizes.length), ())

    def step(
        self, x_BJD: Array, context: StepContext, memory: tuple, cache: Cache
    ) -> tuple[Array, Cache, None]:
        """`[batch, beams, d_model]` of each hypothesis' new position, and the cache with it.

        If the source is a prefix, the memory has its keys and values, else it is empty.
        """
        positions_B1 = context.position_B[:, None]
        prefix_B11M = context.source_mask if memory else None
        if prefix_B11M is not None:
            positions_B1 += jnp.sum(prefix_B11M[:, 0, 0], axis=-1, keepdims=True, dtype=jnp.int32)
        query_BJHK, key_BJGK, value_BJGV = self._projected(x_BJD, positions_B1)
        blocks = with_new_position(cache.written, (key_BJGK, value_BJGV), context.position_B)
        score = self.score_of_cache()
        sight = context.sight

        def attend_over(query_BJHK: Array, read: Sequence[KeysValues], mask: Array) -> Array:
            keys = sum(key.shape[2] for key, _ in read)
            key_distances = query_distances.in_cache(context.distance_BS[:, :keys])
            if prefix_B11M is not None:
                shape = *mask.shape[:3], prefix_B11M.shape[3]
                prefix = jnp.broadcast_to(prefix_B11M, shape)
                mask = jnp.concatenate([mask[..., :keys], prefix], axis=3)
                read = [*read, memory]
            heads_BJHV, weights_BHJM = attend_to_cache(
                query_BJHK,
                read,
                mask,
                score=score,
                bias=sight.bias,
                normalize=self._normalize(query_BJHK, key_distances),
            )
            return self._with_values(heads_BJHV, weights_BHJM, key_distances)

        heads_BJHV = attend_to_past(query_BJHK, blocks, sight.mask, context.position_B, attend_over)
        return self.joined(heads_BJHV, x_BJD), Cache(blocks, ()), None


def self_blocks(module: nn.Module, config: ModelConfig, length: int, is_decoder: bool) -> Blocks:
    """The blocks in which a row's self-attention is computed: one if plots ask for its weights."""
    whole = Blocks(length, length)
    return whole if gives_weights(module) else blocks_of(config, length, is_decoder)
