"""Objectives on whole translations that the model draws: minimum risk and self-critical training.

The training step draws S translations of each source from the parameters that it is about to
update, without dropout (decoding/candidates.py). Here their rewards become weights, and one pass of
the decoder without dropout gives the gradient of their weighted log probabilities.

Dimension key
  B rows, one pair each   S drawn translations   T their positions   L positions of the reference
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.outputs.passes import (
    Sums,
    decoder_input,
    first_pass,
    sentences_of,
    with_losses,
)
from transformer_jax.text.batches import Batch, Drawn

LONGEST_NGRAM = 4
# (rewards, log probabilities, which translations exist: [B, S], sharpness) -> the cost of each row
# [B], and the slope of what is minimized by each log probability [B, S].
CostAndSlopes = Callable[[Array, Array, Array, float], tuple[Array, Array]]


def sentence_bleu(
    ids_BST: Array, lengths_BS: Array, references_BL: Array, lengths_B: Array
) -> Array:
    """BLEU of each translation as if it were a text, 0 to 1: float32 `[batch, draws]`.

    Counts of n-grams of more than one subword are raised by 1, matches and totals, as most
    sentences have no match of 4 (Lin and Och 2004): sacreBLEU's smooth_method "add-k" with k = 1.

    Args:
      ids_BST: subwords of the translations.
      lengths_BS: how many of them count, without EOS.
      references_BL: subwords of the reference.
      lengths_B: how many of them count.

    Source: Papineni et al. 2002, section 2.3.
    """
    real_BST = jnp.arange(ids_BST.shape[-1]) < lengths_BS[..., None]
    real_BL = jnp.arange(references_BL.shape[-1]) < lengths_B[:, None]
    # [..., t, u]: whether the subwords at t and u are equal, and then whether the n-grams are.
    in_own = real_BST[..., :, None] & real_BST[..., None, :]
    in_own &= ids_BST[..., :, None] == ids_BST[..., None, :]
    in_other = real_BST[..., :, None] & real_BL[:, None, None, :]
    in_other &= ids_BST[..., :, None] == references_BL[:, None, None, :]
    own, other = in_own, in_other
    earlier = jnp.tri(ids_BST.shape[-1], k=-1, dtype=bool)
    log_precision_BS = jnp.zeros(lengths_BS.shape)
    for n in range(1, LONGEST_NGRAM + 1):
        # The k-th occurrence of an n-gram is a match if the reference has it at least k times.
        matches_BS = ((own & earlier).sum(-1) < other.sum(-1)).sum(-1)
        added = int(n > 1)
        total_BS = jnp.maximum(lengths_BS - n + 1, 0) + added
        log_precision_BS += jnp.log((matches_BS + added) / jnp.maximum(total_BS, 1))
        own &= _further_on(in_own, n)
        other &= _further_on(in_other, n)
    brevity_BS = jnp.minimum(1 - lengths_B[:, None] / jnp.maximum(lengths_BS, 1), 0.0)
    return jnp.exp(log_precision_BS / LONGEST_NGRAM + brevity_BS)


def _further_on(x: Array, n: int) -> Array:
    """x at t + n and u + n, `[..., t, u]`; False after the end."""
    padding = [(0, 0)] * (x.ndim - 2) + [(0, n)] * 2
    return jnp.pad(x, padding)[..., n:, n:]


def risk(
    rewards_BS: Array, log_probs_BS: Array, exist_BS: Array, sharpness: float
) -> tuple[Array, Array]:
    """The cost that is expected of the different translations, with Q ~ p^sharpness.

    Source: Shen et al. 2016, equations 8 to 10; without the reference among them, as in Edunov et
    al. 2018.
    """
    log_q_BS = jnp.where(exist_BS, sharpness * log_probs_BS, -jnp.inf)
    q_BS = jnp.where(exist_BS.any(-1, keepdims=True), jax.nn.softmax(log_q_BS), 0.0)
    costs_BS = 1 - rewards_BS
    cost_B = (q_BS * costs_BS).sum(-1)
    return cost_B, sharpness * q_BS * (costs_BS - cost_B[:, None])


def self_critical(
    rewards_BS: Array, log_probs_BS: Array, exist_BS: Array, sharpness: float
) -> tuple[Array, Array]:
    """REINFORCE; what is expected of a draw is the mean reward of the others of its source.

    Source: Rennie et al. 2017, equation 7, whose baseline is the reward of greedy search; the mean
    of the others, which does not depend on the draw either, is from Luo 2020.
    """
    count_B1 = jnp.maximum(exist_BS.sum(-1, keepdims=True), 1)
    others_BS = (jnp.sum(rewards_BS, -1, where=exist_BS, keepdims=True) - rewards_BS) / (
        jnp.maximum(count_B1 - 1, 1)
    )
    slopes_BS = jnp.where(exist_BS & (count_B1 > 1), others_BS - rewards_BS, 0.0) / count_B1
    return _mean_cost(rewards_BS, exist_BS), slopes_BS


def constant(
    rewards_BS: Array, log_probs_BS: Array, exist_BS: Array, sharpness: float
) -> tuple[Array, Array]:
    """REINFORCE without a baseline in which every draw has the reward 1: it learns no preference.

    Source: Choshen et al. 2020, section 5, where it gains as much as BLEU.
    """
    count_B1 = jnp.maximum(exist_BS.sum(-1, keepdims=True), 1)
    return _mean_cost(rewards_BS, exist_BS), jnp.where(exist_BS, -1.0, 0.0) / count_B1


def _mean_cost(rewards_BS: Array, exist_BS: Array) -> Array:
    costs_B = jnp.sum(1 - rewards_BS, -1, where=exist_BS)
    return costs_B / jnp.maximum(exist_BS.sum(-1), 1)


# Choices of train.objective.
RISK = "risk"
ON_DRAWS: dict[str, CostAndSlopes] = {
    RISK: risk,
    "self_critical": self_critical,
    "constant": constant,
}


def of_draws(name: str) -> Sums:
    """The objective with this name: the cross entropy of the target, and the cost of draws.

    Each sentence's cost counts with its number of target subwords, like its cross entropy.
    """

    def sums(
        model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
    ) -> tuple[LossSums, Array | None]:
        """The sums of the loss, and the watched weights."""
        one = first_pass(model, batch, rows_B, settings)
        of_text = model.out().loss(one.x_BLD, one.given, batch, settings)
        drawn = batch.drawn
        assert drawn is not None
        subwords_B = (batch.tgt.segments != 0).sum(-1)
        reward_BS = sentence_bleu(drawn.ids, drawn.lengths - 1, batch.tgt.ids, subwords_B - 1)
        exist_BS = drawn.lengths > 0
        if name == RISK:
            exist_BS &= is_new(drawn)
        cost_and_slopes = ON_DRAWS[name]
        cost_B, slope_BS = cost_and_slopes(reward_BS, drawn.log_probs, exist_BS, settings.sharpness)
        cost = (subwords_B * cost_B).sum()
        weight_BS = subwords_B[:, None] * slope_BS
        slope = _weighted_log_probability(model, batch, weight_BS, settings, name != RISK)
        # Its value is the cost, its gradient that of the weighted log probabilities.
        own = slope + jax.lax.stop_gradient(cost - slope)
        weighted = dict(settings.auxiliary)[name] * own
        return with_losses(of_text._replace(auxiliary={name: weighted}), one)

    return sums


def is_new(drawn: Drawn) -> Array:
    """Whether no earlier draw of the same source is the same translation: booleans `[B, S]`."""
    same_BSS = (drawn.ids[:, :, None] == drawn.ids[:, None]).all(-1)
    return ~(same_BSS & jnp.tri(same_BSS.shape[-1], k=-1, dtype=bool)).any(-1)


def _weighted_log_probability(
    model: Any, batch: Batch, weight_BS: Array, settings: LossSettings, only_drawn: bool
) -> Array:
    """sum_s w_s log p(y_s | x) over all rows and draws, without dropout.

    With `only_drawn` an EOS at the limit does not count: it is there whatever the model predicts.
    """
    drawn = batch.drawn
    assert drawn is not None
    draws = weight_BS.shape[1]

    def for_each(x_B: Array) -> Array:  # each row once for each of its draws
        return jnp.repeat(x_B, draws, axis=0)

    source = batch.src.map(for_each)
    ids = drawn.ids.reshape(-1, drawn.ids.shape[-1])
    target = sentences_of(ids, drawn.lengths.reshape(-1))
    shifted = decoder_input(Batch(source, target))
    encoded = for_each(model.encode(batch.src))
    x, watched = model.decode(encoded, source, shifted)
    given = model.given(watched, encoded, source, shifted)
    weights = jnp.where(target.segments != 0, -weight_BS.reshape(-1, 1), 0.0)
    if only_drawn:
        weights = weights.at[:, -1].set(0.0)
    return model.out().weighted_loss(x, given, (ids, weights), settings)
