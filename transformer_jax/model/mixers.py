"""Mixers: the sub-layers that let positions see one another.

Attention is here; what replaces a decoder's self-attention is in running_mixers.py.

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head   V d_v per head
  J beams (K in files without d_k)   E features of the encoder's output
  G heads of keys and values
"""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model import relative_vectors
from transformer_jax.model.attention import MultiHeadAttention, attend
from transformer_jax.model.attention_memories import SIZES as MEMORY_SIZES
from transformer_jax.model.axes import declared
from transformer_jax.model.cached_attention import (
    KeysValues,
    attend_to_cache,
    attend_to_past,
    cached_score,
    empty_blocks,
    empty_keys_values,
    with_new_position,
)
from transformer_jax.model.cross_normalizers import (
    NOISY,
    STATELESS,
    RowFacts,
    name_of,
    stateful,
    weights_with_state,
)
from transformer_jax.model.dropout import Drop, NoiseSource, kept, noise_of, weight_dropout
from transformer_jax.model.hard_attention import Sampled, with_draw
from transformer_jax.model.kernels import Keys, Queries, Setting
from transformer_jax.model.normalizers import NORMALIZERS, Normalize, unchanged
from transformer_jax.model.patterns import Pattern, cross_patterns, self_patterns
from transformer_jax.model.positions import POSITIONS
from transformer_jax.model.records import Cache, Context, Place, SearchSizes, StepContext
from transformer_jax.model.relative_vectors import (
    Attended,
    Spread,
    spread_in_cache,
    spread_in_row,
    with_relative_vectors,
)
from transformer_jax.model.scores import SCORES
from transformer_jax.model.stateful_normalizers import Scored, Source
from transformer_jax.model.sublayer import EMPTY_CACHE, Sublayer
from transformer_jax.model.windows import Blocks, blocks_of


class SelfAttention(Sublayer):
    """Attention of a sequence to itself (Vaswani et al. 2017, section 3.2.3)."""

    def setup(self) -> None:
        config = self.config
        self.score = config.score
        self.relative = None
        self.attention = MultiHeadAttention(config, self.score)
        nn.share_scope(self, self.attention)
        sizes = config.axis_sizes
        self.normalizer = NORMALIZERS[config.normalizer]
        self.of_heads = self.normalizer.of_heads
        self.normalizer_params = declared(self, self.normalizer.parameters, sizes)
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
        if not biased and _fuses(self, config.normalizer, context):
            place = context.self_place or place
            queries = Queries(query_BLHK, place)
            keys = Keys(key_BLHK, value_BLHV, place)
            heads_BLHV = _in_kernel(self, queries, keys, self_patterns(config, is_decoder))
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
        _sow(self, weights_BHLM)
        return _joined(self, blocks.joined(heads_BLHV), x_BLD), weights_BHLM

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
        factor = _factor(self)
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
        return _joined(self, heads_BJHV, x_BJD), Cache(blocks, ()), None


class CrossAttention(Sublayer):
    """Attention of the decoder to the encoder's output (Vaswani et al. 2017, section 3.2.3)."""

    def setup(self) -> None:
        config = self.config
        self.score = config.score if config.cross_score is None else config.cross_score
        self.normalizer = name_of(config)
        self.attention = MultiHeadAttention(config, self.score, self.encoded_features)
        nn.share_scope(self, self.attention)
        self.stateful = stateful(config)
        sizes = config.axis_sizes | {"encoded": self.encoded_features or config.d_model}
        sizes |= MEMORY_SIZES
        part = STATELESS[self.normalizer] if self.stateful is None else self.stateful
        self.of_heads = STATELESS[self.normalizer].of_heads if self.stateful is None else unchanged
        self.normalizer_params = declared(self, part.parameters, sizes)

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, Array | Sampled | None]:
        """`[batch, tgt_len, d_model]` and the weights `[batch, heads, tgt_len, src_len]`.

        The fused kernel gives no weights. If positions are drawn from them, they are `Sampled`.
        """
        assert context.encoded_BME is not None and context.cross_mask is not None
        query_BLHK = self.attention.queries(x_BLD)
        normalize = self._normalize(query_BLHK, context)
        shared = self.attention.keys_values(context.encoded_BME)
        key_BMHK, value_BMHV = (for_every_head(self.config, x) for x in shared)
        if self.stateful is None and _fuses(self, self.normalizer, context):
            assert context.source is not None and context.reader is not None
            queries = Queries(query_BLHK, context.reader)
            keys = Keys(key_BMHK, value_BMHV, context.source)
            heads_BLHV = _in_kernel(self, queries, keys, cross_patterns(self.config))
            return self.attention.joined(heads_BLHV, x_BLD), None
        sampled = list[Sampled]()
        if context.noise_source is not None:
            normalize = with_draw(normalize, context.noise_source, sampled)
        heads_BLHV, weights_BHLM = attend(
            query_BLHK,
            key_BMHK,
            value_BMHV,
            context.cross_mask,
            score=self.attention.scores,
            normalize=normalize,
            drop=weight_dropout(self, self.config.attention_dropout, context.rows_B),
        )
        _sow(self, weights_BHLM)
        return _joined(self, heads_BLHV, x_BLD), sampled[0] if sampled else weights_BHLM

    def _normalize(self, query_BLHK: Array, context: Context) -> Normalize:
        """(scores, mask) -> weights of all target positions."""
        noise_source = self._noise_source(context.rows_B)
        if self.stateful is None:
            return self._stateless(noise_source)
        assert context.encoded_BME is not None and context.source is not None
        part = self.stateful
        row = RowFacts(context.place.positions == 0, noise_source)
        source = Source(context.encoded_BME, context.source.words)
        features = part.prepare(self.normalizer_params, source)

        def normalize(scores_BHLM: Array, mask: Array) -> Array:
            scored = Scored(scores_BHLM, mask, query_BLHK, features, context.inputs_BLD)
            return weights_with_state(part, self.normalizer_params, scored, row)

        return normalize

    def _stateless(self, noise_source: NoiseSource | None) -> Normalize:
        normalizer = STATELESS[self.normalizer]
        return normalizer.of(self.config, self.normalizer_params, noise_source)

    def _noise_source(self, rows_B: Array | None) -> NoiseSource | None:
        """Of the normalizer's noise; None outside training, and if it has none."""
        if rows_B is None or self.normalizer not in NOISY:
            return None
        return noise_of(self, rows_B)

    def remember(self, encoded_BME: Array, source: Place) -> Any:
        """Keys and values head by head, and what a normalizer with a state prepares."""
        keys_values = self.attention.keys_values(encoded_BME)
        features: Any = ()
        if self.stateful is not None:
            own = Source(encoded_BME, source.words)
            features = self.stateful.prepare(self.normalizer_params, own)
        return tuple(x.swapaxes(1, 2) for x in keys_values), features

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> Any:
        """Keys, values and features of rows without a source sentence."""
        features: Any = ()
        if (part := stateful(self.config)) is not None and part.features is not None:
            features = part.features.empty(self._kept_sizes(sizes), sizes.batch)
        return empty_keys_values(self.config, sizes.batch, sizes.src_length), features

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """The state of the normalizer, if it has one."""
        if (part := stateful(self.config)) is None:
            return EMPTY_CACHE
        return Cache((), part.state.empty(self._kept_sizes(sizes), sizes.batch, sizes.beams))

    @nn.nowrap
    def _kept_sizes(self, sizes: SearchSizes) -> dict[str, int]:
        return self.config.axis_sizes | {"source": sizes.src_length}

    def step(
        self, x_BJD: Array, context: StepContext, memory: Any, cache: Cache
    ) -> tuple[Array, Cache, Array]:
        """One new position of every hypothesis over the source; weights `[B, H, J, M]`."""
        assert context.source_mask is not None
        keys_values, features_BHM = memory
        query_BJHK = self.attention.queries(x_BJD)
        carried = [cache.carried]  # a list, into which `normalize` puts its new state
        if (part := self.stateful) is None:
            normalize = self._stateless(None)
        else:

            def normalize(scores_BHJM: Array, mask_B11M: Array) -> Array:
                features = jax.tree.map(lambda x: x[:, None], features_BHM)
                scores_BJHM = scores_BHJM.swapaxes(1, 2)
                scored = Scored(scores_BJHM, mask_B11M, query_BJHK, features, context.inputs_BKD)
                carried[0], weights_BJHM = part.step(self.normalizer_params, carried[0], scored)
                return weights_BJHM.swapaxes(1, 2)

        heads_BJHV, weights_BHJM = attend_to_cache(
            query_BJHK,
            [keys_values],
            context.source_mask,
            score=cached_score(SCORES[self.score], self.attention.score_params),
            normalize=normalize,
        )
        return _joined(self, heads_BJHV, x_BJD), Cache((), carried[0]), weights_BHJM


def _joined(mixer: Any, heads_BLHV: Array, x_BLD: Array) -> Array:
    """`[batch, query_len, d_model]`: the heads' outputs, as the normalizer wants them, joined."""
    heads_BLHV = mixer.of_heads(mixer.normalizer_params, heads_BLHV)
    return mixer.attention.joined(heads_BLHV, x_BLD)


def for_every_head(config: ModelConfig, x_BMGK: Array) -> Array:
    """Keys or values, once for each head of queries: `[batch, key_len, heads, d_k or d_v]`.

    Query head h uses key head h // (num_heads / key_heads).

    Source: Ainslie et al. 2023, section 2.2.
    """
    sharing = config.num_heads // config.key_heads
    return x_BMGK if sharing == 1 else jnp.repeat(x_BMGK, sharing, axis=2)


def self_blocks(module: nn.Module, config: ModelConfig, length: int, is_decoder: bool) -> Blocks:
    """The blocks in which a row's self-attention is computed: one if plots ask for its weights."""
    return (
        Blocks(length, length) if _gives_weights(module) else blocks_of(config, length, is_decoder)
    )


def _gives_weights(module: nn.Module) -> bool:
    return module.is_mutable_collection("intermediates") or module.is_initializing()


def _fuses(mixer: Any, normalizer: str, context: Context) -> bool:
    """Whether all positions are computed by the fused kernel.

    It gives no weights, and drops none.
    """
    config = mixer.config
    if config.attention_kernel != "fused" or _gives_weights(mixer):
        return False
    drops = context.rows_B is not None and config.attention_dropout > 0
    return not drops and normalizer == "softmax" and SCORES[mixer.score].factor is not None


def _in_kernel(mixer: Any, queries: Queries, keys: Keys, patterns: tuple[Pattern, ...]) -> Array:
    """`[batch, query_len, heads, d_v]`, without a matrix of weights."""
    from transformer_jax.model.fused_attention import fused_attend

    if (vectors := SCORES[mixer.score].vectors) is not None:
        query, key = vectors(mixer.attention.score_params, queries.query, keys.key)
        queries, keys = queries._replace(query=query), keys._replace(key=key)
    return fused_attend(queries, keys, Setting(patterns, _factor(mixer)))


def _factor(mixer: Any) -> float:
    """What a product of queries and keys is multiplied by."""
    factor = SCORES[mixer.score].factor
    assert factor is not None
    return factor(mixer.config.head_sizes[0])


def _sow(mixer: nn.Module, weights: Array) -> None:
    """Keeps the weights of every layer and head if plots ask for them."""
    if mixer.is_mutable_collection("intermediates"):
        mixer.sow("intermediates", "attention_weights", weights)
