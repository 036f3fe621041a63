"""R-Drop: two passes with different dropout masks should predict the same (Liang et al. 2021).

The outputs of both passes are one after the other in a row, so that the loss makes the logits of
both once (softmax_output.py).

Dimension key
  B batch   L target length of both passes   V vocabulary, padded
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.outputs.cross_entropy import PAD_LOGIT, LossSettings
from transformer_jax.model.outputs.passes import first_pass, with_losses
from transformer_jax.text.batches import Batch


def divergence_and_gradient(
    logits_BLV: Array, real_BL: Array, vocabulary_size: int
) -> tuple[Array, Array]:
    """(KL(p || q) + KL(q || p)) / 4, summed over target positions, and its gradient by the logits.

    p and q are the softmaxes of both passes at a position. The paper adds alpha times twice this to
    the sum of both cross entropies. Ours is half of its loss, beside the mean cross entropy, so
    alpha means the same.

    Args:
      logits_BLV: of the first pass and then of the second, float32
        `[..., 2 tgt_len, padded vocabulary]`; the entries of padding are ignored.
      real_BL: booleans `[..., 2 tgt_len]`, False = padding.
      vocabulary_size: size of the vocabulary without its padding.

    Returns:
      The divergence, and the gradient in the shape of the logits.

    Source: Liang et al. 2021, equations 2 to 4.
    """
    real_V = jnp.arange(logits_BLV.shape[-1]) < vocabulary_size
    log_p_BLV = jax.nn.log_softmax(jnp.where(real_V, logits_BLV, PAD_LOGIT))
    # What the other pass predicts.
    log_q_BLV = jnp.roll(log_p_BLV, logits_BLV.shape[-2] // 2, axis=-2)
    p_BLV = jnp.exp(log_p_BLV)
    gap_BLV = log_p_BLV - log_q_BLV
    divergence_BL1 = (p_BLV * gap_BLV).sum(-1, keepdims=True)  # KL(p || q)
    weights_BL1 = real_BL[..., None].astype(p_BLV.dtype) / 4
    # By the logits of p: KL(p || q) has the gradient p (gap - KL(p || q)), KL(q || p) has p - q.
    gradient_BLV = p_BLV * (gap_BLV - divergence_BL1) + p_BLV - jnp.exp(log_q_BLV)
    return (divergence_BL1 * weights_BL1).sum(), gradient_BLV * weights_BL1


def consistency(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
) -> tuple[LossSums, Array | None]:
    """The cross entropy of two passes with other dropout, and how far they differ (R-Drop)."""
    one = first_pass(model, batch, rows_B, settings)
    encoded_BME = model.encode(batch.src, rows_B)
    again_BLD, _ = model.decode(encoded_BME, batch.src, one.given.target, rows_B)
    x_BLD = jnp.concatenate([one.x_BLD, again_BLD], axis=1)
    twice = batch._replace(tgt=batch.tgt.map(lambda x_BL: jnp.concatenate([x_BL, x_BL], axis=1)))
    return with_losses(model.out().loss(x_BLD, one.given, twice, settings), one)
