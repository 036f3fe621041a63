"""The loss of a mixture: softmaxes over the vocabulary, and a pointer to given subwords.

    p(y) = sum_c w_c softmax(x_c E^T)_y + q(y)

q(y) is the pointer's probability of subword y. Only the target's q has a gradient, so that no array
[batch, length, vocabulary] of it is needed. A component's gradient is that of its own softmax times
its responsibility, its share of the target's probability.

Dimension key
  B batch   L target length   C components   V vocabulary, padded   D d_model
  M, P positions that the pointer points to
  N blocks   R replicas, which hold different rows   b rows of one replica in one block
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, VOCABULARY, constrain
from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.layers.matrix_products import settled, sum_type
from transformer_jax.model.outputs.cross_entropy import PAD_LOGIT, LossSettings
from transformer_jax.model.outputs.softmax_output import output_logits, split_rows, zero_sums

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
    parts = _Parts(mixture.x_BLCD, table_VD, mixture.log_weights_BLC, log_pointed_BL)
    return _loss(parts, _Fixed(targets_BL, real_BL, candidates_BM, pointed_BLM), settings)


class _Parts(NamedTuple):
    """What the loss is differentiated by."""

    x_BLCD: Array
    table_VD: Array
    log_weights_BLC: Array
    log_pointed_BL: Array  # log q of the target


class _Fixed(NamedTuple):
    """The other arrays. Candidates are the subwords that the pointer may make the likeliest."""

    targets_BL: Array
    real_BL: Array
    candidates_BM: Array
    pointed_BLM: Array  # q of each candidate


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _loss(parts: _Parts, fixed: _Fixed, settings: LossSettings) -> tuple[LossSums, Array]:
    cast_VD = parts.table_VD.astype(settings.dtype)  # once, not in each block

    def add(total: LossSums, block: Any) -> tuple[LossSums, Array]:
        sums, nats_RbL, _ = _block_loss(block, cast_VD, settings)
        return jax.tree.map(jnp.add, total, sums), nats_RbL

    sums, nats_NRbL = jax.lax.scan(add, zero_sums(settings), _blocks(parts, fixed, settings))
    return sums, _joined(nats_NRbL, fixed.targets_BL.shape)


def _forward(
    parts: _Parts, fixed: _Fixed, settings: LossSettings
) -> tuple[tuple[LossSums, Array], _Parts]:
    dtype, shape = settings.dtype, parts.table_VD.shape
    wide = sum_type(dtype)
    cast_VD = parts.table_VD.astype(dtype)

    def add(total: tuple[LossSums, Array], block: Any) -> tuple[tuple[LossSums, Array], Any]:
        sums, nats_RbL, (logits_gradient, weights_gradient, pointed_gradient) = _block_loss(
            block, cast_VD, settings
        )
        logits_gradient = settled(logits_gradient.astype(dtype))
        table_gradient = jnp.einsum(
            "RbLCD,RbLCV->RDV", block[0].astype(dtype), logits_gradient, preferred_element_type=wide
        )
        x_gradient = jnp.einsum(
            "RbLCV,VD->RbLCD", logits_gradient, cast_VD, preferred_element_type=wide
        )
        total = jax.tree.map(jnp.add, total, (sums, table_gradient))
        return total, (nats_RbL, x_gradient, weights_gradient, pointed_gradient)

    zeros_RDV = jnp.zeros((settings.replicas, *shape[::-1]), wide)
    zeros_RDV = constrain(zeros_RDV, BATCH, None, VOCABULARY)
    (sums, table_gradient), found = jax.lax.scan(
        add, (zero_sums(settings), zeros_RDV), _blocks(parts, fixed, settings)
    )
    shapes = fixed.targets_BL, parts.x_BLCD, parts.log_weights_BLC, parts.log_pointed_BL
    nats_BL, x_gradient, weights_gradient, pointed_gradient = (
        _joined(x, like.shape) for x, like in zip(found, shapes, strict=True)
    )
    gradients = _Parts(
        x_gradient, settled(table_gradient.sum(0)).T, weights_gradient, pointed_gradient
    )
    return (sums, nats_BL), gradients


def _backward(
    settings: LossSettings, gradients: _Parts, cotangents: tuple[LossSums, Array]
) -> tuple[_Parts, None]:
    scale = cotangents[0].smoothed_nats
    return jax.tree.map(lambda gradient: gradient * scale, gradients), None


_loss.defvjp(_forward, _backward)


def _blocks(parts: _Parts, fixed: _Fixed, settings: LossSettings) -> Any:
    """(x, weights, pointed, fixed) of each block of rows."""
    rows = (parts.x_BLCD, parts.log_weights_BLC, parts.log_pointed_BL, fixed)
    _, length, components, _ = parts.x_BLCD.shape
    return split_rows(rows, length * components, settings)


def _joined(x_NRbL: Array, shape: tuple[int, ...]) -> Array:
    return x_NRbL.swapaxes(0, 1).reshape(shape)


def _block_loss(
    block: Any, table_VD: Array, settings: LossSettings
) -> tuple[LossSums, Array, tuple[Array, Array, Array]]:
    """The sums, the smoothed loss of each position, and its gradients.

    The gradients are by logits, log weights and log q of the target. The part of label smoothing is
    epsilon sum_c u_c U_c, where u is the softmax of the log weights (`share`), and U_c is the cross
    entropy of component c against the uniform distribution (`uniform`).
    """
    x_RbLCD, log_weights_RbLC, log_pointed_RbL, (targets, real, *_) = block
    epsilon, size = settings.smoothing, settings.vocabulary_size
    logits = output_logits(x_RbLCD, table_VD, settings.dtype)
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
        correct=(_is_likeliest(probs, block) * weights).sum(),
        tokens=weights.sum(),
    )
    one_hot = (column_V == targets[..., None, None]).astype(logits.dtype)
    flat = jnp.where(column_V < size, 1 / size, 0.0)
    logits_gradient = (1 - epsilon) * responsibility[..., None] * (probs - one_hot)
    logits_gradient += epsilon * share[..., None] * (probs - flat)
    weights_gradient = epsilon * share * (uniform - mean_uniform) - (1 - epsilon) * responsibility
    pointed_gradient = -(1 - epsilon) * jnp.exp(log_pointed_RbL + nats)
    gradients = (
        logits_gradient * weights[..., None, None],
        weights_gradient * weights[..., None],
        pointed_gradient * weights,
    )
    return sums, smoothed * weights, gradients


def _is_likeliest(probs_RbLCV: Array, block: Any) -> Array:
    """Whether no subword is likelier than the target."""
    _, log_weights_RbLC, log_pointed_RbL, (targets, _, candidates, pointed) = block
    mixed_RbLV = (jnp.exp(log_weights_RbLC)[..., None] * probs_RbLCV).sum(-2)

    def at(ids_RbLM: Array) -> Array:
        return jnp.take_along_axis(mixed_RbLV, ids_RbLM, axis=-1)

    own = at(targets[..., None])[..., 0] + jnp.exp(log_pointed_RbL)
    ids_RbLM = jnp.broadcast_to(candidates[:, :, None], pointed.shape)
    highest = jnp.maximum(mixed_RbLV.max(-1), (at(ids_RbLM) + pointed).max(-1))
    return own >= highest * (1 - RELATIVE_TOLERANCE)
