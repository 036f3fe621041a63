"""Memories of encoder-decoder attention, one target position after the other, by loops."""

import jax
import numpy as np
import pytest
from scipy.special import expit

from tests.fixtures.references import gated_unit_by_hand, softmax_by_hand
from tests.fixtures.tiny import drawn_params, relative_error
from transformer_jax.model.attention.memories import ATTENTION_MEMORIES, COVERAGE_SIZE, SIZES
from transformer_jax.model.attention.stateful_normalizers import Scored, Source, weights_of_all

B, L, M, H, K, E, D = 2, 5, 4, 3, 6, 7, 8
DRAW = np.random.default_rng(8)
SCORES = DRAW.normal(size=(B, H, L, M)).astype(np.float32)
MASK = DRAW.random((B, 1, L, M)) < 0.6
# Each query may attend to something; in row 1 not to position 0, which another sentence has.
MASK[0, ..., 0], MASK[1, ..., :2] = True, (False, True)
QUERY = DRAW.normal(size=(B, L, H, K)).astype(np.float32)
ENCODED = DRAW.normal(size=(B, M, E)).astype(np.float32)
WORDS = DRAW.normal(size=(B, M, D)).astype(np.float32)
INPUTS = DRAW.normal(size=(B, L, D)).astype(np.float32)
BEGINS = np.array([[1, 0, 1, 0, 0], [1, 0, 0, 0, 1]], bool)  # where a sentence of the row begins
SOURCE = Source(ENCODED, WORDS)
AXES = {"heads": H, "encoded": E, "d_k": K, "d_model": D, **SIZES}
BY_NAME = {
    name: drawn_params(memory.parameters, AXES, DRAW) for name, memory in ATTENTION_MEMORIES.items()
}


def coverage_by_hand():
    """Weights `[B, H, L, M]`, one target position after the other."""
    p = {name: array.astype(np.float64) for name, array in BY_NAME["coverage"].items()}
    want, covered = np.zeros((B, H, L, M)), np.zeros((B, H, M))
    for b, i, h in np.ndindex(B, L, H):
        if BEGINS[b, i]:
            covered[b, h] = 0
        scores = SCORES[b, h, i] + p["coverage"][h] * covered[b, h]
        want[b, h, i] = softmax_by_hand(scores, MASK[b, 0, i])
        fertility_M = 2 * expit(ENCODED[b] @ p["fertility"][:, h])
        covered[b, h] += want[b, h, i] / fertility_M
    return want


def all_weights(name, scores=SCORES):
    memory, params = ATTENTION_MEMORIES[name], BY_NAME[name]
    features = memory.prepare(params, SOURCE)
    scored = Scored(scores, MASK, QUERY, features, INPUTS)
    return jax.jit(lambda scored, begins: weights_of_all(memory, params, scored, begins))(
        scored, BEGINS
    )


def markov_by_hand():
    """Weights `[B, H, L, M]`; a neighbor beyond the ends of the row counts nothing."""
    want = np.zeros((B, H, L, M))
    matrix = BY_NAME["markov"]["markov"].astype(np.float64)
    for b, i, h in np.ndindex(B, L, H):
        scores = SCORES[b, h, i].astype(np.float64)
        for j in range(M if not BEGINS[b, i] else 0):
            for n, neighbor in enumerate((j - 1, j, j + 1)):
                if 0 <= neighbor < M:
                    scores[j] += matrix[n, h] * want[b, h, i - 1, neighbor]
        want[b, h, i] = softmax_by_hand(scores, MASK[b, 0, i])
    return want


def coverage_gru_by_hand():
    """Weights `[B, H, L, M]`; each source position that may be read has its own unit a head."""
    p = {name: array.astype(np.float64) for name, array in BY_NAME["coverage_gru"].items()}
    want, covered = np.zeros((B, H, L, M)), np.zeros((B, H, M, COVERAGE_SIZE))

    for b, i, h in np.ndindex(B, L, H):
        if BEGINS[b, i]:
            covered[b, h] = 0
        scores = SCORES[b, h, i] + covered[b, h] @ p["coverage"][h]
        want[b, h, i] = softmax_by_hand(scores, MASK[b, 0, i])
        for j in np.flatnonzero(MASK[b, 0, i]):
            inputs = ENCODED[b, j] @ p["from_source"][:, h] + QUERY[b, i, h] @ p["from_query"][h]
            inputs += want[b, h, i, j] * p["from_weight"][h] + p["gate_bias"][h]
            matrices = np.split(p["from_state"][h], 3, axis=1)
            covered[b, h, j] = gated_unit_by_hand(covered[b, h, j], inputs, matrices)
    return want


def coverage_embedding_by_hand():
    """Weights `[B, H, L, M]`: coverage starts at the source word, and words of the target move it.

    The weights that predicted a word are those of the position before its own.
    """
    p = {name: x.astype(np.float64) for name, x in BY_NAME["coverage_embedding"].items()}
    want, covered = np.zeros((B, H, L, M)), np.zeros((B, H, M, COVERAGE_SIZE))
    for b, i, h in np.ndindex(B, L, H):
        for j in range(M):
            if BEGINS[b, i]:
                covered[b, h, j] = WORDS[b, j] @ p["from_source_word"][:, h]
            elif MASK[b, 0, i, j]:
                inputs = INPUTS[b, i] @ p["from_word"][:, h] + p["gate_bias"][h]
                inputs += want[b, h, i - 1, j] * p["from_weight"][h]
                matrices = np.split(p["from_state"][h], 3, axis=1)
                covered[b, h, j] = gated_unit_by_hand(covered[b, h, j], inputs, matrices)
        scores = SCORES[b, h, i] + covered[b, h] @ p["coverage"][h]
        want[b, h, i] = softmax_by_hand(scores, MASK[b, 0, i])
    return want


BY_HAND = {
    "coverage": coverage_by_hand,
    "coverage_embedding": coverage_embedding_by_hand,
    "coverage_gru": coverage_gru_by_hand,
    "markov": markov_by_hand,
}


@pytest.mark.parametrize("name", ATTENTION_MEMORIES)
def test_the_state_goes_from_position_to_position_and_starts_from_0_in_each_sentence(name):
    assert relative_error(all_weights(name), BY_HAND[name]()) < 1e-6


@pytest.mark.parametrize("name", ATTENTION_MEMORIES)
def test_nan_scores_of_a_sentence_do_not_reach_the_next_sentence_of_its_row(name):
    scores = np.array(SCORES)
    scores[0, :, 1] = np.nan
    got = np.asarray(all_weights(name, scores))
    want = np.asarray(all_weights(name))
    assert np.isnan(got[0, :, 1]).all()
    np.testing.assert_array_equal(got[0, :, 2:], want[0, :, 2:])
    np.testing.assert_array_equal(got[1], want[1])
