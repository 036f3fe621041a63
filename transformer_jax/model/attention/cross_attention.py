"""Encoder-decoder attention as a sub-layer, in all positions at once and in one step of search.

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head   V d_v per head
  J beams (K in files without d_k)   E features of the encoder's output
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.attention.attention_sublayer import AttentionSublayer, for_every_head
from transformer_jax.model.attention.cached_attention import attend_to_cache, empty_keys_values
from transformer_jax.model.attention.combinations import COMBINATIONS, Reading, is_serial
from transformer_jax.model.attention.cross_normalizers import (
    NOISY,
    STATELESS,
    name_of,
    normal_noise,
    stateful,
)
from transformer_jax.model.attention.hard_attention import Sampled, with_draw
from transformer_jax.model.attention.memories import SIZES as MEMORY_SIZES
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.normalizers import Normalize
from transformer_jax.model.attention.patterns import cross_patterns
from transformer_jax.model.attention.stateful_normalizers import Scored, Source, weights_of_all
from transformer_jax.model.axes import BATCH, zeros
from transformer_jax.model.interfaces import (
    Attended,
    Cache,
    Context,
    Place,
    SearchSizes,
    StepContext,
)
from transformer_jax.model.kernels.choices import Keys, Queries
from transformer_jax.model.layers.dropout import NoiseSource, noise_of, weight_dropout
from transformer_jax.model.layers.sublayer import EMPTY_CACHE


class CrossAttention(AttentionSublayer):
    """Attention of the decoder to the encoder's output (Vaswani et al. 2017, section 3.2.3)."""

    sentence: int = 0  # with model.combination=serial: the number of the one that it reads

    def setup(self) -> None:
        config = self.config
        score = config.score if config.cross_score is None else config.cross_score
        self.normalizer = name_of(config)
        self.stateful = stateful(config)
        self.combine = None
        if (combination := COMBINATIONS[config.combination]) is not None:
            own = (self.sentence,) if is_serial(config) else tuple(range(config.sources))
            self.combine = combination(config, own)
        sizes = config.axis_sizes | {"encoded": self.side.encoded or config.d_model}
        part = STATELESS[self.normalizer] if self.stateful is None else self.stateful
        self.declare(score, part, sizes | MEMORY_SIZES, self.side.encoded)

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, Array | Sampled | None]:
        """`[batch, tgt_len, d_model]` and the weights `[batch, heads, tgt_len, src_len]`.

        The weights are None from the fused kernel. If training draws positions from them, a
        `Sampled` is returned in their place.
        """
        attended = context.attended
        assert attended is not None
        query_BLHK = self.attention.queries(x_BLD)
        normalize = self.probed(self._normalize(query_BLHK, context, attended))
        shared = self.attention.keys_values(attended.encoded_BME)
        key_BMHK, value_BMHV = (for_every_head(self.config, x) for x in shared)
        is_plain = self.stateful is None and self.combine is None
        if is_plain and self.fuses(self.normalizer, context):
            queries = Queries(query_BLHK, attended.reader)
            keys = Keys(key_BMHK, value_BMHV, attended.source)
            heads_BLHV = self.in_kernel(queries, keys, cross_patterns(self.config))
            return self.attention.joined(heads_BLHV, x_BLD), None
        sampled = list[Sampled]()
        if attended.noise_source is not None:
            normalize = with_draw(normalize, attended.noise_source, sampled)
        drop = weight_dropout(self, self.config.attention_dropout, context.rows_B)

        def read(normalize: Normalize) -> tuple[Array, Array]:
            return attend(
                query_BLHK,
                key_BMHK,
                value_BMHV,
                attended.mask,
                score=self.attention.scores,
                normalize=normalize,
                drop=drop,
            )

        x_BLD, weights_BHLM = self._combined(
            read, normalize, x_BLD, attended.mask, attended.source.sentences
        )
        self.keep_for_plots(weights_BHLM)
        return x_BLD, sampled[0] if sampled else weights_BHLM

    def _combined(
        self,
        read: Callable[[Normalize], tuple[Array, Array]],
        normalize: Normalize,
        x_BLD: Array,
        mask: Array,
        sentence_BM: Array | None,
    ) -> tuple[Array, Array]:
        """The output and the weights as other parts see them."""

        def join(heads_BLHV: Array) -> Array:
            return self.joined(heads_BLHV, x_BLD)

        if self.combine is None:
            heads_BLHV, weights_BHLM = read(normalize)
            return join(heads_BLHV), weights_BHLM
        assert sentence_BM is not None
        out, weights = self.combine(Reading(read, join, normalize, mask, sentence_BM), x_BLD)
        return out, weights

    def _normalize(self, query_BLHK: Array, context: Context, attended: Attended) -> Normalize:
        """(scores, mask) -> weights of all target positions."""
        noise_source = None
        if context.rows_B is not None and self.normalizer in NOISY:
            noise_source = noise_of(self, context.rows_B)
        if self.stateful is None:
            return self._stateless(noise_source)
        part = self.stateful
        begins_BL = context.place.positions == 0
        source = Source(attended.encoded_BME, attended.source.words)
        features = part.prepare(self.normalizer_params, source)

        def normalize(scores_BHLM: Array, mask: Array) -> Array:
            scored = Scored(scores_BHLM, mask, query_BLHK, features, context.inputs_BLD)
            if part.expected is None or noise_source is None:
                return weights_of_all(part, self.normalizer_params, scored, begins_BL)
            noise_BHLM = normal_noise(noise_source, scores_BHLM.shape)
            return part.expected(self.normalizer_params, scored, begins_BL, noise_BHLM)

        return normalize

    def _stateless(self, noise_source: NoiseSource | None) -> Normalize:
        normalizer = STATELESS[self.normalizer]
        return normalizer.of(self.config, self.normalizer_params, noise_source)

    def remember(self, encoded_BME: Array, source: Place) -> Any:
        """Keys and values head by head, and what a normalizer with a state prepares."""
        keys_values = self.attention.keys_values(encoded_BME)
        # What `step` needs: the features of a normalizer with a state, or numbers of sentences.
        features: Any = () if source.sentences is None else source.sentences
        if self.stateful is not None:
            own = Source(encoded_BME, source.words)
            features = self.stateful.prepare(self.normalizer_params, own)
        return tuple(x.swapaxes(1, 2) for x in keys_values), features

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> Any:
        """Keys, values and features of rows without a source sentence."""
        features: Any = ()
        if COMBINATIONS[self.config.combination] is not None:
            features = zeros((sizes.batch, sizes.src_length), (BATCH, None), jnp.int32)
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
        mask = context.source_mask
        assert mask is not None
        keys_values, features = memory
        query_BJHK = self.attention.queries(x_BJD)
        carried = [cache.carried]  # a list, into which `normalize` puts its new state
        if (part := self.stateful) is None:
            normalize = self._stateless(None)
        else:

            def normalize(scores_BHJM: Array, mask_B11M: Array) -> Array:
                own = jax.tree.map(lambda x: x[:, None], features)
                scores_BJHM = scores_BHJM.swapaxes(1, 2)
                scored = Scored(scores_BJHM, mask_B11M, query_BJHK, own, context.inputs_BKD)
                carried[0], weights_BJHM = part.step(self.normalizer_params, carried[0], scored)
                return weights_BJHM.swapaxes(1, 2)

        def read(normalize: Normalize) -> tuple[Array, Array]:
            return attend_to_cache(
                query_BJHK,
                [keys_values],
                mask,
                score=self.score_of_cache(),
                normalize=normalize,
            )

        sentence_BM = None if self.combine is None else features
        x_BJD, weights_BHJM = self._combined(read, normalize, x_BJD, mask, sentence_BM)
        return x_BJD, Cache((), carried[0]), weights_BHJM
