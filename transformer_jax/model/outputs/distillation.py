"""Word-level distillation: a model learns what a teacher predicts (Kim and Rush 2016, section 3.1).

A batch has the teacher's likeliest subwords at each target position, and their probabilities
(use/origin.py).

Dimension key
  B batch   L target length   K subwords of the teacher   V vocabulary, padded
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.outputs.cross_entropy import PAD_LOGIT, LossSettings
from transformer_jax.model.outputs.passes import first_pass, with_losses
from transformer_jax.text.batches import Batch
from transformer_jax.text.encoded import Taught


def taught_loss_and_gradient(
    logits_BLV: Array, taught: Taught, vocabulary_size: int
) -> tuple[Array, Array]:
    """-sum_k q_k log p_k, summed over target positions, and its gradient by the logits.

    q are the teacher's probabilities, and p is the softmax of the logits. Padding has no q.

    Args:
      logits_BLV: float32 `[..., tgt_len, padded vocabulary]`; the entries of padding are ignored.
      taught: ids and probabilities `[..., tgt_len, K]`.
      vocabulary_size: size of the vocabulary without its padding.

    Returns:
      The loss in nats, and the gradient in the shape of the logits.

    Source: Kim and Rush 2016, equation 2; of the teacher's K likeliest subwords as in Tan et al.
    2019, section 3.3, where K is 8.
    """
    column_V = jnp.arange(logits_BLV.shape[-1])
    logits_BLV = jnp.where(column_V < vocabulary_size, logits_BLV, PAD_LOGIT)
    log_p_BLV = jax.nn.log_softmax(logits_BLV)
    of_text_BLK = jnp.take_along_axis(log_p_BLV, taught.ids, axis=-1)
    loss = -(taught.probabilities * of_text_BLK).sum()
    q_BLV = jnp.zeros_like(log_p_BLV)
    for k in range(taught.ids.shape[-1]):  # few: no array [..., K, V]
        is_k_BLV = column_V == taught.ids[..., k, None]
        q_BLV += jnp.where(is_k_BLV, taught.probabilities[..., k, None], 0.0)
    mass_BL1 = taught.probabilities.sum(-1, keepdims=True)
    return loss, jnp.exp(log_p_BLV) * mass_BL1 - q_BLV


def distillation(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
) -> tuple[LossSums, Array | None]:
    """The cross entropy of the target, and that of what the teacher predicts."""
    one = first_pass(model, batch, rows_B, settings)
    return with_losses(model.out().loss(one.x_BLD, one.given, batch, settings), one)
