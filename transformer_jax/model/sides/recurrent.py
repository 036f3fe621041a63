"""The encoder and decoder that the Transformer replaced: gated recurrent units and attention.

They follow Bahdanau et al. 2015, appendix A. They compute the vectors of a sentence one after the
other; the encoder does so from left to right and from right to left.

Dimension key
  B batch   L target length   M source length   D d_model   H d_hidden   G gates, 3 H
  C features of the encoder's output, the annotations h   I inputs, or features of the summary
  O outputs   K beams
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.patterns import same_sentence
from transformer_jax.model.attention.scores import sum_score
from transformer_jax.model.axes import BATCH, FEATURES, HIDDEN, constrain, named, zeros
from transformer_jax.model.interfaces import Cache, Memory, Now, Place, SearchSizes
from transformer_jax.model.layers.dropout import Dropout
from transformer_jax.model.layers.matrix_products import operand_type, sum_type
from transformer_jax.model.sides.bases import Decoder, Encoder

xavier = named(nn.initializers.xavier_uniform(), FEATURES, HIDDEN, summed=1)
orthogonal = named(nn.initializers.orthogonal(), FEATURES, HIDDEN, summed=1)
zero_vector = named(nn.initializers.zeros, None)


def project(x: Array, weights_IO: Array, dtype: str) -> Array:
    """x W, float32 `[..., outputs]`; its operands have type `dtype`, or a narrower one of W."""
    operand = operand_type(weights_IO, dtype)
    return jnp.einsum(
        "...I,IO->...O",
        x.astype(operand),
        weights_IO.astype(operand),
        preferred_element_type=sum_type(dtype),
    )


def whole(weights_IO: Array) -> Array:
    """The weights of a scan, gathered before it.

    XLA's partitioner (jaxlib 0.10) computes wrong gradients where a scan's rows are divided over
    data and fsdp and its weights over fsdp and tensor: on a mesh of 2 x 2 x 2 they are off by 4
    percent to more than 100. So weights are whole within a scan, and its states are constrained.
    """
    return constrain(weights_IO, None, None)


class GatedUnit(nn.Module):
    """A gated recurrent unit: the next state is (1 - z) s + z tanh(W x + U (r s)).

    z = sigmoid(W_z x + U_z s) updates, r = sigmoid(W_r x + U_r s) resets; s is the last state.

    Source: Bahdanau et al. 2015, appendix A.1.1; Cho et al. 2014.
    """

    num_inputs: int
    hidden: int
    dtype: str

    def setup(self) -> None:
        h = self.hidden
        self.input = whole(self.param("input", xavier, (self.num_inputs, 3 * h)))
        self.bias = self.param("bias", zero_vector, (3 * h,))
        self.update_HH, self.reset_HH, self.candidate_HH = (
            whole(self.param(name, orthogonal, (h, h))) for name in ("update", "reset", "candidate")
        )

    def inputs(self, x: Array) -> Array:
        """W_z x, W_r x and W x, with their biases, side by side `[..., 3 d_hidden]`."""
        return project(x, self.input, self.dtype) + self.bias

    def __call__(self, state: Array, inputs: Array) -> Array:
        """The next state, float32 `[..., d_hidden]`, from the last one and `inputs`' result."""
        to_update, to_reset, to_candidate = jnp.split(inputs, 3, axis=-1)
        update = jax.nn.sigmoid(to_update + project(state, self.update_HH, self.dtype))
        reset = jax.nn.sigmoid(to_reset + project(state, self.reset_HH, self.dtype))
        candidate = jnp.tanh(to_candidate + project(reset * state, self.candidate_HH, self.dtype))
        return (1.0 - update) * state + update * candidate

    def run(self, x_BMI: Array, segments_BM: Array, reverse: bool) -> Array:
        """The states after each position `[batch, length, d_hidden]`; a sentence starts from zeros.

        Args:
          x_BMI: inputs `[batch, length, inputs]`.
          segments_BM: the sentence of each position `[batch, length]`.
          reverse: whether to read from right to left.
        """
        same_BM = segments_BM[:, 1:] == segments_BM[:, :-1]
        goes_on_BM = jnp.pad(same_BM, ((0, 0), (0, 1) if reverse else (1, 0)))

        def step(state_BH: Array, step_inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            inputs_BG, goes_on_B = step_inputs
            state_BH = self(jnp.where(goes_on_B[:, None], state_BH, 0.0), inputs_BG)
            state_BH = constrain(state_BH, BATCH, None)
            return state_BH, state_BH

        along = (self.inputs(x_BMI).swapaxes(0, 1), goes_on_BM.swapaxes(0, 1))
        start_BH = jnp.zeros((x_BMI.shape[0], self.hidden), x_BMI.dtype)
        _, states_MBH = jax.lax.scan(step, start_BH, along, reverse=reverse)
        return constrain(states_MBH.swapaxes(0, 1), BATCH, None, None)


class RecurrentEncoder(Encoder):
    """Gated units from left to right and from right to left; each sentence starts from zeros."""

    @staticmethod
    def features(config: ModelConfig) -> int:
        """The states of both directions."""
        return 2 * config.hidden_units

    def setup(self) -> None:
        """Creates the units of both directions."""
        config, h = self.config, self.config.hidden_units
        self.left_to_right = GatedUnit(config.d_model, h, config.dtype)
        self.right_to_left = GatedUnit(config.d_model, h, config.dtype)
        self.encoder_dropout = Dropout(config.dropout)

    def __call__(self, x_BMD: Array, place: Place, rows_B: Array | None) -> Array:
        """Annotations, float32 `[batch, src_len, 2 d_hidden]`, from the embedded source."""
        forward_BMH = self.left_to_right.run(x_BMD, place.segments, reverse=False)
        backward_BMH = self.right_to_left.run(x_BMD, place.segments, reverse=True)
        annotation_BMC = jnp.concatenate([forward_BMH, backward_BMH], axis=-1)
        return self.encoder_dropout(annotation_BMC, self.encoder_dropout.noise_source(rows_B))

    @staticmethod
    def summary(annotation_BMC: Array) -> Array:
        """The right-to-left states; the state at the first position has read the whole sentence."""
        return jnp.split(annotation_BMC, 2, axis=-1)[1]


class Remembered(NamedTuple):
    """What a step of the decoder needs of a source sentence, in training and in search."""

    key_BMH: Array  # U_a h_j (Bahdanau et al. 2015, appendix A.1.2)
    annotation_BMC: Array  # h_j
    start_BH: Array  # the decoder's first state


class AttendingUnit(nn.Module):
    """A gated unit whose inputs are the subword before and a context, chosen by attention."""

    config: ModelConfig
    encoder: Any  # the encoder's class

    def setup(self) -> None:
        """Creates the unit, its attention and the maxout layer."""
        d_model, h, dtype = self.config.d_model, self.config.hidden_units, self.config.dtype
        c = self.encoder.features(self.config)
        summary = jax.eval_shape(self.encoder.summary, jax.ShapeDtypeStruct((1, c), jnp.float32))
        self.unit = GatedUnit(d_model, h, dtype)
        self.context = whole(self.param("context", xavier, (c, 3 * h)))
        self.start = self.param("start", xavier, (summary.shape[-1], h))
        self.query = whole(self.param("query", xavier, (h, h)))
        self.key = self.param("key", xavier, (c, h))
        self.score = self.param("score", named(nn.initializers.normal(h**-0.5), None), (h,))
        self.readout = self.param("readout", xavier, (h + c + d_model, 2 * d_model))
        self.readout_bias = self.param("readout_bias", zero_vector, (2 * d_model,))

    def keys(self, annotation_BMC: Array) -> Array:
        """U_a h_j of each annotation `[batch, src_len, d_hidden]`."""
        return project(annotation_BMC, self.key, self.config.dtype)

    def starts(self, annotation_BMC: Array) -> Array:
        """The first state of a sentence that begins at each source position.

        tanh(W_s h), where h is the encoder's summary, `[batch, src_len, d_hidden]`.
        """
        summary_BMI = self.encoder.summary(annotation_BMC)
        return jnp.tanh(project(summary_BMI, self.start, self.config.dtype))

    def step(
        self, state_BKH: Array, inputs_BKG: Array, remembered: Remembered, mask_B1M: Array
    ) -> tuple[Array, Array, Array]:
        """The next states, the contexts `[batch, beams, features]` and the attention's weights.

        Args:
          state_BKH: the last states `[batch, beams, d_hidden]`.
          inputs_BKG: the result of `inputs` for the subwords before.
          remembered: keys and annotations of the source sentences.
          mask_B1M: True where a state may attend `[batch, 1, src_len]`.

        Source: Bahdanau et al. 2015, appendix A.1.2 and equation 6.
        """
        dtype = self.config.dtype
        query_BK1H = project(state_BKH, self.query, dtype)[:, :, None]
        scores_B1KM = sum_score(query_BK1H, remembered.key_BMH[:, :, None], self.score[None])
        weights_BKM = softmax(scores_B1KM[:, 0], mask_B1M)
        context_BKC = jnp.einsum(
            "BKM,BMC->BKC",
            weights_BKM.astype(dtype),
            remembered.annotation_BMC.astype(dtype),
            preferred_element_type=sum_type(dtype),
        )
        inputs_BKG = inputs_BKG + project(context_BKC, self.context, dtype)
        return self.unit(state_BKH, inputs_BKG), context_BKC, weights_BKM

    def read(self, state_BLH: Array, context_BLC: Array, x_BLD: Array) -> Array:
        """The maxout layer before the vocabulary, float32 `[batch, length, d_model]`.

        Source: Bahdanau et al. 2015, equation 4 and appendix A.2.2.
        """
        joined = jnp.concatenate([state_BLH, context_BLC, x_BLD], axis=-1)
        pairs = project(joined, self.readout, self.config.dtype) + self.readout_bias
        return pairs.reshape(*pairs.shape[:-1], -1, 2).max(-1)


class RecurrentDecoder(Decoder):
    """One attending unit; each sentence of a packed row starts from its own first state.

    With `remat`, the backward pass computes the attention again.
    """

    def setup(self) -> None:
        """Creates the unit."""
        self.attending = AttendingUnit(self.config, self.encoder, name="decoder")
        self.decoder_dropout = Dropout(self.config.dropout)

    def __call__(
        self, x_BLD: Array, target: Place, encoded_BMC: Array, source: Place, rows_B: Array | None
    ) -> tuple[Array, Array | None]:
        """`[batch, tgt_len, d_model]`, and the weights `[batch, tgt_len, src_len]` if watched."""
        unit = self.attending
        mask_BLM = same_sentence(target, source)[:, 0]
        # The first source position of each target position's sentence; 0 for padding.
        own_first_BL1 = jnp.argmax(mask_BLM, axis=-1, keepdims=True)
        start_BLH = jnp.take_along_axis(unit.starts(encoded_BMC), own_first_BL1, axis=1)
        key_BMH = unit.keys(encoded_BMC)

        def step(state_BH: Array, inputs: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
            inputs_BG, begins_B, start_BH, mask_BM = inputs
            state_BH = jnp.where(begins_B[:, None], start_BH, state_BH)
            remembered = Remembered(key_BMH, encoded_BMC, start_BH)
            stepped = unit.step(state_BH[:, None], inputs_BG[:, None], remembered, mask_BM[:, None])
            state_BH, context_BC, weights_BM = (constrain(x[:, 0], BATCH, None) for x in stepped)
            return state_BH, (state_BH, context_BC, *((weights_BM,) if self.watch else ()))

        scanned = (unit.unit.inputs(x_BLD), target.positions == 0, start_BLH, mask_BLM)
        _, outputs = jax.lax.scan(
            jax.checkpoint(step) if self.remat else step,
            jnp.zeros_like(start_BLH[:, 0]),
            jax.tree.map(lambda x: x.swapaxes(0, 1), scanned),
        )
        state_BLH, context_BLC, *watched = (x.swapaxes(0, 1) for x in outputs)
        y_BLD = constrain(unit.read(state_BLH, context_BLC, x_BLD), BATCH, None, None)
        y_BLD = self.decoder_dropout(y_BLD, self.decoder_dropout.noise_source(rows_B))
        return y_BLD, watched[0] if watched else None

    def remember(self, encoded_BMC: Array, source: Place) -> Remembered:
        """Keys, annotations and the first state."""
        first_B11 = jnp.argmax(source.segments != 0, axis=1)[:, None, None]  # that it sees
        first_B1C = jnp.take_along_axis(encoded_BMC, first_B11, axis=1)
        start_BH = self.attending.starts(first_B1C)[:, 0]
        return Remembered(self.attending.keys(encoded_BMC), encoded_BMC, start_BH)

    def step(
        self, x_BKD: Array, now: Now, memory: Memory, cache: Cache
    ) -> tuple[Array, Cache, Array | None]:
        """One new position of every hypothesis: `[batch, beams, d_model]`, cache, weights."""
        unit, remembered = self.attending, memory.decoder
        begins_B11 = (now.position_B == 0)[:, None, None]
        state_BKH = jnp.where(begins_B11, remembered.start_BH[:, None], cache.carried)
        inputs_BKG = unit.unit.inputs(x_BKD)
        mask_B1M = memory.source_BM[:, None]
        state_BKH, context_BKC, weights = unit.step(state_BKH, inputs_BKG, remembered, mask_B1M)
        y_BKD = unit.read(state_BKH, context_BKC, x_BKD)
        return y_BKD, Cache((), state_BKH), weights if self.watch else None

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> Remembered:
        """The shapes of `remember`, boxed with the names of their axes."""
        h = self.config.hidden_units
        c = self.encoder.features(self.config)
        return Remembered(
            key_BMH=zeros((sizes.batch, sizes.src_length, h), (BATCH, None, None)),
            annotation_BMC=zeros((sizes.batch, sizes.src_length, c), (BATCH, None, None)),
            start_BH=zeros((sizes.batch, h), (BATCH, None)),
        )

    @nn.nowrap
    def empty_cache(self, sizes: SearchSizes) -> Cache:
        """The states before the first position; they do not depend on a length."""
        shape = (sizes.batch, sizes.beams, self.config.hidden_units)
        return Cache((), zeros(shape, (BATCH, None, None)))
