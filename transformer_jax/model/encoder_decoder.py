"""The encoder-decoder (Vaswani et al. 2017, figure 1): embedding, encoder, decoder, output.

Dimension key
  B batch   L target length   M source length   D d_model   E features of the encoder's output
  K beams   V vocabulary, padded
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.combinations import COMBINATIONS
from transformer_jax.model.attention.cross_normalizers import stateful
from transformer_jax.model.axes import BATCH, FEATURES, VOCABULARY, declared, named, zeros
from transformer_jax.model.interfaces import (
    Cache,
    Given,
    LossSums,
    Memory,
    Now,
    Place,
    SearchSizes,
    StepGiven,
    Stepped,
    encoder_place,
    place_of,
    reads_source,
    source_number,
    visible_place,
)
from transformer_jax.model.outputs.choices import OUTPUTS, PARALLEL, PARALLEL_AXES
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.outputs.objectives import objective_of
from transformer_jax.model.outputs.softmax_output import Softmax, with_bias
from transformer_jax.model.sides.choices import ENCODERS, decoder_of, longest
from transformer_jax.model.sides.embeddings import (
    VOCABULARY_MULTIPLE,
    Embedding,
    Projection,
    padded_vocabulary,
    with_codes,
)
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.vocabulary import Sizes, both_sides


class EncoderDecoder(nn.Module):
    """Any encoder with any decoder; every method is a pure function through `apply`."""

    config: ModelConfig
    sizes: Sizes  # real sizes of the vocabularies, not padded
    remat: bool = False  # compute layers again in the backward pass instead of keeping them
    watch: bool = False  # whether decoders return the weights of the watched layer
    vocabulary_multiple: int = VOCABULARY_MULTIPLE  # 1: no padding, for counting FLOPs

    def setup(self) -> None:
        """Creates the embeddings, the encoder and the decoder, and names their parameters."""
        config, sizes, multiple = self.config, self.sizes, self.vocabulary_multiple
        self.embedding = Embedding(config, sizes.source, multiple)
        self.projection = Projection(config)  # it has parameters only if it is called
        if not config.tie_embeddings:
            self.tgt_embedding = Embedding(config, sizes.target, multiple)
        if not (config.tie_embeddings or config.tie_output):
            self.output = Embedding(config, sizes.target, multiple)
        if config.output_bias:
            self.output_bias = self.param(
                "output_bias",
                named(nn.initializers.zeros, VOCABULARY),
                (padded_vocabulary(sizes.target, multiple),),
            )
        if config.sources > 1:
            init = named(nn.initializers.zeros, None, FEATURES)
            self.source_vectors = self.param("sources", init, (config.sources, config.d_model))
        features = ENCODERS[config.encoder].features(config)
        axes = {"d_model": config.d_model, "hidden": config.d_model, "encoded": features}
        asked = {**self.out().parameters, **PARALLEL[config.parallel]}
        self.output_params = declared(self, asked, axes | PARALLEL_AXES)
        self.source_side: Any = ENCODERS[config.encoder](config, self.remat)
        self.target_side = self._decoder()
        nn.share_scope(self, self.source_side)
        nn.share_scope(self, self.target_side)

    @nn.nowrap
    def _decoder(self, **parent: Any) -> Any:
        config = self.config
        encoder = ENCODERS[config.encoder]
        watch = self.watch or self.out().watches
        return decoder_of(config)(config, encoder, self.remat, watch, **parent)

    def encode(self, source: Packed, rows_B: Array | None = None) -> Array:
        """The encoder's output, float32 `[batch, src_len, features]`.

        Args:
          source: the source side of a batch.
          rows_B: numbers of the rows in the global batch `[batch]`, for dropout; None: no dropout.
        """
        place = encoder_place(self.config, source)
        vectors = self.source_side.position_vectors(place)
        if self.config.sources > 1:
            vectors += self.source_vectors[source_number(source)]
        return self.source_side(self._embed_source(source, vectors, rows_B), place, rows_B)

    def decode(
        self,
        encoded_BME: Array,
        source: Packed,
        target: Packed,
        rows_B: Array | None = None,
        **options: bool,
    ) -> tuple[Array, Any]:
        """The decoder's output before the vocabulary, and the watched weights.

        Args:
          encoded_BME: the encoder's output.
          source: the source side of the batch.
          target: the target side, its ids shifted right.
          rows_B: numbers of the rows in the global batch `[batch]`, for dropout; None: no dropout.
          options: `full_context` and `draws` of a Transformer's decoder (transformer.py).

        Returns:
          float32 `[batch, tgt_len, d_model]`, and `[batch, tgt_len, src_len]` or None. The weights
          at a position belong to the subword that is predicted there.
        """
        place, seen = place_of(target), self.source_place(source)
        vectors = self.target_side.position_vectors(place, place.positions.shape[1], seen)
        ids_BL = target.ids
        if self.config.code_in_decoder:
            ids_BL = with_codes(ids_BL, target, source)
        # Linen derives the dropout key from the module's path and the number of its calls, so the
        # masks of source and target differ.
        x_BLD = self._target_embedding()(ids_BL, vectors, rows_B)
        return self.target_side(x_BLD, place, encoded_BME, seen, rows_B, **options)

    def source_place(self, source: Packed) -> Place:
        """The place of the source, with what attention to it asks for: sentences, words."""
        place = visible_place(self.config, source)
        if COMBINATIONS[self.config.combination] is not None:
            place = place._replace(sentences=source_number(source))
        asking = stateful(self.config)
        if asking is None or not asking.reads_words:
            return place
        return place._replace(words=self._embed_source(source, 0.0, None))

    def align(
        self, encoded_BME: Array, source: Packed, target: Packed, rows_B: Array | None = None
    ) -> Array | None:
        """The watched weights of a second pass of the decoder, which sees the whole target.

        It takes what `decode` takes. The input is shifted as there, so the position that predicts
        a subword sees the subword itself at the next position (Garg et al. 2019, section 4.3).
        """
        return self.decode(encoded_BME, source, target, rows_B, full_context=True)[1]

    def __call__(self, source: Packed, target: Packed, rows_B: Array | None = None) -> Array:
        """Logits of each next subword, float32 `[batch, tgt_len, padded vocabulary]`.

        The arguments are those of `decode`.
        """
        return self.logits_and_watched(source, target, rows_B)[0]

    def logits_and_watched(
        self, source: Packed, target: Packed, rows_B: Array | None = None
    ) -> tuple[Array, Array | None]:
        """The logits of `__call__`, and the watched weights of `decode`."""
        encoded_BME = self.encode(source, rows_B)
        x_BLD, watched_BLM = self.decode(encoded_BME, source, target, rows_B)
        if watched_BLM is None and self.is_initializing():  # without layers: see parameters.py
            watched_BLM = jnp.zeros((*x_BLD.shape[:2], source.ids.shape[1]))
        given = self.given(watched_BLM, encoded_BME, source, target)
        return self.out().logits(x_BLD, given), watched_BLM if self.watch else None

    def loss(
        self,
        batch: Batch,
        rows_B: Array | None,
        settings: LossSettings,
        baseline: Array | None = None,
    ) -> tuple[LossSums, Array | None]:
        """The sums of the loss over a batch's real target positions, and the watched weights.

        Args:
          batch: both sides; the decoder's input is made here.
          rows_B: numbers of the rows in the global batch `[batch]`, for dropout; None: no dropout.
          settings: of the loss. Auxiliary losses need a model that watches.
          baseline: the loss that is expected of a subword, with the auxiliary loss "reinforce".
        """
        losses = [name for name, _ in settings.auxiliary]
        objective = objective_of(losses, self.config.parallel)
        return objective.sums(self, batch, rows_B, settings, baseline)

    # Search ------------------------------------------------------------------------------------

    def prepare_output(self) -> Array:
        """The array from which `decode_step` makes logits; it is the same in every search step."""
        return self.out().prepare(self.output_table())

    def remember(self, encoded_BME: Array, source: Packed) -> Memory:
        """What every search step needs of the source sentences, one per row."""
        remembered = self.target_side.remember(encoded_BME, self.source_place(source))
        own = self.out().remember(self.output_params, encoded_BME, source)
        visible_BM = visible_place(self.config, source).segments != 0
        first_B = source.ids[:, 0] if self.config.code_in_decoder else ()
        return Memory(remembered, visible_BM, own, first_B)

    def decode_step(self, now: Now, memory: Memory, cache: Cache, prepared: Any) -> Stepped:
        """Logits of the next subword of every hypothesis, and the new cache.

        Args:
          now: the newest subwords.
          memory: the result of `remember`.
          cache: the cache of earlier positions; search has reordered what hypotheses carry.
          prepared: the result of `prepare_output`.
        """
        positions_B1 = now.position_B[:, None]
        length = now.ancestors_BKT.shape[2]
        newest = Place(jnp.ones_like(positions_B1), positions_B1)
        vectors = self.target_side.position_vectors(newest, length, memory.source_place)
        ids_BK = now.ids_BK
        if self.config.code_in_decoder:
            ids_BK = jnp.where(positions_B1 == 0, memory.first_B[:, None], ids_BK)
        x_BKD = self._target_embedding()(ids_BK, vectors, None)
        cache, written = self.out().own_cache(cache)
        x_BKD, cache, watched_BKM = self.target_side.step(x_BKD, now, memory, cache)
        given = StepGiven(prepared, self.output_params, watched_BKM, memory.output, written)
        logits_BKV, cache = self.out().step(x_BKD, given, now, cache)
        return Stepped(logits_BKV, cache, watched_BKM if self.watch else None)

    def read(
        self, ids_B: Array, position_B: Array, memory: Memory, cache: Cache
    ) -> tuple[Memory, Cache]:
        """Encodes one more subword of sentences that arrive, for a model that waits (wait-k).

        What the encoder and the memory have of earlier subwords does not change.

        Args:
          ids_B: int32 `[batch]`.
          position_B: its 0-based position, int32 `[batch]`; all are equal.
          memory: of the subwords before it; at first `remember` of an encoder's output of zeros.
          cache: the encoder's, of the subwords before it; at first `boxed_source_cache`.
        """
        length = memory.source_BM.shape[1]
        position_B1 = position_B[:, None]
        ones_B1 = jnp.ones_like(position_B1)
        vectors = self.source_side.position_vectors(Place(ones_B1, position_B1), length)
        x_B1D = self.embedding(ids_B[:, None], vectors, None)
        encoded_B1E, cache = self.source_side.step(x_B1D, position_B, length, cache)
        new = self.remember(encoded_B1E, Packed(ids_B[:, None], ones_B1, position_B1))

        def write(axis: int, old: Any, new: Any) -> Any:
            update = functools.partial(lax.dynamic_update_slice_in_dim, axis=axis)
            return jax.tree.map(lambda x, part: update(x, part, position_B[0]), old, new)

        # Keys, values and features of attention are head by head: [batch, heads, src_len, ...].
        decoder = write(2, memory.decoder, new.decoder)
        source_BM, own = write(1, (memory.source_BM, memory.output), (new.source_BM, new.output))
        return Memory(decoder, source_BM, own), cache

    @nn.nowrap
    def boxed_source_cache(self, sizes: SearchSizes) -> Cache:
        """The cache of `read` before the first subword, boxed with the names of its axes."""
        return ENCODERS[self.config.encoder](self.config, parent=None).empty_cache(sizes)

    @property
    def sources(self) -> int:
        """Source sentences of each pair; 0: a language model."""
        return self.config.sources if reads_source(self.config) else 0

    @property
    def members(self) -> tuple["EncoderDecoder"]:
        """The models that predict: this one alone; an ensemble has several."""
        return (self,)

    @nn.nowrap
    def for_search(
        self, dtype: str | None, watch: bool, wait_k: int | None = None
    ) -> "EncoderDecoder":
        """The model with another type of its products and, if it waits, another k (None: its own).

        Attention is plain, also in a run that is training. With `watch` the model returns the
        watched weights.
        """
        dtype = dtype or self.config.dtype
        config = dataclasses.replace(self.config, dtype=dtype, attention_kernel="plain")
        if config.wait_k is not None:
            config = dataclasses.replace(config, wait_k=wait_k or config.wait_k, wait_k_max=None)
        return self.clone(config=config, watch=watch)

    @nn.nowrap
    def boxed_memory(self, sizes: SearchSizes) -> Memory:
        """The memory of rows without a sentence, boxed with the names of its axes."""
        source = zeros((sizes.batch, sizes.src_length), (BATCH, None), bool)
        remembered = self._decoder(parent=None).empty_memory(sizes)
        codes = self.config.code_in_decoder
        first_B = zeros((sizes.batch,), (BATCH,), jnp.int32) if codes else ()
        return Memory(remembered, source, self.out().empty_memory(sizes), first_B)

    @nn.nowrap
    def boxed_cache(self, sizes: SearchSizes) -> Cache:
        """The cache before the first position, boxed with the names of its axes."""
        return self.out().with_cache(self._decoder(parent=None).empty_cache(sizes), sizes)

    @nn.nowrap
    def longest(self) -> int | None:
        """The largest number of positions of a sentence or row; None: any number."""
        return longest(self.config)

    @nn.nowrap
    def stacks(self) -> dict[str, tuple[Any, int]]:
        """A layer and the number of layers, for "encoder" and "decoder" if they have layers."""
        encoder = ENCODERS[self.config.encoder](self.config, parent=None)
        sides = {"encoder": encoder.stack(), "decoder": self._decoder(parent=None).stack()}
        return {name: stack for name, stack in sides.items() if stack is not None}

    # Parts -------------------------------------------------------------------------------------

    def _embed_source(self, source: Packed, vectors: Array | float, rows_B: Array | None) -> Array:
        if self.config.features:
            return self.projection(source.features, vectors, rows_B)
        return self.embedding(source.ids, vectors, rows_B)

    @nn.nowrap
    def _target_embedding(self) -> Embedding:
        return self.embedding if self.config.tie_embeddings else self.tgt_embedding

    def output_table(self) -> Array:
        """The table that the output multiplies by, `[padded vocabulary, d_model]`."""
        is_tied = self.config.tie_embeddings or self.config.tie_output
        table_VD = (self._target_embedding() if is_tied else self.output).for_output()
        return with_bias(table_VD, self.output_bias) if self.config.output_bias else table_VD

    def given(
        self, watched_BLM: Array | None, encoded_BME: Array, source: Packed, target: Packed
    ) -> Given:
        """What the output reads beside the decoder's output."""
        table_VD = self.output_table()
        return Given(table_VD, self.output_params, watched_BLM, encoded_BME, source, target)

    @nn.nowrap
    def out(self) -> Softmax:
        """What predicts subwords from the decoder's output: model.output."""
        return OUTPUTS[self.config.output](self.config, self.sizes.target)


def make_model(
    config: ModelConfig, sizes: Sizes | int, remat: bool = False, watch: bool = False
) -> EncoderDecoder:
    """The model of a config.

    Args:
      config: keys of the model, whose parts fit each other (config/checks.py).
      sizes: of the vocabularies, real, not padded; a number: one vocabulary for both sides.
      remat: computes layers again in the backward pass instead of keeping their arrays.
      watch: returns the weights of the watched layer.

    Raises:
      TypeError: the config is of another type.
    """
    if not isinstance(config, ModelConfig):
        raise TypeError(f"config is of type {type(config).__name__}, not ModelConfig.")
    return EncoderDecoder(config, both_sides(sizes), remat, watch)
