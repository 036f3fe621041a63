"""Self-attention as a sub-layer, in all positions at once and in one step of search.

What replaces it is in running_mixers.py and encoder_mixers.py.

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head   V d_v per head
  J beams (K in files without d_k)   G heads of keys and values
"""

import functools
from collections.abc import Sequence

import flax.linen as nn
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model import relative_vectors
from transformer_jax.model.attention import attend
from transformer_jax.model.attention_sublayer import (
    AttentionSublayer,
    for_every_head,
    gives_weights,
)
from transformer_jax.model.axes import declared
from transformer_jax.model.cached_attention import (
    KeysValues,
    attend_to_cache,
    attend_to_past,
    cached_score,
    empty_blocks,
    with_new_position,
)
from transformer_jax.model.dropout import Drop, kept, weight_dropout
from transformer_jax.model.kernels import Keys, Queries
from transformer_jax.model.normalizers import NORMALIZERS, Normalize
from transformer_jax.model.patterns import self_patterns
from transformer_jax.model.positions import POSITIONS
from transformer_jax.model.records import Cache, Context, SearchSizes, StepContext
from transformer_jax.model.relative_vectors import (
    Attended,
    Spread,
    spread_in_cache,
    spread_in_row,
    with_relative_vectors,
)
from transformer_jax.model.scores import SCORES
from transformer_jax.model.windows import Blocks, blocks_of


class SelfAttention(AttentionSublayer):
    """Attention of a sequence to itself (Vaswani et al. 2017, section 3.2.3)."""

    def setup(self) -> None:
        config = self.config
        sizes = config.axis_sizes
        self.normalizer = NORMALIZERS[config.normalizer]
        self.declare(config.score, self.normalizer, sizes)
        self.relative = None
        if POSITIONS[config.positions].relative:
            sizes["distances"] = relative_vectors.distances(config)
            self.relative = declared(self, relative_vectors.parameters(config), sizes)

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, Array | None]:
        """`[batch, length, d_model]` and the weights `[batch, heads, length, length]`.

        The fused kernel gives no weights, and those of a window are block by block.
        """
        config = self.config
        place = context.place
        is_decoder = self.encoded_features is not None
        query_BLHK, *shared = self._projected(x_BLD, place.positions)
        key_BLHK, value_BLHV = (for_every_head(config, x) for x in shared)
        biased = context.self_bias is not None or self.relative is not None
        if not biased and self.fuses(config.normalizer, context):
            place = context.self_place or place
            queries = Queries(query_BLHK, place)
            keys = Keys(key_BLHK, value_BLHV, place)
            heads_BLHV = self.in_kernel(queries, keys, self_patterns(config, is_decoder))
            return self.attention.joined(heads_BLHV, x_BLD), None
        blocks = self_blocks(self, config, x_BLD.shape[1], is_decoder)
        query_BLHK = blocks.of_queries(query_BLHK)
        rows_B = blocks.of_rows(context.rows_B)
        drop = weight_dropout(self, config.attention_dropout, rows_B)
        attended = functools.partial(
            attend,
            query_BLHK,
            blocks.of_keys(key_BLHK),
            blocks.of_keys(value_BLHV),
            context.self_mask,
            score=self.attention.scores,
            normalize=self._normalize(),
            drop=drop,
        )
        spread = functools.partial(spread_in_row, keys=blocks.keys, behind=blocks.behind)
        heads_BLHV, weights_BHLM = self._by_distance(
            query_BLHK, spread, attended, context.self_bias, drop
        )
        self.keep_for_plots(weights_BHLM)
        return self.joined(blocks.joined(heads_BLHV), x_BLD), weights_BHLM

    def _normalize(self) -> Normalize:
        return self.normalizer.of(self.config, self.normalizer_params, None)

    def _by_distance(
        self,
        query_BLHK: Array,
        spread: Spread,
        attended: Attended,
        bias: Array | None,
        drop: Drop = kept,
    ) -> tuple[Array, Array]:
        """Calls `attended` with the layer's relative vectors if it has them, else with the bias."""
        if self.relative is None:
            return attended(bias=bias)
        factor = self.factor()
        return with_relative_vectors(self.relative, query_BLHK * factor, spread, attended, drop)

    def _projected(self, x_BLD: Array, positions_BL: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values; several heads of queries may share a head of the others."""
        query_BLHK = self.attention.queries(x_BLD)
        key_BLGK, value_BLGV = self.attention.keys_values(x_BLD)
        if rotate := POSITIONS[self.config.positions].rotate:
            query_BLHK, key_BLGK = (rotate(x, positions_BL) for x in (query_BLHK, key_BLGK))
        return query_BLHK, key_BLGK, value_BLGV

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """Blocks of keys and values."""
        return Cache(empty_blocks(self.config, sizes.batch, sizes.beams, sizes.length), ())

    def step(
        self, x_BJD: Array, context: StepContext, memory: tuple, cache: Cache
    ) -> tuple[Array, Cache, None]:
        """One new position of every hypothesis, whose keys and values join the cache."""
        query_BJHK, key_BJGK, value_BJGV = self._projected(x_BJD, context.position_B[:, None])
        blocks = with_new_position(cache.written, (key_BJGK, value_BJGV), context.position_B)
        score = cached_score(SCORES[self.score], self.attention.score_params)
        normalize = self._normalize()

        def attend_over(query_BJHK: Array, read: Sequence[KeysValues], mask: Array) -> Array:
            keys = sum(key.shape[2] for key, _ in read)
            attended = functools.partial(
                attend_to_cache, query_BJHK, read, mask, score=score, normalize=normalize
            )
            spread = functools.partial(spread_in_cache, distance_BM=context.distance_BS[:, :keys])
            return self._by_distance(query_BJHK, spread, attended, context.self_bias)[0]

        heads_BJHV = attend_to_past(
            query_BJHK, blocks, context.self_mask, context.position_B, attend_over
        )
        return self.joined(heads_BJHV, x_BJD), Cache(blocks, ()), None


def self_blocks(module: nn.Module, config: ModelConfig, length: int, is_decoder: bool) -> Blocks:
    """The blocks in which a row's self-attention is computed: one if plots ask for its weights."""
    whole = Blocks(length, length)
    return whole if gives_weights(module) else blocks_of(config, length, is_decoder)
