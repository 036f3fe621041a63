"""Memories of encoder-decoder attention: its weights depend on those of earlier target positions.

A new one is two functions, `prepare` and `step` (see `Stateful`), and its line in
`ATTENTION_MEMORIES`. Training and search call the same `step`. It adds its term to the score, not
inside a tanh as in the papers, so that one matrix product gives the rest of all scores.

Dimension key
  B batch   L target length   M source length   H heads   K d_k per head   D d_model
  E features of the encoder's output   C size of a coverage vector   G its gates, 3 C
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.stateful_normalizers import (
    HEADS_SOURCE,
    Scored,
    SearchArray,
    Source,
    Stateful,
)
from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params

MAX_FERTILITY = 2.0  # N of Tu et al. 2016
COVERAGE_SIZE = 10  # numbers in a coverage vector (Tu et al. 2016, section 5.1)
# Sizes of the parameters' axes.
SIZES = {"neighbors": 3, "coverage": COVERAGE_SIZE, "gates": 3 * COVERAGE_SIZE}


def fertility(params: Params, source: Source) -> Array:
    """N sigmoid(U h) of each source position and head: float32 `[batch, heads, src_len]`.

    Source: Tu et al. 2016, equation 7.
    """
    return MAX_FERTILITY * jax.nn.sigmoid(
        jnp.einsum("BME,EH->BHM", source.encoded_BME, params["fertility"])
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

    Source: Cohn et al. 2016, section 3.2, which puts these terms inside the tanh.
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


def gates_of_source(params: Params, source: Source) -> Array:
    """What the source adds to the gates of a coverage vector: `[batch, heads, src_len, gates]`."""
    return jnp.einsum("BME,EHG->BHMG", source.encoded_BME, params["from_source"])


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
    return gated(params, covered, inputs, now.mask_HM), weights


def gated(params: Params, covered: Array, inputs: Array, updates_HM: Array) -> Array:
    """The coverage vectors after one update of a gated recurrent unit `[..., heads, src_len, C]`.

    Args:
      params: "from_state" `[heads, C, gates]`.
      covered: the vectors before.
      inputs: of the gates `[..., heads, src_len, gates]`.
      updates_HM: where vectors are updated, bool. A word that is not read yet (wait-k) keeps its
        vector.
    """
    to_update, to_reset, to_candidate = jnp.split(inputs, 3, axis=-1)
    of_update, of_reset, of_candidate = jnp.split(params["from_state"], 3, axis=-1)

    def times(state: Array, matrix_HCC: Array) -> Array:
        return jnp.einsum("...HMc,HcC->...HMC", state, matrix_HCC)

    update = jax.nn.sigmoid(to_update + times(covered, of_update))
    reset = jax.nn.sigmoid(to_reset + times(covered, of_reset))
    candidate = jnp.tanh(to_candidate + times(reset * covered, of_candidate))
    updated = (1 - update) * covered + update * candidate
    return jnp.where(updates_HM[..., None], updated, covered)


def full_coverage(params: Params, source: Source) -> Array:
    """The coverage vector that a source word starts with: `[batch, heads, src_len, C]`."""
    assert source.words_BMD is not None
    return jnp.einsum("BMD,DHC->BHMC", source.words_BMD, params["from_source_word"])


def coverage_embedding_step(params: Params, state: Array, now: Scored) -> tuple[Array, Array]:
    """softmax(score + w . c), where c starts from the source word and the target words use it up.

    A target word is known one position after the weights it was predicted with. So the unit first
    updates c by the last weights and the newest target word, and then c enters the scores.

    Args:
      params: "coverage" w `[heads, C]` and the matrices of the unit.
      state: `[..., heads, src_len, C + 1]`: how far c is from where it started, and the last
        weights; 0 at the first position, where nothing is updated.
      now: the scores and the newest target word; the features are those of `full_coverage`.

    Returns:
      The new state, and weights `[..., heads, src_len]`.

    Source: Mi et al. 2016, section 3.1, whose update gate is 1 minus ours.
    """
    assert now.inputs_D is not None
    change = state[..., :COVERAGE_SIZE]
    last = state[..., COVERAGE_SIZE:]
    inputs_D = now.inputs_D.astype(state.dtype)
    of_word = jnp.einsum("...D,DHG->...HG", inputs_D, params["from_word"])
    inputs = (of_word + params["gate_bias"])[..., None, :]
    inputs = inputs + last * params["from_weight"][:, None]
    begun = jnp.any(last > 0, axis=-2)
    covered = gated(params, now.features + change, inputs, begun & now.mask_HM)
    scores = now.scores_HM + jnp.einsum("...HMC,HC->...HM", covered, params["coverage"])
    weights = softmax(scores, now.mask_HM)
    return jnp.concatenate([covered - now.features, weights[..., None]], -1), weights


_xavier = nn.initializers.xavier_uniform
_of_first, _of_second = _xavier(in_axis=0, out_axis=2), _xavier(in_axis=1, out_axis=2)
_zeros = nn.initializers.zeros

_GATES = {  # parameters of a coverage vector's gated recurrent unit
    "from_weight": Parameter(nn.initializers.normal(1.0), ("heads", "gates")),
    "from_state": Parameter(_of_second, ("heads", "coverage", "gates")),
    "gate_bias": Parameter(_zeros, ("heads", "gates")),
}

ATTENTION_MEMORIES: dict[str, Stateful] = {
    "coverage": Stateful(
        parameters={
            "coverage": Parameter(_zeros, ("heads",)),
            "fertility": Parameter(_zeros, ("encoded", "heads")),
        },
        prepare=fertility,
        step=coverage_step,
    ),
    "coverage_gru": Stateful(
        parameters={
            "coverage": Parameter(_zeros, ("heads", "coverage")),
            "from_source": Parameter(_of_first, ("encoded", "heads", "gates")),
            "from_query": Parameter(_of_second, ("heads", "d_k", "gates")),
            **_GATES,
        },
        prepare=gates_of_source,
        step=coverage_gru_step,
        state=SearchArray((*HEADS_SOURCE, COVERAGE_SIZE)),
        features=SearchArray((*HEADS_SOURCE, 3 * COVERAGE_SIZE)),
    ),
    "coverage_embedding": Stateful(
        parameters={
            "coverage": Parameter(_zeros, ("heads", "coverage")),
            "from_source_word": Parameter(_of_first, ("d_model", "heads", "coverage")),
            "from_word": Parameter(_of_first, ("d_model", "heads", "gates")),
            **_GATES,
        },
        prepare=full_coverage,
        step=coverage_embedding_step,
        state=SearchArray((*HEADS_SOURCE, COVERAGE_SIZE + 1)),
        features=SearchArray((*HEADS_SOURCE, COVERAGE_SIZE)),
        reads_words=True,
    ),
    "markov": Stateful(
        parameters={"markov": Parameter(_zeros, ("neighbors", "heads"))},
        prepare=lambda params, source: (),
        step=markov_step,
        features=None,
    ),
}
