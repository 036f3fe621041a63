"""What every kind of model shares: embeddings, logits, and the calls of training and search.

Dimension key
  B batch   L target length   M source length   D d_model   V vocabulary, padded
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.axes import BATCH, FEATURES, REPLICA, VOCABULARY, constrain
from transformer_jax.model.dropout import Dropout

# Pytrees of arrays [batch, ...]:
Memory = Any  # what a source sentence gives to every step of search
Cache = Any  # what a hypothesis's past gives to the next step

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


class EncoderDecoder(nn.Module):
    """A model of either kind; every method is a pure function through `apply`.

    A kind adds `encode`, `decode`, `start_decoding`, `decode_step`, and the shapes of what the last
    two keep, `empty_memory` and `empty_cache`.
    """

    config: ModelConfig
    vocabulary_size: int  # real, not padded
    remat: bool = False  # compute again in the backward pass what would take memory to keep

    def setup(self) -> None:
        """The embeddings."""
        self.embedding = Embedding(self.config, self.vocabulary_size)
        if not self.config.tie_embeddings:
            self.tgt_embedding = Embedding(self.config, self.vocabulary_size)
            self.output = Embedding(self.config, self.vocabulary_size)

    def encode(
        self,
        src_ids_BM: Array,
        src_segments_BM: Array,
        src_positions_BM: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """The encoder's output, float32 `[batch, src_len, features]`.

        Args:
          src_ids_BM: subwords `[batch, src_len]`.
          src_segments_BM: 0 = padding, 1, 2, ... = the sentence of a packed row `[batch, src_len]`.
          src_positions_BM: 0-based position in the sentence `[batch, src_len]`.
          rows_B: numbers of the rows in the global batch `[batch]`, for dropout; None: no dropout.
        """
        raise NotImplementedError

    def decode(
        self,
        encoded_BME: Array,
        src_segments_BM: Array,
        input_ids_BL: Array,
        tgt_segments_BL: Array,
        tgt_positions_BL: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """The decoder's output before the vocabulary, float32 `[batch, tgt_len, d_model]`.

        Args:
          encoded_BME: the encoder's output.
          src_segments_BM: segments of the source `[batch, src_len]`.
          input_ids_BL: the target shifted right, `[batch, tgt_len]`.
          tgt_segments_BL: segments of the target `[batch, tgt_len]`.
          tgt_positions_BL: 0-based position in the sentence `[batch, tgt_len]`.
          rows_B: numbers of the rows in the global batch `[batch]`, for dropout; None: no dropout.
        """
        raise NotImplementedError

    def start_decoding(self, encoded_BME: Array, src_segments_BM: Array) -> Memory:
        """What each source sentence gives to every step of search; it never moves between beams."""
        raise NotImplementedError

    def decode_step(
        self,
        ids_BK: Array,
        position_B: Array,
        parents_BK: Array,
        ancestors_BKT: Array,
        memory: Memory,
        cache: Cache,
        output_VD: Array,
    ) -> tuple[Array, Cache]:
        """Logits of the next subword, float32 `[batch, beams, vocabulary]`, and the new cache.

        Args:
          ids_BK: the newest subword of each hypothesis `[batch, beams]`; BOS at position 0.
          position_B: int32 `[batch]`, the newest subwords' 0-based positions.
          parents_BK: int32 `[batch, beams]`: the hypotheses' places in the beam one step earlier.
          ancestors_BKT: int32 `[batch, beams, max_len]`: where in the beam each hypothesis's own
            subword of a position stands, the newest included; beyond that anything.
          memory: of the source sentences.
          cache: of the positions before.
          output_VD: what `output_embedding` gives.
        """
        raise NotImplementedError

    def empty_memory(self, batch: int, src_length: int) -> Memory:
        """What rows without a sentence give to search."""
        raise NotImplementedError

    def empty_cache(self, batch: int, beams: int, max_length: int) -> Cache:
        """The cache of no position yet, for `beams` hypotheses a sentence."""
        raise NotImplementedError

    def _embed_target(self, ids_BL: Array, vectors: Array | float, rows_B: Array | None) -> Array:
        embedding = self.embedding if self.config.tie_embeddings else self.tgt_embedding
        # Linen derives the dropout key from the module's path and the number of its calls, so the
        # masks of source and target differ.
        return embedding(ids_BL, vectors, rows_B)

    def _output_table(self) -> Array:
        return (self.embedding if self.config.tie_embeddings else self.output).table

    def logits(self, x_BLD: Array) -> Array:
        """float32 `[batch, length, padded vocabulary]`; the padding's entries are -1e9."""
        logits_BLV = output_logits(x_BLD, self._output_table(), self.config.dtype)
        real_V = jnp.arange(logits_BLV.shape[-1]) < self.vocabulary_size
        return jnp.where(real_V, logits_BLV, PAD_LOGIT)

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

    def output_embedding(self) -> Array:
        """What `decode_step` makes logits with, the same at every step: `[vocabulary, d_model]`."""
        return self._output_table()[: self.vocabulary_size].astype(self.config.dtype)
