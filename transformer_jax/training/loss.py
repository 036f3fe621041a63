"""Label-smoothed cross entropy, as sums that add over micro-batches and devices.

Dimension key
  B batch   L target length   V vocabulary, padded
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class LossSums(NamedTuple):
    """Sums over target subwords, float32 scalars."""

    smoothed_nats: Array  # what training minimises
    nats: Array  # negative log likelihood, without smoothing
    correct: Array  # subwords whose logit is the highest
    tokens: Array  # real target subwords


def loss_sums(
    logits_BLV: Array, targets_BL: Array, real_BL: Array, smoothing: float, vocabulary_size: int
) -> LossSums:
    """Cross entropy against (1 - epsilon) one_hot + epsilon / V, summed over real target subwords.

    The uniform part is over the whole real vocabulary, the target included (Szegedy et al. 2015),
    not over the V - 1 others as in tensor2tensor.

    Args:
      logits_BLV: float32 `[batch, tgt_len, padded vocabulary]`.
      targets_BL: subwords to predict, `[batch, tgt_len]`.
      real_BL: booleans `[batch, tgt_len]`, False = padding.
      smoothing: epsilon, 0 <= epsilon < 1.
      vocabulary_size: V without its padding.

    Source: Vaswani et al. 2017, section 5.4; Szegedy et al. 2015, section 7.
    """
    column_V = jnp.arange(logits_BLV.shape[-1])
    # Compared, not gathered: a gather's gradient is a scatter into another array of this size.
    is_target_BLV = column_V == targets_BL[..., None]
    log_normalizer_BL = jax.nn.logsumexp(logits_BLV, axis=-1)
    target_logit_BL = jnp.where(is_target_BLV, logits_BLV, 0.0).sum(-1)
    nats_BL = log_normalizer_BL - target_logit_BL
    smoothed_BL = nats_BL
    if smoothing > 0:
        real_BLV = jnp.where(column_V < vocabulary_size, logits_BLV, 0.0)
        mean_logit_BL = real_BLV.sum(-1) / vocabulary_size
        uniform_BL = log_normalizer_BL - mean_logit_BL
        smoothed_BL = (1.0 - smoothing) * nats_BL + smoothing * uniform_BL
    weights_BL = real_BL.astype(jnp.float32)
    highest_BL = jax.lax.stop_gradient(logits_BLV.max(-1))
    return LossSums(
        smoothed_nats=(smoothed_BL * weights_BL).sum(),
        nats=(nats_BL * weights_BL).sum(),
        correct=((target_logit_BL >= highest_BL) * weights_BL).sum(),
        tokens=weights_BL.sum(),
    )
