"""Normalizers: scores to attention weights, with or without a state that a hypothesis carries.

A new normalizer is a function here and its line in `NORMALIZERS`, or, with a state, its three
functions and its line in `ATTENTION_MEMORIES`. Training and search call the same `step`.

Dimension key
  B batch   L target length   M source length   H heads   K d_k per head   E encoder's features
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import FEATURES, HEADS, Parameter
from transformer_jax.model.records import Params

MAX_FERTILITY = 2.0  # N of Tu et al. 2016


def softmax(scores_BHLM: Array, mask: Array) -> Array:
    """Weights `[batch, heads, query_len, key_len]` over the keys where the mask is True.

    Each query's weights sum to 1. A query that may attend to nothing gets equal weights, not NaN.

    Args:
      scores_BHLM: scores `[batch, heads, query_len, key_len]`, float32.
      mask: booleans that broadcast to that shape, True = may attend.
    """
    # finfo.min, not -inf: the softmax of a row without any True would be NaN.
    return jax.nn.softmax(jnp.where(mask, scores_BHLM, jnp.finfo(scores_BHLM.dtype).min))


NORMALIZERS: dict[str, Callable[[Array, Array], Array]] = {"softmax": softmax}


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
