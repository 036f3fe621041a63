"""The loss of a mixture: softmaxes over the vocabulary, and a pointer to given subwords.

    p(y) = sum_c w_c softmax(x_c E^T)_y + q(y)

q(y) is the pointer's probability of subword y. Only the target's q has a gradient, so that no array
[batch, length, vocabulary] of it is needed. A component's gradient is that of its own softmax times
its responsibility, its share of the target's probability.

Dimension key
  B batch   L target length   C components   V vocabulary, padded   D d_model
  M, P positions that the pointer points to
  R replicas, which hold different rows   b rows of one replica in one block
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.layers.matrix_products import sum_type
from transformer_jax.model.outputs.cross_entropy import PAD_LOGIT, LossSettings
from transformer_jax.model.outputs.loss_blocks import BlockLoss, Parts, loss_by_blocks
from transformer_jax.model.outputs.softmax_output import output_logits

LEAST_MASS = 1e-30  # probabilities of the pointer below this count as 0
RELATIVE_TOLERANCE = 1e-5  # two sums of the same probabilities differ by less, through rounding


class Pointer(NamedTuple):
    """A distribution over positions; each position has a subword."""

    mass_BLM: Array  # probability of each position; together they are at most 1
    ids_BM: Array  # int32, the positions' subwords


class Mixture(NamedTuple):
    """A distribution over the vocabulary."""

    x_BLCD: Array  # a vector for each component, which makes its logits
    log_weights_BLC: Array  # one for each component; with the pointer's mass their exp sums to 1
    pointer: Pointer | None


def safe_log(mass: Array) -> Array:
    """log, and -inf without a gradient where the mass is 0."""
    some = mass > LEAST_MASS
    return jnp.where(some, jnp.log(jnp.where(some, mass, 1.0)), -jnp.inf)


def log_probabilities(logits_BLCV: Array, mixture: Mixture) -> Array:
    """log p of every subword, float32 `[batch, length, vocabulary]`.

    Args:
      logits_BLCV: of the components.
      mixture: their weights, and the pointer.
    """
    log_parts_BLCV = jax.nn.log_softmax(logits_BLCV) + mixture.log_weights_BLC[..., None]
    log_probs_BLV = jax.nn.logsumexp(log_parts_BLCV, axis=-2)
    if mixture.pointer is None:
        return log_probs_BLV
    mass_BLM, ids_BM = mixture.pointer
    rows_B1 = jnp.arange(ids_BM.shape[0])[:, None, None]
    ids_B1M = ids_BM[:, None]
    positions_L1 = jnp.arange(mass_BLM.shape[1])[:, None]
    pointed_BLV = jnp.zeros_like(log_probs_BLV)
    pointed_BLV = pointed_BLV.at[rows_B1, positions_L1, ids_B1M].add(mass_BLM, mode="drop")
    return jnp.logaddexp(log_probs_BLV, safe_log(pointed_BLV))


def mixture_loss(
    mixture: Mixture, table_VD: Array, targets_BL: Array, real_BL: Array, settings: LossSettings
) -> tuple[LossSums, Array]:
    """The loss of a mixture, computed for one block of rows at a time.

    Label smoothing keeps its uniform part on the softmaxes, in proportion to their weights; the
    pointer is not smoothed.

    Args:
      mixture: of every position.
      table_VD: the output embedding, float32 `[padded vocabulary, d_model]`.
      targets_BL: subwords to predict, `[batch, tgt_len]`.
      real_BL: booleans `[batch, tgt_len]`, False = padding.
      settings: their replicas must divide the batch.

    Returns:
      The sums (only `smoothed_nats` has a gradient), and that sum's part of each position
      `[batch, tgt_len]`, without a gradient.
    """
    shape = targets_BL.shape
    log_pointed_BL = jnp.full(shape, -jnp.inf, mixture.log_weights_BLC.dtype)
    # Any candidate to which nothing points.
    candidates_BM = jnp.zeros((shape[0], 1), jnp.int32)
    pointed_BLM = jnp.zeros((*shape, 1))
    if mixture.pointer is not None:
        mass_BLM, candidates_BM = mixture.pointer
        is_target_BLM = candidates_BM[:, None] == targets_BL[..., None]
        log_pointed_BL = safe_log(jnp.where(is_target_BLM, mass_BLM, 0.0).sum(-1))
        equal_BMM = candidates_BM[:, None] == candidates_BM[..., None]
        mass_BLM = jax.lax.stop_gradient(mass_BLM)
        pointed_BLM = jnp.einsum("BLP,BPM->BLM", mass_BLM, equal_BMM.astype(mass_BLM.dtype))
    parts = Parts(mixture.x_BLCD, table_VD, (mixture.log_weights_BLC, log_pointed_BL))
    fixed = targets_BL, real_BL, candidates_BM, pointed_BLM
    return loss_by_blocks(parts, fixed, _block_loss, settings)


def _block_loss(
    block: tuple[Array, Any, Any], table_VD: Array, settings: LossSettings
) -> BlockLoss:
    """The loss, and the smoothed loss of each position.

    What has no gradient (`fixed`): targets, real positions, candidates, which are the subwords that
    the pointer may make the likeliest, and q of each candidate. The gradients are by logits, log
    weights and log q of the target. The part of label smoothing is epsilon sum_c u_c U_c, where u
    is the softmax of the log weights (`share`), and U_c is the cross entropy of component c against
    the uniform distribution (`uniform`).
    """
    x_RbLCD, others, fixed = block
    log_weights_RbLC, log_pointed_RbL = others
    targets, real, *_ = fixed
    epsilon, size = settings.smoothing, settings.vocabulary_size
    logits = output_logits(x_RbLCD, table_VD, settings.dtype, settings.logits_dtype)
    logits = logits.astype(sum_type(settings.dtype))
    column_V = jnp.arange(logits.shape[-1])
    logits = jnp.where(column_V < size, logits, PAD_LOGIT)
    log_probs = jax.nn.log_softmax(logits)
    ids = jnp.broadcast_to(targets[..., None, None], (*logits.shape[:-1], 1))
    log_own = jnp.take_along_axis(log_probs, ids, axis=-1)[..., 0] + log_weights_RbLC
    nats = -jnp.logaddexp(jax.nn.logsumexp(log_own, axis=-1), log_pointed_RbL)
    responsibility = jnp.exp(log_own + nats[..., None])
    uniform = -jnp.where(column_V < size, log_probs, 0.0).sum(-1) / size
    share = jax.nn.softmax(log_weights_RbLC)
    mean_uniform = (share * uniform).sum(-1, keepdims=True)
    smoothed = (1 - epsilon) * nats + epsilon * mean_uniform[..., 0]

    weights = real.astype(logits.dtype)
    probs = jnp.exp(log_probs)
    sums = LossSums(
        smoothed_nats=(smoothed * weights).sum(),
        nats=(nats * weights).sum(),
        correct=(_is_likeliest(probs, others, fixed) * weights).sum(),
        tokens=weights.sum(),
    )
    one_hot = (column_V == targets[..., None, None]).astype(logits.dtype)
    flat = jnp.where(column_V < size, 1 / size, 0.0)
    logits_gradient = (1 - epsilon) * responsibility[..., None] * (probs - one_hot)
    logits_gradient += epsilon * share[..., None] * (probs - flat)
    weights_gradient = epsilon * share * (uniform - mean_uniform) - (1 - epsilon) * responsibility
    pointed_gradient = -(1 - epsilon) * jnp.exp(log_pointed_RbL + nats)
    gradients = weights_gradient * weights[..., None], pointed_gradient * weights
    return BlockLoss(
        sums, logits_gradient * weights[..., None, None], gradients, smoothed * weights
    )


def _is_likeliest(probs_RbLCV: Array, others: Any, fixed: Any) -> Array:
    """Whether no subword is likelier than the target."""
    log_weights_RbLC, log_pointed_RbL = others
    targets, _, candidates, pointed = fixed
    mixed_RbLV = (jnp.exp(log_weights_RbLC)[..., None] * probs_RbLCV).sum(-2)

    def at(ids_RbLM: Array) -> Array:
        return jnp.take_along_axis(mixed_RbLV, ids_RbLM, axis=-1)

    own = at(targets[..., None])[..., 0] + jnp.exp(log_pointed_RbL)
    ids_RbLM = jnp.broadcast_to(candidates[:, :, None], pointed.shape)
    highest = jnp.maximum(mixed_RbLV.max(-1), (at(ids_RbLM) + pointed).max(-1))
    return own >= highest * (1 - RELATIVE_TOLERANCE)
