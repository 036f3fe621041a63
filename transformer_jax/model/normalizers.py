"""Normalizers: scores to attention weights, with or without a state that a hypothesis carries.

A new normalizer is a function here and its line in `NORMALIZERS`, or, with a state, its three
functions and its line in `ATTENTION_MEMORIES`. Training and search call the same `step`.

Dimension key
  B batch   L target length   M source length   H heads   K d_k per head   E encoder's features
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.axes import FEATURES, HEADS, Parameter
from transformer_jax.model.records import Params

MAX_FERTILITY = 2.0  # N of Tu et al. 2016


def softmax(scores_BHLM: Array, mask: Array, kept: str | None = None) -> Array:
    """Weights `[batch, heads, query_len, key_len]` over the keys where the mask is True.

    Each query's weights sum to 1. A query that may attend to nothing gets equal weights, not NaN.

    Args:
      scores_BHLM: scores `[batch, heads, query_len, key_len]`, float32.
      mask: booleans that broadcast to that shape, True = may attend.
      kept: type of the weights that are kept for the backward pass; None: that of the scores.
    """
    if kept and jnp.finfo(kept).bits < jnp.finfo(scores_BHLM.dtype).bits:
        return narrow_softmax(scores_BHLM, mask, kept)
    # finfo.min, not -inf: the softmax of a row without any True would be NaN.
    return jax.nn.softmax(jnp.where(mask, scores_BHLM, jnp.finfo(scores_BHLM.dtype).min))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def narrow_softmax(scores_BHLM: Array, mask: Array, kept: str) -> Array:
    """The softmax, whose backward pass needs only weights of a narrower type, such as bfloat16.

    The product with the values keeps such weights anyway. Otherwise the float32 scores are kept
    beside them: of a layer of the base model, 208 MiB for 104 rows of 256 positions.
    """
    return softmax(scores_BHLM, mask)


def _narrow_softmax_forward(
    scores_BHLM: Array, mask: Array, kept: str
) -> tuple[Array, tuple[Array, Array]]:
    weights_BHLM = softmax(scores_BHLM, mask)
    # XLA may drop a pair of casts; without the barrier it keeps the scores after all.
    return weights_BHLM, (jax.lax.optimization_barrier(weights_BHLM.astype(kept)), mask)


def _narrow_softmax_backward(
    kept: str, residuals: tuple[Array, Array], gradient_BHLM: Array
) -> tuple[Array, None]:
    weights_BHLM, mask = residuals
    weights_BHLM = weights_BHLM.astype(gradient_BHLM.dtype)
    mean_BHL1 = (weights_BHLM * gradient_BHLM).sum(-1, keepdims=True)
    return jnp.where(mask, weights_BHLM * (gradient_BHLM - mean_BHL1), 0.0), None


narrow_softmax.defvjp(_narrow_softmax_forward, _narrow_softmax_backward)


def sparsemax(scores_BHLM: Array, mask: Array) -> Array:
    """The nearest weights to the scores, many of them exactly 0: max(score - tau, 0).

    tau makes each query's weights sum to 1. A query that may attend to nothing gets equal weights.

    Args:
      scores_BHLM: scores `[batch, heads, query_len, key_len]`, float32.
      mask: booleans that broadcast to that shape, True = may attend.

    Source: Martins and Astudillo 2016, equation 2 and algorithm 1.
    """
    allowed = jnp.where(mask, scores_BHLM, jnp.finfo(scores_BHLM.dtype).min)
    highest_BHL1 = jax.lax.stop_gradient(allowed.max(-1, keepdims=True))
    # tau is at least the highest score - 1, so a score 2 below it has no weight.
    scores_BHLM = jnp.where(mask, scores_BHLM - highest_BHL1, -2.0)
    scores_BHLM = jnp.where(jnp.any(mask, -1, keepdims=True), scores_BHLM, 0.0)
    sorted_BHLM = -jnp.sort(-jax.lax.stop_gradient(scores_BHLM), axis=-1)
    sums_BHLM, number_M = jnp.cumsum(sorted_BHLM, -1), jnp.arange(1, scores_BHLM.shape[-1] + 1)
    count_BHL1 = (1 + number_M * sorted_BHLM > sums_BHLM).sum(-1, keepdims=True)
    sum_BHL1 = jnp.take_along_axis(sums_BHLM, count_BHL1 - 1, -1)
    # Not a comparison with the lowest score in: XLA may round the scores differently here.
    support = scores_BHLM > (sum_BHL1 - 1) / count_BHL1
    inside_BHLM = jnp.where(support, scores_BHLM, 0.0)
    tau_BHL1 = (inside_BHLM.sum(-1, keepdims=True) - 1) / support.sum(-1, keepdims=True)
    return jnp.where(support, scores_BHLM - tau_BHL1, 0.0)


def top_k(scores_BHLM: Array, mask: Array, size: int) -> Array:
    """The softmax over each query's keys with the `size` highest scores, and those equal to them.

    Args:
      scores_BHLM: scores `[batch, heads, query_len, key_len]`, float32.
      mask: booleans that broadcast to that shape, True = may attend.
      size: at least 1.

    Source: Zhao et al. 2019, "Explicit Sparse Transformer".
    """
    # XLA would compute the scores twice, round them differently, and miss equal ones.
    scores_BHLM = jax.lax.optimization_barrier(scores_BHLM)
    allowed = jnp.where(mask, scores_BHLM, jnp.finfo(scores_BHLM.dtype).min)
    highest = jax.lax.top_k(jax.lax.stop_gradient(allowed), min(size, scores_BHLM.shape[-1]))[0]
    return softmax(scores_BHLM, mask & (allowed >= highest[..., -1:]))


# From a config to (scores, mask) -> weights. The backward pass of the softmax keeps weights in the
# type of the activations.
NORMALIZERS: dict[str, Callable[[ModelConfig], Callable[[Array, Array], Array]]] = {
    "softmax": lambda config: functools.partial(softmax, kept=config.dtype),
    "sparsemax": lambda config: sparsemax,
    "top_k": lambda config: functools.partial(top_k, size=config.attended_keys),
}


def problems(config: ModelConfig) -> Iterator[str]:
    """Why this normalizer cannot be combined with the model's other keys."""
    cross = config.cross_normalizer or config.normalizer
    if config.attention_memory is not None and cross != "softmax":
        yield (
            f"model.attention_memory={config.attention_memory!r} has its own softmax, so that "
            f"encoder-decoder attention cannot have the normalizer {cross!r}. Set "
            "model.cross_normalizer='softmax', or model.attention_memory=None."
        )


# Normalizers with a state ------------------------------------------------------------------------


class Scored(NamedTuple):
    """The input of a normalizer with a state for one query; leading axes are batch and beams."""

    scores_HM: Array  # float32 [..., heads, src_len]
    mask_HM: Array  # booleans that broadcast to them, True = may attend
    query_HK: Array  # [..., heads, d_k]
    features: Any  # the result of `prepare` for the source sentence


class AttentionMemory(NamedTuple):
    """A normalizer whose weights depend on the weights of earlier target positions."""

    parameters: Mapping[str, Parameter]
    # (params, encoded [B, M, E]) -> features, leaves [B, ...]; once a source sentence.
    prepare: Callable[[Params, Array], Any]
    # (params, state, scored) -> (state, weights); the state is [..., heads, src_len], 0 at first.
    step: Callable[[Params, Array, Scored], tuple[Array, Array]]


def fertility(params: Params, encoded_BME: Array) -> Array:
    """N sigmoid(U h) of each source position and head: float32 `[batch, heads, src_len]`.

    Source: Tu et al. 2016, equation 7.
    """
    return MAX_FERTILITY * jax.nn.sigmoid(
        jnp.einsum("BME,EH->BHM", encoded_BME, params["fertility"])
    )


def coverage_step(params: Params, covered: Array, now: Scored) -> tuple[Array, Array]:
    """softmax(score + w coverage); coverage is the sum of past weights over the fertility.

    The coverage is added to the score itself, not inside a tanh, so that one matrix product gives
    the content scores of all positions.

    Args:
      params: "coverage" w `[heads]` and "fertility" U `[encoder's features, heads]`.
      covered: the coverage before `[..., heads, src_len]`.
      now: the scores, and the fertilities as features.

    Returns:
      The new coverage, and weights `[..., heads, src_len]`.

    Source: Tu et al. 2016, section 3.1.1, equations 5 and 6.
    """
    scores = now.scores_HM + params["coverage"][:, None] * covered
    weights = softmax(scores, now.mask_HM)
    return covered + weights / now.features, weights


ATTENTION_MEMORIES: dict[str, AttentionMemory] = {
    "coverage": AttentionMemory(
        parameters={
            "coverage": Parameter(nn.initializers.zeros, ("heads",), (HEADS,)),
            "fertility": Parameter(nn.initializers.zeros, ("encoded", "heads"), (FEATURES, HEADS)),
        },
        prepare=fertility,
        step=coverage_step,
    ),
}


def weights_of_all(
    memory: AttentionMemory, params: Params, scored: Scored, begins_BL: Array
) -> Array:
    """Weights of all target positions, `step` after `step`: `[batch, heads, tgt_len, src_len]`.

    Args:
      memory: the normalizer.
      params: its parameters.
      scored: scores `[B, H, L, M]`, mask `[B, 1, L, M]` and queries `[B, L, H, K]` of all
        positions; the features of the source.
      begins_BL: True at the first position of each sentence, where the state starts from zero.
    """

    def step(state_BHM: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        scores_BHM, mask_B1M, query_BHK, begins_B = now
        state_BHM = jnp.where(begins_B[:, None, None], 0.0, state_BHM)
        return memory.step(
            params, state_BHM, Scored(scores_BHM, mask_B1M, query_BHK, scored.features)
        )

    along = (
        jnp.moveaxis(scored.scores_HM, 2, 0),
        jnp.moveaxis(scored.mask_HM, 2, 0),
        jnp.moveaxis(scored.query_HK, 1, 0),
        begins_BL.T,
    )
    _, weights_LBHM = jax.lax.scan(step, jnp.zeros_like(scored.scores_HM[:, :, 0]), along)
    return jnp.moveaxis(weights_LBHM, 0, 2)
