"""Memories of encoder-decoder attention: its weights depend on those of earlier target positions.

A new one is three functions and its line in `ATTENTION_MEMORIES`. Training and search call the same
`step`. What a memory knows is added to the score itself, not inside a tanh as in the papers, so
that one matrix product gives the content scores of all positions.

Dimension key
  B batch   L target length   M source length   H heads   K d_k per head   E encoder's features
  C size of a coverage vector   G its gates, 3 C
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import FEATURES, HEADS, Parameter
from transformer_jax.model.normalizers import softmax
from transformer_jax.model.records import Params

MAX_FERTILITY = 2.0  # N of Tu et al. 2016
COVERAGE_SIZE = 10  # of a coverage vector (Tu et al. 2016, section 5.1)
SIZES = {"neighbours": 3, "coverage": COVERAGE_SIZE, "gates": 3 * COVERAGE_SIZE}  # of parameters


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
    # (params, state, scored) -> (state, weights); the state is 0 at first.
    step: Callable[[Params, Array, Scored], tuple[Array, Array]]
    # Axes after [..., heads, src_len], of the state and of the features; None: there are none.
    state_shape: tuple[int, ...] = ()
    features_shape: tuple[int, ...] | None = ()


def fertility(params: Params, encoded_BME: Array) -> Array:
    """N sigmoid(U h) of each source position and head: float32 `[batch, heads, src_len]`.

    Source: Tu et al. 2016, equation 7.
    """
    return MAX_FERTILITY * jax.nn.sigmoid(
        jnp.einsum("BME,EH->BHM", encoded_BME, params["fertility"])
    )


def coverage_step(params: Params, covered: Array, now: Scored) -> tuple[Array, Array]:
    """softmax(score + w coverage); coverage is the sum of past weights over the fertility.

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


def markov_step(params: Params, last: Array, now: Scored) -> tuple[Array, Array]:
    """softmax(score + w [a_{j-1}, a_j, a_{j+1}]), where a are the weights of the position before.

    Args:
      params: "markov" w `[3, heads]`.
      last: a, the weights before `[..., heads, src_len]`.
      now: the scores.

    Returns:
      The new weights, twice: as the state and as the weights.

    Source: Cohn et al. 2016, section 3.2, which puts the features inside the tanh.
    """
    # In a packed row the weights on the source of other sentences are 0, so nothing is shifted in.
    edges = [(0, 0)] * (last.ndim - 1)
    before = jnp.pad(last[..., :-1], (*edges, (1, 0)))
    after = jnp.pad(last[..., 1:], (*edges, (0, 1)))
    scores = now.scores_HM
    for weight_H, moved in zip(params["markov"], (before, last, after), strict=True):
        scores = scores + weight_H[:, None] * moved
    weights = softmax(scores, now.mask_HM)
    return weights, weights


def gates_of_source(params: Params, encoded_BME: Array) -> Array:
    """What the source adds to the gates of a coverage vector: `[batch, heads, src_len, gates]`."""
    return jnp.einsum("BME,EHG->BHMG", encoded_BME, params["from_source"])


def coverage_gru_step(params: Params, covered: Array, now: Scored) -> tuple[Array, Array]:
    """softmax(score + w . c), where a gated recurrent unit updates the coverage vectors c.

    Its inputs are the weight on the source position, the encoder's output there and the query.

    Args:
      params: "coverage" w `[heads, C]` and the matrices of the unit.
      covered: c before `[..., heads, src_len, C]`.
      now: the scores and the query; the features are those of `gates_of_source`.

    Returns:
      The new coverage vectors, and weights `[..., heads, src_len]`.

    Source: Tu et al. 2016, section 3.1.2, equation 8; the unit is that of Cho et al. 2014.
    """
    scores = now.scores_HM + jnp.einsum("...HMC,HC->...HM", covered, params["coverage"])
    weights = softmax(scores, now.mask_HM)
    of_query = jnp.einsum(
        "...HK,HKG->...HG", now.query_HK.astype(covered.dtype), params["from_query"]
    )
    inputs = now.features + of_query[..., None, :] + params["gate_bias"][:, None]
    inputs = inputs + weights[..., None] * params["from_weight"][:, None]
    to_update, to_reset, to_candidate = jnp.split(inputs, 3, axis=-1)
    of_update, of_reset, of_candidate = jnp.split(params["from_state"], 3, axis=-1)

    def times(state: Array, matrix_HCC: Array) -> Array:
        return jnp.einsum("...HMC,HCD->...HMD", state, matrix_HCC)

    update = jax.nn.sigmoid(to_update + times(covered, of_update))
    reset = jax.nn.sigmoid(to_reset + times(covered, of_reset))
    candidate = jnp.tanh(to_candidate + times(reset * covered, of_candidate))
    return (1 - update) * covered + update * candidate, weights


_xavier = nn.initializers.xavier_uniform
_zeros = nn.initializers.zeros

ATTENTION_MEMORIES: dict[str, AttentionMemory] = {
    "coverage": AttentionMemory(
        parameters={
            "coverage": Parameter(_zeros, ("heads",), (HEADS,)),
            "fertility": Parameter(_zeros, ("encoded", "heads"), (FEATURES, HEADS)),
        },
        prepare=fertility,
        step=coverage_step,
    ),
    "coverage_gru": AttentionMemory(
        parameters={
            "coverage": Parameter(_zeros, ("heads", "coverage"), (HEADS, None)),
            "from_source": Parameter(
                _xavier(in_axis=0, out_axis=2),
                ("encoded", "heads", "gates"),
                (FEATURES, HEADS, None),
            ),
            "from_query": Parameter(
                _xavier(in_axis=1, out_axis=2), ("heads", "d_k", "gates"), (HEADS, None, None)
            ),
            "from_weight": Parameter(
                nn.initializers.normal(1.0), ("heads", "gates"), (HEADS, None)
            ),
            "from_state": Parameter(
                _xavier(in_axis=1, out_axis=2), ("heads", "coverage", "gates"), (HEADS, None, None)
            ),
            "gate_bias": Parameter(_zeros, ("heads", "gates"), (HEADS, None)),
        },
        prepare=gates_of_source,
        step=coverage_gru_step,
        state_shape=(COVERAGE_SIZE,),
        features_shape=(3 * COVERAGE_SIZE,),
    ),
    "markov": AttentionMemory(
        parameters={"markov": Parameter(_zeros, ("neighbours", "heads"), (None, HEADS))},
        prepare=lambda params, encoded_BME: (),
        step=markov_step,
        features_shape=None,
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

    def step(state: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        scores_BHM, mask_B1M, query_BHK, begins_B = now
        state = jnp.where(begins_B.reshape(-1, *(1,) * (state.ndim - 1)), 0.0, state)
        return memory.step(params, state, Scored(scores_BHM, mask_B1M, query_BHK, scored.features))

    along = (
        jnp.moveaxis(scored.scores_HM, 2, 0),
        jnp.moveaxis(scored.mask_HM, 2, 0),
        jnp.moveaxis(scored.query_HK, 1, 0),
        begins_BL.T,
    )
    first_BHM = jnp.zeros_like(scored.scores_HM[:, :, 0])
    first = jnp.broadcast_to(
        first_BHM.reshape(*first_BHM.shape, *(1,) * len(memory.state_shape)),
        (*first_BHM.shape, *memory.state_shape),
    )
    _, weights_LBHM = jax.lax.scan(step, first, along)
    return jnp.moveaxis(weights_LBHM, 0, 2)
