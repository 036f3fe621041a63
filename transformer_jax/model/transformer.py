"""The Transformer (Vaswani et al. 2017, figure 1), and one step of its decoder for search.

Dimension key
  B batch   L target length   M source length   D d_model   K beams   V vocabulary, padded
"""

import itertools
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.config import ModelConfig
from transformer_jax.model.attention import KeysValues, causal_mask, segment_mask
from transformer_jax.model.axes import BATCH, FEATURES, REPLICA, VOCABULARY, constrain
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.layers import (
    DecoderLayer,
    EncoderLayer,
    LayerNorm,
    head_sizes,
)
from transformer_jax.model.positions import sinusoids

VOCABULARY_MULTIPLE = 128  # whatever the mesh, so that shapes and initial values never depend on it
PAD_LOGIT = -1e9  # of the vocabulary's padding: finite, and exp of it is 0


def padded_vocabulary(size: int) -> int:
    """The vocabulary's size rounded up to a multiple of 128."""
    return -(-size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def output_logits(x_BLD: Array, table_VD: Array, dtype: str) -> Array:
    """x E^T, float32 `[batch, length, vocabulary]`; entries of its padding mean nothing.

    Args:
      x_BLD: the decoder's output; any number of axes may stand before the features.
      table_VD: the output embedding `[vocabulary, d_model]`.
      dtype: of the product's operands.

    Source: Vaswani et al. 2017, section 3.4.
    """
    logits_BLV = jnp.einsum(
        "...D,VD->...V",
        x_BLD.astype(dtype),
        table_VD.astype(dtype),
        preferred_element_type=jnp.float32,
    )
    lengths = (None,) * (logits_BLV.ndim - 2)
    return constrain(logits_BLV, BATCH, *lengths, VOCABULARY)


def shift_right(ids_BL: Array, positions_BL: Array, bos: int) -> Array:
    """The decoder's input: each sentence's subwords one later, BOS first; `[batch, tgt_len]`.

    A sentence of a packed row starts where its position is 0.
    """
    previous_BL = jnp.pad(ids_BL, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(positions_BL == 0, bos, previous_BL)


class Memory(NamedTuple):
    """What a source sentence gives to every step of search; it never moves between beams."""

    keys_values: tuple[KeysValues, ...]  # a layer: [B, heads, M, d_k], [B, heads, M, d_v]
    mask_B1M1: Array  # True = a real source position


# A layer: blocks of positions, [B, heads, length, K, d_k] and [..., d_v].
Cache = tuple[tuple[KeysValues, ...], ...]
SHORTEST_READ = 16  # positions of a cache; reads are of so many, or twice, four times, ... as many


def empty_memory(config: ModelConfig, batch: int, src_length: int) -> Memory:
    """What rows without a sentence give to search."""
    one = _empty_keys_values(config, batch, src_length)
    return Memory((one,) * config.num_layers, jnp.zeros((batch, 1, src_length, 1), bool))


def empty_cache(config: ModelConfig, batch: int, beams: int, max_length: int) -> Cache:
    """Keys and values of no position yet, for `beams` hypotheses a sentence."""
    ends = [0]
    while ends[-1] < max_length:
        ends.append(min(max_length, max(2 * ends[-1], SHORTEST_READ)))
    blocks = tuple(
        _empty_keys_values(config, batch, end - begin, beams)
        for begin, end in itertools.pairwise(ends)
    )
    return (blocks,) * config.num_layers


def _empty_keys_values(config: ModelConfig, batch: int, *places: int) -> KeysValues:
    d_k, d_v = head_sizes(config)
    shape = (batch, config.num_heads, *places)
    return jnp.zeros((*shape, d_k), config.dtype), jnp.zeros((*shape, d_v), config.dtype)


def own_past(position_B: Array, ancestors_BKT: Array) -> Array:
    """True where a key of the cache is of a hypothesis's own past `[batch, 1, T * beams, beams]`.

    Args:
      position_B: int32, the newest subwords' 0-based positions.
      ancestors_BKT: see `Transformer.decode_step`.
    """
    batch, beams, length = ancestors_BKT.shape
    own_BTJK = ancestors_BKT.transpose(0, 2, 1)[:, :, None] == jnp.arange(beams)[:, None]
    past_BT = jnp.arange(length) <= position_B[:, None]
    return (own_BTJK & past_BT[:, :, None, None]).reshape(batch, 1, length * beams, beams)


class Embedding(nn.Module):
    """Subword vectors times sqrt(d_model), plus positions, then dropout (3.4, 3.5 and 5.4)."""

    config: ModelConfig
    vocabulary_size: int

    def setup(self) -> None:
        shape = (padded_vocabulary(self.vocabulary_size), self.config.d_model)
        self.table = self.param("table", nn.initializers.normal(shape[1] ** -0.5), shape)
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self, ids_BL: Array, position_vectors: Array | float, rows_B: Array | None
    ) -> Array:
        """float32 `[batch, length, d_model]`."""
        # Parts of the vectors are looked up where they lie, and then exchanged for whole ones: less
        # to send than the table and its gradient.
        table_VD = constrain(self.table, VOCABULARY, FEATURES)
        parts_BLD = constrain(table_VD[constrain(ids_BL, REPLICA, None)], REPLICA, None, FEATURES)
        x_BLD = constrain(parts_BLD, BATCH, None, None) * self.config.d_model**0.5
        return self.dropout(x_BLD + position_vectors, rows_B)


class Positions(nn.Module):
    """The chosen positional encoding: sinusoidal (no length limit), learned or none."""

    config: ModelConfig

    @nn.compact
    def __call__(self, positions: Array, length: int) -> Array | float:
        """Vectors `[*positions.shape, d_model]` of 0-based positions below `length`.

        Raises:
          ValueError: `length` exceeds what learned positions have.
        """
        config = self.config
        if config.positions == "none":
            return 0.0
        if config.positions == "sinusoidal":
            return jnp.asarray(sinusoids(length, config.d_model))[positions]
        # A table's last row would silently stand for all that is beyond it: refuse.
        if length > config.max_positions:
            raise ValueError(
                f"{length} positions are more than the model.max_positions={config.max_positions} "
                "learned ones. Sinusoidal positions have no limit."
            )
        init = nn.initializers.normal(config.d_model**-0.5)
        return self.param("table", init, (config.max_positions, config.d_model))[positions]


class Transformer(nn.Module):
    """Encoder and decoder; every method is a pure function through `Transformer.apply`."""

    config: ModelConfig
    vocabulary_size: int  # real, not padded
    remat: bool = False  # recompute each layer's activations in the backward pass

    def setup(self) -> None:
        config, layers = self.config, range(self.config.num_layers)
        encoder_layer = nn.remat(EncoderLayer) if self.remat else EncoderLayer
        decoder_layer = nn.remat(DecoderLayer) if self.remat else DecoderLayer
        self.embedding = Embedding(config, self.vocabulary_size)
        if not config.tie_embeddings:
            self.tgt_embedding = Embedding(config, self.vocabulary_size)
            self.output = Embedding(config, self.vocabulary_size)
        self.src_positions, self.tgt_positions = Positions(config), Positions(config)
        self.encoder = [encoder_layer(config) for _ in layers]
        self.decoder = [decoder_layer(config) for _ in layers]
        if config.norm == "pre":  # the sum of all residuals is normalised once, at the end
            self.encoder_norm, self.decoder_norm = LayerNorm(), LayerNorm()

    def encode(
        self,
        src_ids_BM: Array,
        src_segments_BM: Array,
        src_positions_BM: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """The encoder's output, float32 `[batch, src_len, d_model]`.

        Args:
          src_ids_BM: subwords `[batch, src_len]`.
          src_segments_BM: 0 = padding, 1, 2, ... = the sentence of a packed row `[batch, src_len]`.
          src_positions_BM: 0-based position in the sentence `[batch, src_len]`.
          rows_B: numbers of the rows in the global batch `[batch]`, for dropout; None: no dropout.
        """
        vectors = self.src_positions(src_positions_BM, src_ids_BM.shape[1])
        x_BMD = self.embedding(src_ids_BM, vectors, rows_B)
        mask_B1MM = segment_mask(src_segments_BM, src_segments_BM)
        for layer in self.encoder:
            x_BMD = layer(x_BMD, mask_B1MM, rows_B)
        return self.encoder_norm(x_BMD) if self.config.norm == "pre" else x_BMD

    def decode(
        self,
        encoded_BMD: Array,
        src_segments_BM: Array,
        input_ids_BL: Array,
        tgt_segments_BL: Array,
        tgt_positions_BL: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """The decoder's output before the vocabulary, float32 `[batch, tgt_len, d_model]`.

        Args:
          encoded_BMD: the encoder's output.
          src_segments_BM: segments of the source `[batch, src_len]`.
          input_ids_BL: the target shifted right, `[batch, tgt_len]`.
          tgt_segments_BL: segments of the target `[batch, tgt_len]`.
          tgt_positions_BL: 0-based position in the sentence `[batch, tgt_len]`.
          rows_B: numbers of the rows in the global batch `[batch]`, for dropout; None: no dropout.
        """
        vectors = self.tgt_positions(tgt_positions_BL, input_ids_BL.shape[1])
        x_BLD = self._embed_target(input_ids_BL, vectors, rows_B)
        causal_11LL = causal_mask(input_ids_BL.shape[1])
        self_mask_B1LL = segment_mask(tgt_segments_BL, tgt_segments_BL) & causal_11LL
        cross_mask_B1LM = segment_mask(tgt_segments_BL, src_segments_BM)
        for layer in self.decoder:
            x_BLD = layer(x_BLD, encoded_BMD, self_mask_B1LL, cross_mask_B1LM, rows_B)
        return self.decoder_norm(x_BLD) if self.config.norm == "pre" else x_BLD

    def _embed_target(self, ids_BL: Array, vectors: Array | float, rows_B: Array | None) -> Array:
        embedding = self.embedding if self.config.tie_embeddings else self.tgt_embedding
        # Linen derives the dropout key from the module's path and the number of its calls, so the
        # masks of source and target differ.
        return embedding(ids_BL, vectors, rows_B)

    def logits(self, x_BLD: Array) -> Array:
        """float32 `[batch, length, padded vocabulary]`; the padding's entries are -1e9."""
        logits_BLV = output_logits(x_BLD, self._output_table(), self.config.dtype)
        real_V = jnp.arange(logits_BLV.shape[-1]) < self.vocabulary_size
        return jnp.where(real_V, logits_BLV, PAD_LOGIT)

    def _output_table(self) -> Array:
        return (self.embedding if self.config.tie_embeddings else self.output).table

    def __call__(
        self,
        src_ids_BM: Array,
        src_segments_BM: Array,
        src_positions_BM: Array,
        input_ids_BL: Array,
        tgt_segments_BL: Array,
        tgt_positions_BL: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """Logits of each next subword, float32 `[batch, tgt_len, padded vocabulary]`.

        The arguments are those of `encode` and `decode`.
        """
        source = (src_ids_BM, src_segments_BM, src_positions_BM)
        target = (input_ids_BL, tgt_segments_BL, tgt_positions_BL)
        return self.logits(self.before_vocabulary(*source, *target, rows_B)[0])

    def before_vocabulary(
        self,
        src_ids_BM: Array,
        src_segments_BM: Array,
        src_positions_BM: Array,
        input_ids_BL: Array,
        tgt_segments_BL: Array,
        tgt_positions_BL: Array,
        rows_B: Array | None = None,
    ) -> tuple[Array, Array]:
        """The two factors of the logits, for a loss that never holds all of those.

        The arguments are those of `encode` and `decode`. Returns the decoder's output, float32
        `[batch, tgt_len, d_model]`, and the output embedding `[padded vocabulary, d_model]`.
        """
        encoded_BMD = self.encode(src_ids_BM, src_segments_BM, src_positions_BM, rows_B)
        target = (input_ids_BL, tgt_segments_BL, tgt_positions_BL)
        return self.decode(encoded_BMD, src_segments_BM, *target, rows_B), self._output_table()

    def start_decoding(self, encoded_BMD: Array, src_segments_BM: Array) -> Memory:
        """What each source sentence gives to every step of search."""
        keys_values = tuple(layer.memory(encoded_BMD) for layer in self.decoder)
        return Memory(keys_values, (src_segments_BM != 0)[:, None, :, None])

    def output_embedding(self) -> Array:
        """What `decode_step` makes logits with, the same at every step: `[vocabulary, d_model]`."""
        return self._output_table()[: self.vocabulary_size].astype(self.config.dtype)

    def decode_step(
        self,
        ids_BK: Array,
        position_B: Array,
        ancestors_BKT: Array,
        memory: Memory,
        cache: Cache,
        output_VD: Array,
    ) -> tuple[Array, Cache]:
        """Logits of the next subword, float32 `[batch, beams, vocabulary]`, and the new cache.

        Args:
          ids_BK: the newest subword of each hypothesis `[batch, beams]`; BOS at position 0.
          position_B: int32 `[batch]`, the newest subwords' 0-based positions.
          ancestors_BKT: int32 `[batch, beams, max_len]`: where in the beam each hypothesis's own
            subword of a position stands, the newest included; beyond that anything.
          memory: of the source sentences.
          cache: keys and values of the positions before.
          output_VD: what `output_embedding` gives.
        """
        vectors_BD = self.tgt_positions(position_B, ancestors_BKT.shape[2])
        vectors = vectors_BD if isinstance(vectors_BD, float) else vectors_BD[:, None]
        x_BKD = self._embed_target(ids_BK, vectors, None)
        past = (position_B, own_past(position_B, ancestors_BKT))
        written = []
        for layer, keys_values, old in zip(self.decoder, memory.keys_values, cache, strict=True):
            x_BKD, new = layer.step(x_BKD, keys_values, old, memory.mask_B1M1, *past)
            written.append(new)
        x_BKD = self.decoder_norm(x_BKD) if self.config.norm == "pre" else x_BKD
        return output_logits(x_BKD, output_VD, self.config.dtype), tuple(written)
