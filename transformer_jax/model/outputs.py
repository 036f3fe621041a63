"""Outputs: from the decoder's output to logits and to the loss.

The loss is label-smoothed cross entropy, as sums that add over micro-batches and devices. A new
output is a class here and its line in `OUTPUTS`.

Dimension key
  B batch   L target length   V vocabulary, padded   D d_model
  N blocks   R replicas, which hold different rows   b rows of one replica in one block
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, VOCABULARY, constrain
from transformer_jax.model.products import settled
from transformer_jax.model.records import LossSums
from transformer_jax.text.batches import Packed

PAD_LOGIT = -1e9  # logit of the vocabulary's padding: finite, and its exp is 0


class LossSettings(NamedTuple):
    """What the loss depends on, except arrays."""

    smoothing: float  # epsilon, 0 <= epsilon < 1
    vocabulary_size: int  # V without its padding
    dtype: str  # type of the operands of products with the embedding
    # Approximate number of positions of a replica whose logits are in memory at the same time. A
    # small block is better, since logits are written and read several times. But each block adds to
    # the embedding's gradient, which is large.
    block: int
    replicas: int  # number of parts of a batch on different devices
    auxiliary: tuple[tuple[str, float], ...] = ()  # names and weights of auxiliary losses


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


def loss_and_gradient(
    logits_BLV: Array, targets_BL: Array, real_BL: Array, smoothing: float, vocabulary_size: int
) -> tuple[LossSums, Array]:
    """Cross entropy against (1 - epsilon) one_hot + epsilon / V, summed over real target subwords.

    The uniform part is over the whole real vocabulary, the target included (Szegedy et al. 2015),
    not over the V - 1 others as in tensor2tensor.

    Args:
      logits_BLV: float32 `[..., padded vocabulary]`; the entries of padding are ignored.
      targets_BL: subwords to predict, `[...]`.
      real_BL: booleans `[...]`, False = padding.
      smoothing: epsilon, 0 <= epsilon < 1.
      vocabulary_size: V without its padding.

    Returns:
      The sums, and the gradient of the smoothed one by the logits: softmax minus smoothed targets.

    Source: Vaswani et al. 2017, section 5.4; Szegedy et al. 2015, section 7.
    """
    column_V = jnp.arange(logits_BLV.shape[-1])
    in_vocabulary_V = column_V < vocabulary_size
    logits_BLV = jnp.where(in_vocabulary_V, logits_BLV, PAD_LOGIT)
    highest_BL1 = logits_BLV.max(-1, keepdims=True)
    exp_BLV = jnp.exp(logits_BLV - highest_BL1)
    total_BL1 = exp_BLV.sum(-1, keepdims=True)
    log_normalizer_BL = (highest_BL1 + jnp.log(total_BL1))[..., 0]
    target_logit_BL = jnp.take_along_axis(logits_BLV, targets_BL[..., None], axis=-1)[..., 0]
    mean_logit_BL = jnp.where(in_vocabulary_V, logits_BLV, 0.0).sum(-1) / vocabulary_size
    nats_BL = log_normalizer_BL - target_logit_BL
    uniform_BL = log_normalizer_BL - mean_logit_BL
    smoothed_BL = (1.0 - smoothing) * nats_BL + smoothing * uniform_BL
    weights_BL = real_BL.astype(logits_BLV.dtype)
    sums = LossSums(
        smoothed_nats=(smoothed_BL * weights_BL).sum(),
        nats=(nats_BL * weights_BL).sum(),
        correct=((target_logit_BL >= highest_BL1[..., 0]) * weights_BL).sum(),
        tokens=weights_BL.sum(),
    )
    is_target_BLV = column_V == targets_BL[..., None]
    smoothed_targets_BLV = jnp.where(is_target_BLV, 1.0 - smoothing, 0.0) + jnp.where(
        in_vocabulary_V, smoothing / vocabulary_size, 0.0
    )
    return sums, (exp_BLV / total_BL1 - smoothed_targets_BLV) * weights_BL[..., None]


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
        gradient_RbLV = settled(gradient_RbLV.astype(dtype))
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
    return sums, (x_gradient_BLD, table_gradient_RDV.sum(0).T)


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
    size = settings.vocabulary_size
    logits_RbLV = output_logits(x_RbLD, table_VD, settings.dtype)
    return loss_and_gradient(logits_RbLV, targets_RbL, real_RbL, settings.smoothing, size)


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
    """The softmax over the vocabulary of x E^T (Vaswani et al. 2017, section 3.4)."""

    dtype: str
    vocabulary_size: int  # real, not padded

    def logits(self, x_BLD: Array, table_VD: Array) -> Array:
        """float32 `[batch, length, padded vocabulary]`; the padding's entries are -1e9."""
        logits_BLV = output_logits(x_BLD, table_VD, self.dtype)
        real_V = jnp.arange(logits_BLV.shape[-1]) < self.vocabulary_size
        return jnp.where(real_V, logits_BLV, PAD_LOGIT)

    def loss(
        self, x_BLD: Array, table_VD: Array, target: Packed, settings: LossSettings
    ) -> LossSums:
        """The sums of the loss over the target's real positions."""
        return projected_loss(x_BLD, table_VD, target.ids, target.segments != 0, settings)

    def prepare(self, table_VD: Array) -> Array:
        """The table from which every search step makes logits: `[vocabulary, d_model]`."""
        return table_VD[: self.vocabulary_size].astype(self.dtype)

    def step_logits(self, prepared_VD: Array, x_BKD: Array) -> Array:
        """float32 `[batch, beams, vocabulary]`, without padding."""
        return output_logits(x_BKD, prepared_VD, self.dtype)


OUTPUTS: dict[str, type[Softmax]] = {"softmax": Softmax}
