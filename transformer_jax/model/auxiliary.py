"""Auxiliary losses: functions of the watched attention weights that training adds to its loss.

A new one is a function here, its line in `AUXILIARY_LOSSES` and its weight, the config's key
`train.NAME_weight`. Its mean per target subword is the metric `NAME_loss_per_token`.

Dimension key
  B batch   L target length   M source length
"""

from collections.abc import Callable, Iterable

import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import TrainConfig
from transformer_jax.text.batches import Batch

AuxiliaryLoss = Callable[[Array, Batch], Array]


def coverage(watched_BLM: Array, batch: Batch) -> Array:
    """Punishes repeated attention: the part of the weights that earlier positions gave already.

    Args:
      watched_BLM: attention weights over the source, `[batch, tgt_len, src_len]`.
      batch: the batch that they belong to.

    Returns:
      sum_l sum_m min(a_lm, c_lm) with c_lm = sum_{t<l} a_tm, float32 scalar, over real target
      positions; between 0 and 1 for each.

    Source: See, Liu and Manning 2017, equations 10 and 12.
    """
    real_BL1 = (batch.tgt.segments != 0)[..., None]
    watched_BLM = jnp.where(real_BL1, watched_BLM, 0.0)
    # In a packed row the weights on the source of other sentences are exactly 0, so the sums of one
    # sentence do not reach the next.
    covered_BLM = jnp.cumsum(watched_BLM, axis=1) - watched_BLM
    return jnp.minimum(watched_BLM, covered_BLM).sum()


AUXILIARY_LOSSES: dict[str, AuxiliaryLoss] = {"coverage": coverage}


def weighted_losses(
    weights: Iterable[tuple[str, float]], watched_BLM: Array | None, batch: Batch
) -> dict[str, Array]:
    """Each auxiliary loss times its weight.

    Raises:
      ValueError: there are auxiliary losses, and the model does not watch its weights.
    """
    losses = {}
    for name, weight in weights:
        if watched_BLM is None:
            raise ValueError(f"the auxiliary loss {name} needs a model with watch=True.")
        losses[name] = weight * AUXILIARY_LOSSES[name](watched_BLM, batch)
    return losses


def auxiliary_weights(train: TrainConfig) -> dict[str, float]:
    """The weight of each auxiliary loss that the config turns on."""
    weights = {name: getattr(train, f"{name}_weight") for name in AUXILIARY_LOSSES}
    return {name: weight for name, weight in weights.items() if weight}
