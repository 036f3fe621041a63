"""Gated recurrent units (Cho et al. 2014): the parts of the recurrent encoder and decoder.

Dimension key
  B batch   M length   H d_hidden   G gates, 3 H   I inputs, O outputs
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, FEATURES, HIDDEN, constrain, named
from transformer_jax.model.layers.matrix_products import operand_type, sum_type

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

        def matrix(name: str) -> Array:
            return whole(self.param(name, orthogonal, (h, h)))

        self.update_HH, self.reset_HH = matrix("update"), matrix("reset")
        self.candidate_HH = matrix("candidate")

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
