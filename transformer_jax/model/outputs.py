"""Outputs: from the decoder's output to logits and to the loss.

The loss is label-smoothed cross entropy, as sums that add over micro-batches and devices. A new
output is a class here and its line in `OUTPUTS`.

Dimension key
  B batch   L target length   V vocabulary, padded   D d_model
  N blocks   R replicas, which hold different rows   b rows of one replica in one block
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, VOCABULARY, constrain, divided
from transformer_jax.model.cross_entropy import PAD_LOGIT, LossSettings, loss_and_gradient
from transformer_jax.model.products import settled
from transformer_jax.model.records import LossSums
from transformer_jax.text.batches import Packed

BIAS_FEATURES = 8  # matrix units are fast if the features are a multiple of 8


def output_logits(x_BLD: Array, table_VD: Array, dtype: str) -> Array:
    """x E^T, float32 `[batch, length, vocabulary]`; the entries of padding have no meaning.

    Args:
      x_BLD: the decoder's output; any number of axes may be before the features.
      table_VD: the output embedding `[vocabulary, d_model]`.
      dtype: type of the product's operands.

    Source: Vaswani et al. 2017, section 3.4.
    """
    logits_BLV = jnp.einsum(
        "...D,VD->...V",
        x_BLD.astype(dtype),
        table_VD.astype(dtype),
        preferred_element_type=jnp.promote_types(dtype, jnp.float32),
    )
    lengths = (None,) * (logits_BLV.ndim - 2)
    return constrain(logits_BLV, BATCH, *lengths, VOCABULARY)


def with_bias(table_VD: Array, bias_V: Array) -> Array:
    """The table with the bias as one more feature, and 7 of zeros: `[vocabulary, d_model + 8]`.

    With it x E^T + b is the product of this table and `with_one(x)`, and so are its gradients.
    """
    return jnp.concatenate([table_VD, _first_of_few(bias_V, table_VD.dtype)], axis=-1)


def with_one(x_BLD: Array) -> Array:
    """x with a feature 1, which the bias multiplies, and 7 of zeros: `[..., d_model + 8]`."""
    ones_BL = jnp.ones(x_BLD.shape[:-1])
    return jnp.concatenate([x_BLD, _first_of_few(ones_BL, x_BLD.dtype)], axis=-1)


def _first_of_few(x: Array, dtype: Any) -> Array:
    return x[..., None].astype(dtype) * (jnp.arange(BIAS_FEATURES) == 0).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def projected_loss(
    x_BLD: Array, table_VD: Array, targets_BL: Array, real_BL: Array, settings: LossSettings
) -> LossSums:
    """The loss of logits x E^T, computed for one block of rows at a time.

    Reverse-mode differentiation works for x and the table; only the sum `smoothed_nats` has a
    gradient. The gradient is computed with the loss, block by block, so that no logits are kept or
    computed twice.

    Args:
      x_BLD: the decoder's output, float32 `[batch, tgt_len, d_model]`.
      table_VD: the output embedding, float32 `[padded vocabulary, d_model]`.
      targets_BL: subwords to predict, `[batch, tgt_len]`.
      real_BL: booleans `[batch, tgt_len]`, False = padding.
      settings: their replicas must divide the batch.
    """
    cast_VD = table_VD.astype(settings.dtype)  # once, not in each block

    def add(total: LossSums, block: tuple[Array, Array, Array]) -> tuple[LossSums, None]:
        return jax.tree.map(jnp.add, total, _block_loss(block, cast_VD, settings)[0]), None

    blocks = _split((x_BLD, targets_BL, real_BL), settings)
    return jax.lax.scan(add, _nothing(settings), blocks)[0]


def _forward(
    x_BLD: Array, table_VD: Array, targets_BL: Array, real_BL: Array, settings: LossSettings
) -> tuple[LossSums, tuple[Array, Array]]:
    """The sums, and the gradients of the smoothed one by x and the table."""
    dtype, replicas = settings.dtype, settings.replicas
    wide = jnp.promote_types(dtype, jnp.float32)
    cast_VD = table_VD.astype(dtype)  # once, not in each block

    def add(
        total: tuple[LossSums, Array], block: tuple[Array, Array, Array]
    ) -> tuple[tuple[LossSums, Array], Array]:
        sums, gradient_RbLV = _block_loss(block, cast_VD, settings)
        gradient_RbLV = settled(gradient_RbLV)
        # [D, V], so that the smaller factor is the one that a CPU has to transpose.
        table_gradient_RDV = jnp.einsum(
            "RbLD,RbLV->RDV",
            block[0].astype(dtype),
            gradient_RbLV,
            preferred_element_type=wide,
        )
        x_gradient_RbLD = jnp.einsum(
            "RbLV,VD->RbLD",
            gradient_RbLV,
            cast_VD,
            preferred_element_type=wide,
        )
        return jax.tree.map(jnp.add, total, (sums, table_gradient_RDV)), x_gradient_RbLD

    blocks = _split((x_BLD, targets_BL, real_BL), settings)
    # Summed over the replicas once, after the last block.
    zeros_RDV = jnp.zeros((replicas, *table_VD.shape[::-1]), wide)
    zeros_RDV = constrain(zeros_RDV, BATCH, None, VOCABULARY)
    (sums, table_gradient_RDV), x_gradient_NRbLD = jax.lax.scan(
        add, (_nothing(settings), zeros_RDV), blocks
    )
    x_gradient_BLD = x_gradient_NRbLD.swapaxes(0, 1).reshape(x_BLD.shape)
    # Settled: of a single block, XLA for a CPU would join product and transpose, and it has no such
    # product of bfloat16.
    return sums, (x_gradient_BLD, settled(table_gradient_RDV.sum(0)).T)


def _backward(
    settings: LossSettings, gradients: tuple[Array, Array], cotangents: LossSums
) -> tuple[Array, Array, None, None]:
    x_gradient_BLD, table_gradient_VD = gradients
    scale = cotangents.smoothed_nats
    return x_gradient_BLD * scale, table_gradient_VD * scale, None, None


projected_loss.defvjp(_forward, _backward)


def _block_loss(
    block: tuple[Array, Array, Array], table_VD: Array, settings: LossSettings
) -> tuple[LossSums, Array]:
    x_RbLD, targets_RbL, real_RbL = block
    logits_RbLV = output_logits(x_RbLD, table_VD, settings.dtype)

    def plain(logits_RbLV: Array, targets_RbL: Array, real_RbL: Array) -> tuple[LossSums, Array]:
        sums, gradient_RbLV = loss_and_gradient(
            logits_RbLV, targets_RbL, real_RbL, settings.smoothing, settings.vocabulary_size
        )
        return sums, gradient_RbLV.astype(settings.dtype)

    if jnp.finfo(settings.dtype).bits >= 32 or divided(VOCABULARY):
        return plain(logits_RbLV, targets_RbL, real_RbL)
    from transformer_jax.model.fused_loss import fused_loss_and_gradient  # Pallas takes 0.1 s

    fused = functools.partial(fused_loss_and_gradient, settings=settings)
    return jax.lax.platform_dependent(logits_RbLV, targets_RbL, real_RbL, cuda=fused, default=plain)


def _split(rows: tuple[Array, Array, Array], settings: LossSettings) -> tuple[Array, Array, Array]:
    """[B, ...] as [N, R, b, ...], each replica keeping its own rows."""
    batch, length = rows[1].shape
    replicas, own = settings.replicas, batch // settings.replicas
    # Use the fewest blocks that are not too large; a row is not divided.
    small = [n for n in range(1, own + 1) if own % n == 0 and own // n * length <= settings.block]
    blocks = min(small, default=own)

    def split(x_B: Array) -> Array:
        x_RNb = x_B.reshape(replicas, blocks, own // blocks, *x_B.shape[1:])
        x_RNb = constrain(x_RNb, BATCH, *(None,) * (x_RNb.ndim - 1))
        return x_RNb.swapaxes(0, 1)

    return split(rows[0]), split(rows[1]), split(rows[2])


def _nothing(settings: LossSettings) -> LossSums:
    wide = jnp.promote_types(settings.dtype, jnp.float32)
    zero = jnp.zeros((), wide)
    return LossSums(smoothed_nats=zero, nats=zero, correct=zero, tokens=zero)


class Softmax(NamedTuple):
    """The softmax over the vocabulary of x E^T (Vaswani et al. 2017, section 3.4).

    If it has a bias, the tables below are those of `with_bias`.
    """

    dtype: str
    vocabulary_size: int  # real, not padded
    has_bias: bool = False

    def logits(self, x_BLD: Array, table_VD: Array) -> Array:
        """float32 `[batch, length, padded vocabulary]`; the padding's entries are -1e9."""
        logits_BLV = output_logits(self._given(x_BLD), table_VD, self.dtype)
        real_V = jnp.arange(logits_BLV.shape[-1]) < self.vocabulary_size
        return jnp.where(real_V, logits_BLV, PAD_LOGIT)

    def loss(
        self, x_BLD: Array, table_VD: Array, target: Packed, settings: LossSettings
    ) -> LossSums:
        """The sums of the loss over the target's real positions."""
        x_BLD = self._given(x_BLD)
        return projected_loss(x_BLD, table_VD, target.ids, target.segments != 0, settings)

    def prepare(self, table_VD: Array) -> Array:
        """E^T, from which every search step makes logits: `[d_model, vocabulary]`."""
        return table_VD[: self.vocabulary_size].astype(self.dtype).T

    def step_logits(self, prepared_DV: Array, x_BKD: Array) -> Array:
        """float32 `[batch, beams, vocabulary]`, without padding."""
        x_BKD, wide = self._given(x_BKD), jnp.promote_types(self.dtype, jnp.float32)
        logits_BKV = jnp.einsum(
            "BKD,DV->BKV",
            x_BKD.astype(prepared_DV.dtype),
            prepared_DV,
            preferred_element_type=wide,
        )
        return constrain(logits_BKV, BATCH, None, VOCABULARY)

    def _given(self, x_BLD: Array) -> Array:
        return with_one(x_BLD) if self.has_bias else x_BLD


OUTPUTS: dict[str, type[Softmax]] = {"softmax": Softmax}
