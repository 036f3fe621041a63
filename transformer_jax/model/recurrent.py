"""The encoder-decoder that the Transformer replaced: gated recurrent units and additive attention.

Bahdanau et al. 2015, appendix A; vectors of a sentence are made one after the other, left to right
and right to left in the encoder.

Dimension key
  B batch   L target length   M source length   D d_model   H d_hidden   G gates, 3 H
  C annotations, 2 H   I inputs, O outputs   K beams
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.attention import segment_mask
from transformer_jax.model.axes import BATCH, constrain
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.encoder_decoder import EncoderDecoder, output_logits

_xavier, _orthogonal = nn.initializers.xavier_uniform(), nn.initializers.orthogonal()


def hidden_size(config: ModelConfig) -> int:
    """Units of each of the three recurrent layers."""
    return config.d_model if config.d_hidden is None else config.d_hidden


def product(x: Array, weights_IO: Array, dtype: str) -> Array:
    """x W, float32 `[..., outputs]`, of operands of that type."""
    return jnp.einsum(
        "...I,IO->...O",
        x.astype(dtype),
        weights_IO.astype(dtype),
        preferred_element_type=jnp.float32,
    )


def additive_weights(query_BKH: Array, key_BMH: Array, score_H: Array, mask_B1M: Array) -> Array:
    """softmax over the source of v^T tanh(W s + U h): float32 `[batch, beams, src_len]`.

    Args:
      query_BKH: W s of each state `[batch, beams, d_hidden]`.
      key_BMH: U h of each annotation `[batch, src_len, d_hidden]`.
      score_H: v `[d_hidden]`.
      mask_B1M: booleans that broadcast to `[batch, beams, src_len]`, True = may attend.

    Source: Bahdanau et al. 2015, appendix A.1.2 and equation 6.
    """
    together_BKMH = jnp.tanh(query_BKH[:, :, None] + key_BMH[:, None])
    scores_BKM = jnp.einsum("BKMH,H->BKM", together_BKMH, score_H)
    # finfo.min, not -inf: softmax of a fully masked row would be NaN.
    return jax.nn.softmax(jnp.where(mask_B1M, scores_BKM, jnp.finfo(jnp.float32).min))


class Gates(NamedTuple):
    """What a gated unit does with its last state: three matrices `[d_hidden, d_hidden]`."""

    update_HH: Array
    reset_HH: Array
    candidate_HH: Array


def gated_update(state: Array, inputs: Array, gates: Gates, dtype: str) -> Array:
    """The next state (1 - z) s + z tanh(W x + U (r s)), float32 `[..., d_hidden]`.

    z = sigmoid(W_z x + U_z s) updates, r = sigmoid(W_r x + U_r s) resets.

    Args:
      state: s, the last one `[..., d_hidden]`.
      inputs: W_z x, W_r x and W x, with their biases, side by side `[..., 3 d_hidden]`.
      gates: U_z, U_r and U.
      dtype: of the products' operands.

    Source: Bahdanau et al. 2015, appendix A.1.1; Cho et al. 2014.
    """
    to_update, to_reset, to_candidate = jnp.split(inputs, 3, axis=-1)
    update = jax.nn.sigmoid(to_update + product(state, gates.update_HH, dtype))
    reset = jax.nn.sigmoid(to_reset + product(state, gates.reset_HH, dtype))
    candidate = jnp.tanh(to_candidate + product(reset * state, gates.candidate_HH, dtype))
    return (1.0 - update) * state + update * candidate


class GatedUnit(nn.Module):
    """A gated recurrent unit (Cho et al. 2014)."""

    num_inputs: int
    hidden: int
    dtype: str

    def setup(self) -> None:
        h = self.hidden
        self.input = self.param("input", _xavier, (self.num_inputs, 3 * h))
        self.bias = self.param("bias", nn.initializers.zeros, (3 * h,))
        names = ("update", "reset", "candidate")
        self.gates = Gates(*(self.param(name, _orthogonal, (h, h)) for name in names))

    def inputs(self, x: Array) -> Array:
        """What inputs `[..., inputs]` give to both gates and the candidate `[..., 3 d_hidden]`."""
        return product(x, self.input, self.dtype) + self.bias

    def __call__(self, state: Array, inputs: Array) -> Array:
        """The next state `[..., d_hidden]`, from the last one and what the inputs give."""
        return gated_update(state, inputs, self.gates, self.dtype)

    def run(self, x_BMI: Array, segments_BM: Array, reverse: bool) -> Array:
        """The states after each position `[batch, length, d_hidden]`, each sentence from zeros.

        Args:
          x_BMI: inputs `[batch, length, inputs]`.
          segments_BM: the sentence of each position `[batch, length]`.
          reverse: from right to left.
        """
        same_BM = segments_BM[:, 1:] == segments_BM[:, :-1]
        goes_on_BM = jnp.pad(same_BM, ((0, 0), (0, 1) if reverse else (1, 0)))

        def step(state_BH: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            inputs_BG, goes_on_B = now
            state_BH = self(jnp.where(goes_on_B[:, None], state_BH, 0.0), inputs_BG)
            return state_BH, state_BH

        along = (self.inputs(x_BMI).swapaxes(0, 1), goes_on_BM.swapaxes(0, 1))
        start_BH = jnp.zeros((x_BMI.shape[0], self.hidden))
        _, states_MBH = jax.lax.scan(step, start_BH, along, reverse=reverse)
        return constrain(states_MBH.swapaxes(0, 1), BATCH, None, None)


class Memory(NamedTuple):
    """What a source sentence gives to every step."""

    key_BMH: Array  # U h
    annotation_BMC: Array  # h
    mask_B1M: Array  # True = a real source position
    start_BH: Array  # the decoder's first state


class Decoder(nn.Module):
    """A gated unit whose inputs are the subword before and a context, chosen by attention."""

    config: ModelConfig

    def setup(self) -> None:
        d_model, h, dtype = self.config.d_model, hidden_size(self.config), self.config.dtype
        self.unit = GatedUnit(d_model, h, dtype)
        self.context = self.param("context", _xavier, (2 * h, 3 * h))
        self.start = self.param("start", _xavier, (h, h))
        self.query = self.param("query", _xavier, (h, h))
        self.key = self.param("key", _xavier, (2 * h, h))
        self.score = self.param("score", nn.initializers.normal(h**-0.5), (h,))
        self.readout = self.param("readout", _xavier, (3 * h + d_model, 2 * d_model))
        self.readout_bias = self.param("readout_bias", nn.initializers.zeros, (2 * d_model,))

    def keys(self, annotation_BMC: Array) -> Array:
        """U h of each annotation `[batch, src_len, d_hidden]`."""
        return product(annotation_BMC, self.key, self.config.dtype)

    def starts(self, annotation_BMC: Array) -> Array:
        """tanh(W_s h), h from right to left: the first state, were that the first subword."""
        backward_BMH = jnp.split(annotation_BMC, 2, axis=-1)[1]
        return jnp.tanh(product(backward_BMH, self.start, self.config.dtype))

    def step(
        self, state_BKH: Array, inputs_BKG: Array, memory: Memory
    ) -> tuple[Array, Array, Array]:
        """The next states, the contexts `[batch, beams, 2 d_hidden]` and the attention's weights.

        Args:
          state_BKH: the last ones `[batch, beams, d_hidden]`.
          inputs_BKG: what the subwords before give to the unit.
          memory: of the source sentences; its first state is not looked at.
        """
        dtype = self.config.dtype
        query_BKH = product(state_BKH, self.query, dtype)
        weights_BKM = additive_weights(query_BKH, memory.key_BMH, self.score, memory.mask_B1M)
        context_BKC = jnp.einsum(
            "BKM,BMC->BKC",
            weights_BKM.astype(dtype),
            memory.annotation_BMC.astype(dtype),
            preferred_element_type=jnp.float32,
        )
        inputs_BKG = inputs_BKG + product(context_BKC, self.context, dtype)
        return self.unit(state_BKH, inputs_BKG), context_BKC, weights_BKM

    def read(self, state_BLH: Array, context_BLC: Array, x_BLD: Array) -> Array:
        """The maxout layer before the vocabulary, float32 `[batch, length, d_model]`.

        Source: Bahdanau et al. 2015, equation 4 and appendix A.2.2.
        """
        joined = jnp.concatenate([state_BLH, context_BLC, x_BLD], axis=-1)
        pairs = product(joined, self.readout, self.config.dtype) + self.readout_bias
        return pairs.reshape(*pairs.shape[:-1], -1, 2).max(-1)


class Recurrent(EncoderDecoder):
    """Bidirectional encoder and attending decoder, on the same batches as the Transformer.

    Each sentence of a packed row starts from its own first state and attends to its own source.
    """

    def setup(self) -> None:
        """The embeddings, both directions of the encoder, and the decoder."""
        super().setup()
        config, h = self.config, hidden_size(self.config)
        self.left_to_right = GatedUnit(config.d_model, h, config.dtype)
        self.right_to_left = GatedUnit(config.d_model, h, config.dtype)
        self.decoder = Decoder(config)
        self.encoder_dropout = Dropout(config.dropout)
        self.decoder_dropout = Dropout(config.dropout)

    def encode(
        self,
        src_ids_BM: Array,
        src_segments_BM: Array,
        src_positions_BM: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """Annotations, float32 `[batch, src_len, 2 d_hidden]`; see `EncoderDecoder`."""
        x_BMD = self.embedding(src_ids_BM, 0.0, rows_B)
        forward_BMH = self.left_to_right.run(x_BMD, src_segments_BM, reverse=False)
        backward_BMH = self.right_to_left.run(x_BMD, src_segments_BM, reverse=True)
        annotation_BMC = jnp.concatenate([forward_BMH, backward_BMH], axis=-1)
        return self.encoder_dropout(annotation_BMC, rows_B)

    def decode(
        self,
        encoded_BMC: Array,
        src_segments_BM: Array,
        input_ids_BL: Array,
        tgt_segments_BL: Array,
        tgt_positions_BL: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """The maxout layer's output, float32 `[batch, tgt_len, d_model]`; see `EncoderDecoder`."""
        x_BLD = self._embed_target(input_ids_BL, 0.0, rows_B)
        mask_BLM = segment_mask(tgt_segments_BL, src_segments_BM)[:, 0]
        own_first_BL1 = jnp.argmax(mask_BLM, axis=-1, keepdims=True)
        start_BLH = jnp.take_along_axis(self.decoder.starts(encoded_BMC), own_first_BL1, axis=1)
        key_BMH = self.decoder.keys(encoded_BMC)

        def step(state_BH: Array, now: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
            inputs_BG, begins_B, start_BH, mask_BM = now
            state_BH = jnp.where(begins_B[:, None], start_BH, state_BH)
            memory = Memory(key_BMH, encoded_BMC, mask_BM[:, None], start_BH)
            stepped = self.decoder.step(state_BH[:, None], inputs_BG[:, None], memory)
            state_BH, context_BC, _ = (x[:, 0] for x in stepped)
            return state_BH, (state_BH, context_BC)

        inputs_BLG = self.decoder.unit.inputs(x_BLD)
        along = (inputs_BLG, tgt_positions_BL == 0, start_BLH, mask_BLM)
        _, (state_LBH, context_LBC) = jax.lax.scan(
            jax.checkpoint(step) if self.remat else step,
            jnp.zeros_like(start_BLH[:, 0]),
            jax.tree.map(lambda x: x.swapaxes(0, 1), along),
        )
        y_BLD = self.decoder.read(state_LBH.swapaxes(0, 1), context_LBC.swapaxes(0, 1), x_BLD)
        return self.decoder_dropout(constrain(y_BLD, BATCH, None, None), rows_B)

    def start_decoding(self, encoded_BMC: Array, src_segments_BM: Array) -> Memory:
        """Keys, annotations and the first state; see `EncoderDecoder`."""
        start_BH = self.decoder.starts(encoded_BMC[:, :1])[:, 0]
        mask_B1M = (src_segments_BM != 0)[:, None]
        return Memory(self.decoder.keys(encoded_BMC), encoded_BMC, mask_B1M, start_BH)

    def decode_step(
        self,
        ids_BK: Array,
        position_B: Array,
        parents_BK: Array,
        ancestors_BKT: Array,
        memory: Memory,
        cache: Array,
        output_VD: Array,
    ) -> tuple[Array, Array]:
        """Logits `[batch, beams, vocabulary]`, and the new states; see `EncoderDecoder`.

        The cache is the state of each hypothesis, which moves with it.
        """
        x_BKD = self._embed_target(ids_BK, 0.0, None)
        state_BKH = jnp.take_along_axis(cache, parents_BK[..., None], axis=1)
        begins_B11 = (position_B == 0)[:, None, None]
        state_BKH = jnp.where(begins_B11, memory.start_BH[:, None], state_BKH)
        inputs_BKG = self.decoder.unit.inputs(x_BKD)
        state_BKH, context_BKC, _ = self.decoder.step(state_BKH, inputs_BKG, memory)
        y_BKD = self.decoder.read(state_BKH, context_BKC, x_BKD)
        return output_logits(y_BKD, output_VD, self.config.dtype), state_BKH

    @nn.nowrap
    def empty_memory(self, batch: int, src_length: int) -> Memory:
        """What rows without a sentence give to search."""
        h = hidden_size(self.config)
        places = (batch, src_length)
        return Memory(
            key_BMH=jnp.zeros((*places, h)),
            annotation_BMC=jnp.zeros((*places, 2 * h)),
            mask_B1M=jnp.zeros((batch, 1, src_length), bool),
            start_BH=jnp.zeros((batch, h)),
        )

    @nn.nowrap
    def empty_cache(self, batch: int, beams: int, max_length: int) -> Array:
        """States of no hypothesis yet; they are of no length."""
        return jnp.zeros((batch, beams, hidden_size(self.config)))
