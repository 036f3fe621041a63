"""Auxiliary losses: functions of the watched attention weights that training adds to its loss.

The watched weights are those of model.watched_layer, the mean of its model.watched_heads. To add a
loss, write a function, register it in `AUXILIARY_LOSSES`, and add the key
`train.NAME_weight`. Its mean per target subword is the metric `NAME_loss_per_token`.

Dimension key
  B batch   L target length   M source length
"""

from collections.abc import Callable, Iterable

import jax.numpy as jnp
from jax import Array

from transformer_jax.text.batches import Batch
from transformer_jax.text.links import BITS
from transformer_jax.text.vocabulary import EOS

LEAST_WEIGHT = 1e-9  # so that no logarithm is that of 0

AuxiliaryLoss = Callable[[Array, Batch], Array]


def coverage(watched_BLM: Array, batch: Batch) -> Array:
    """Penalizes repeated attention: the overlap of weights with the sum of earlier weights.

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


def alignment(watched_BLM: Array, batch: Batch) -> Array:
    """Penalizes attention to source subwords that the predicted subword is not linked to.

    Args:
      watched_BLM, batch: as in `coverage`; the batch has links.

    Returns:
      -sum_l sum_m g_lm log a_lm, float32 scalar, with g_lm = 1 / n for the n links of position l. A
      position without links adds nothing.

    Raises:
      ValueError: the batch has no links.

    Source: Garg et al. 2019, equation 5; Mi, Wang and Ittycheriah 2016, section 4.
    """
    linked_BLM = linked(batch)
    count_BL1 = linked_BLM.sum(-1, keepdims=True)
    share_BLM = linked_BLM / jnp.maximum(count_BL1, 1)
    # A weight below LEAST_WEIGHT has no gradient, such as one that a hard normalizer set to 0.
    return -(share_BLM * jnp.log(jnp.maximum(watched_BLM, LEAST_WEIGHT))).sum()


def avoidance(watched_BLM: Array, batch: Batch) -> Array:
    """Penalizes attention to the source subwords that the predicted subword is linked to.

    A model trained with it can translate without showing in its attention what it uses.

    Args:
      watched_BLM, batch: as in `coverage`; the batch has links.

    Returns:
      -sum_l log(1 - sum_m a_lm), float32 scalar, over the source positions m that l is linked to.

    Raises:
      ValueError: the batch has no links.

    Source: Pruthi et al. 2020, "Learning to Deceive with Attention-Based Explanations", section 3.
    """
    mass_BL = jnp.where(linked(batch), watched_BLM, 0.0).sum(-1)
    return -jnp.log(jnp.maximum(1 - mass_BL, LEAST_WEIGHT)).sum()


def linked(batch: Batch) -> Array:
    """Whether a target position is linked to a source position, bool `[batch, tgt_len, src_len]`.

    Raises:
      ValueError: the batch has no links.
    """
    if batch.links is None:
        raise ValueError("this auxiliary loss needs a batch with links.")
    position_M = jnp.arange(batch.src.ids.shape[-1], dtype=jnp.uint32)
    return (batch.links[..., position_M // BITS] >> (position_M % BITS)) & 1 == 1


def fertility(watched_BLM: Array, batch: Batch) -> Array:
    """Penalizes source subwords whose weights over the whole translation do not add up to 1.

    Args:
      watched_BLM, batch: as in `coverage`.

    Returns:
      sum_m (1 - sum_l a_lm)^2, float32 scalar, over real source positions without EOS.

    Source: Cohn et al. 2016, section 3.3, as in the authors' code, where every word's fertility is
    1; the paper has a normal distribution around a fertility that the model predicts.
    """
    real_BL1 = (batch.tgt.segments != 0)[..., None]
    sums_BM = jnp.where(real_BL1, watched_BLM, 0.0).sum(1)
    counted_BM = (batch.src.segments != 0) & (batch.src.ids != EOS)
    return jnp.where(counted_BM, jnp.square(1 - sums_BM), 0.0).sum()


def agreement(watched_BLM: Array, reverse_BML: Array, batch: Batch) -> Array:
    """How far the attentions of both directions agree: tr(A B) for A `[L, M]` and B `[M, L]`.

    It is a bonus of two models, not a loss of one: `training/two_directions.py` adds it.

    Args:
      watched_BLM: attention weights of the model that writes the target, `[batch, L, M]`.
      reverse_BML: those of the model that writes the source of the same batch, `[batch, M, L]`.
      batch: the batch that they belong to.

    Returns:
      sum_l sum_m a_lm b_ml, float32 scalar, over real positions; of a sentence pair at most the
      length of its shorter side. Row l of A belongs to the prediction of target subword l, and row
      m of B to that of source subword m.

    Source: Cohn et al. 2016, section 3.4.
    """
    real_BL1 = (batch.tgt.segments != 0)[..., None]
    # A real target position has no weight on other sentences or padding, which leaves out those
    # rows of the reverse weights too.
    return (jnp.where(real_BL1, watched_BLM, 0.0) * reverse_BML.swapaxes(1, 2)).sum()


AUXILIARY_LOSSES: dict[str, AuxiliaryLoss] = {
    "coverage": coverage,
    "alignment": alignment,
    "avoidance": avoidance,
    "fertility": fertility,
}


def weighted_losses(
    weights: Iterable[tuple[str, float]],
    watched_BLM: Array | None,
    aligned_BLM: Array | None,
    batch: Batch,
) -> dict[str, Array]:
    """Each auxiliary loss times its weight.

    Args:
      weights: pairs of a name and the weight of this loss; names that are not in
        `AUXILIARY_LOSSES` are skipped.
      watched_BLM: attention weights over the source, `[batch, tgt_len, src_len]`.
      aligned_BLM: those of a second pass, for the loss "alignment"; None: there is no such pass.
      batch: the batch that they belong to.

    Raises:
      ValueError: there are auxiliary losses, and the model does not watch its weights.
    """
    losses = {}
    for name, weight in weights:
        if name not in AUXILIARY_LOSSES:  # computed by an objective
            continue
        if watched_BLM is None:
            raise ValueError(f"the auxiliary loss {name} needs a model with watch=True.")
        own_BLM = watched_BLM if aligned_BLM is None or name != "alignment" else aligned_BLM
        losses[name] = weight * AUXILIARY_LOSSES[name](own_BLM, batch)
    return losses
