"""Label-smoothed cross entropy of logits, and its gradient.

Dimension key
  B batch   L target length   V vocabulary, padded
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from transformer_jax.model.interfaces import LossSums

# Auxiliary losses that are made of the logits, beside the cross entropy.
CONSISTENCY, DISTILLATION = ON_LOGITS = "consistency", "distillation"
PAD_LOGIT = -1e9  # logit of the vocabulary's padding: finite, and its exp is 0


class LossSettings(NamedTuple):
    """What the loss depends on, except arrays."""

    smoothing: float  # epsilon, 0 <= epsilon < 1
    vocabulary_size: int  # without its padding
    dtype: str  # type of the operands of products with the embedding
    # Approximate number of positions of a replica whose logits are in memory at the same time.
    # Logits are written and read several times, which is faster if the block is small. But each
    # block adds to the embedding's gradient, which is large.
    block: int
    replicas: int  # number of parts of a batch on different devices
    auxiliary: tuple[tuple[str, float], ...] = ()  # names and weights of auxiliary losses
    full_context: bool = False  # whether a second pass over the whole target learns to align
    sharpness: float = 1.0  # of risk's distribution over drawn translations
    logits_dtype: str | None = None  # in which the logits are kept; None: that of their sums

    @property
    def on_logits(self) -> dict[str, float]:
        """Names and weights of the auxiliary losses that are made of the logits."""
        return {name: weight for name, weight in self.auxiliary if name in ON_LOGITS}


class Statistics(NamedTuple):
    """What the loss needs of the logits of each position, float32 `[...]`."""

    highest: Array
    log_normalizer: Array  # log sum exp
    target: Array  # the logit of the subword to predict
    mean: Array  # over the real vocabulary


def loss_sums(statistics: Statistics, weights: Array, smoothing: float) -> LossSums:
    """The sums of the loss from the logits' statistics; weights are 0 for padding and else 1."""
    highest, log_normalizer, target, mean = statistics
    nats = log_normalizer - target
    smoothed = (1.0 - smoothing) * nats + smoothing * (log_normalizer - mean)
    return LossSums(
        smoothed_nats=(smoothed * weights).sum(),
        nats=(nats * weights).sum(),
        correct=((target >= highest) * weights).sum(),
        tokens=weights.sum(),
    )


def loss_and_gradient(
    logits_BLV: Array, targets_BL: Array, weights_BL: Array, smoothing: float, vocabulary_size: int
) -> tuple[LossSums, Array]:
    """Cross entropy against (1 - epsilon) one_hot + epsilon / vocabulary_size, summed over targets.

    The uniform part is over the whole real vocabulary, the target included (Szegedy et al. 2015),
    not over the others alone as in tensor2tensor. Padding is left out of the sum.

    Args:
      logits_BLV: float32 `[..., padded vocabulary]`; the entries of padding are ignored.
      targets_BL: subwords to predict, `[...]`.
      weights_BL: of the positions in all sums `[...]`: 0 = padding, and True or 1 = a real subword.
      smoothing: epsilon, 0 <= epsilon < 1.
      vocabulary_size: size of the vocabulary without its padding.

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
    weights_BL = weights_BL.astype(logits_BLV.dtype)
    statistics = Statistics(highest_BL1[..., 0], log_normalizer_BL, target_logit_BL, mean_logit_BL)
    sums = loss_sums(statistics, weights_BL, smoothing)
    is_target_BLV = column_V == targets_BL[..., None]
    smoothed_targets_BLV = jnp.where(is_target_BLV, 1.0 - smoothing, 0.0) + jnp.where(
        in_vocabulary_V, smoothing / vocabulary_size, 0.0
    )
    return sums, (exp_BLV / total_BL1 - smoothed_targets_BLV) * weights_BL[..., None]
