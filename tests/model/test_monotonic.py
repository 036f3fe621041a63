"""Monotonic attention against enumerations of all paths, and loops for its decisions."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from tests.fixtures.references import softmax_by_hand
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.monotonic import MONOTONIC, expected_stops, next_stop
from transformer_jax.model.attention.stateful_normalizers import Scored, Source, weights_of_all

# One row: sentences of 4 and 2 target and 6 and 2 source positions, then padding.
H, L, M = 3, 7, 9
TARGET = np.array([1, 1, 1, 1, 2, 2, 0])
SOURCE = np.array([1, 1, 1, 1, 1, 1, 2, 2, 0])
BEGINS = np.array([[1, 0, 0, 0, 1, 0, 1]], bool)
MASK = ((TARGET[:, None] == SOURCE) & (SOURCE != 0))[None, None]
SENTENCES = [(slice(0, 4), slice(0, 6)), (slice(4, 6), slice(6, 8))]
DRAW = np.random.default_rng(8)
SCORES = DRAW.normal(size=(1, H, L, M)).astype(np.float32)
K, E = 5, 4
QUERY = DRAW.normal(size=(1, L, H, K)).astype(np.float32)
ENCODED = DRAW.normal(size=(1, M, E)).astype(np.float32)
STOP_KEY = DRAW.normal(size=(E, H, K)).astype(np.float32)
CONFIG = ModelConfig(chunk_width=3)
WIDTHS = {"chunkwise": 3, "lookback": M}  # positions that a head attends to


def stops_by_enumeration(energies):
    """The probability of each stop of one sentence `[L, M]`: the sum over all paths."""
    length, size = energies.shape
    stop = expit(energies)
    stop[:, -1] = 1
    want = np.zeros((length, size))
    for path in itertools.combinations_with_replacement(range(size), length):
        probability = 1.0
        before = 0
        for i, place in enumerate(path):
            probability *= np.prod(1 - stop[i, before:place]) * stop[i, place]
            before = place
        for i, place in enumerate(path):
            want[i, place] += probability
    return want


def all_stops_by_enumeration(energies):
    want = np.zeros((1, H, L, M))
    for h, (written, read) in itertools.product(range(H), SENTENCES):
        want[0, h, written, read] = stops_by_enumeration(energies[0, h, written, read])
    return want


def stops_by_recursion(energies):
    """The same by Raffel's recursion; paths of 40 outputs are too many."""
    stop = expit(energies)
    stop[:, -1] = 1
    before = np.eye(energies.shape[1])[0]
    want = np.zeros(energies.shape)
    for i, p in enumerate(stop):
        come = 0.0
        for j in range(energies.shape[1]):
            come = before[j] + (come * (1 - p[j - 1]) if j else 0.0)
            want[i, j] = p[j] * come
        before = want[i]
    return want


def test_expected_stops_are_right_where_decisions_are_nearly_certain():
    """64 source positions, 40 outputs: the closed form is wrong by more than 0.5 in float32."""
    energies = (12 * np.random.default_rng(0).normal(size=(40, 64)) - 15).astype(np.float32)
    begins = np.arange(40)[None] == 0
    got = expected_stops(energies[None, None], np.ones((1, 1, 40, 64), bool), begins)
    assert np.abs(np.asarray(got[0, 0]) - stops_by_recursion(energies)).max() < 1e-6


def parameters(name):
    """A bias of the energies for heads that stop early and late, and the keys of stops."""
    params = {"stop_bias": np.array([0.5, -0.3, -0.9], np.float32), "stop_key": STOP_KEY}
    return {"stop_bias": params["stop_bias"]} if name == "monotonic" else params


def energies_of(name, params):
    """`[1, H, L, M]`: the scores, or the products of the queries with keys of their own."""
    energies = np.array(SCORES, np.float64)
    if name != "monotonic":
        for h, i, j in np.ndindex(H, L, M):
            key = ENCODED[0, j].astype(np.float64) @ params["stop_key"][:, h]
            energies[0, h, i, j] = QUERY[0, i, h] @ key / np.sqrt(K)
    return energies + params["stop_bias"][:, None, None]


def spread(name, stops, scores=SCORES):
    """Weights, from the probabilities of stops: for each stop, a softmax over what is before it."""
    if name == "monotonic":
        return stops
    want = np.zeros(stops.shape)
    for h, (written, read) in itertools.product(range(H), SENTENCES):
        for i, k in itertools.product(
            range(written.start, written.stop), range(read.start, read.stop)
        ):
            first = max(read.start, k - WIDTHS[name] + 1)
            parts = np.exp(scores[0, h, i, first : k + 1].astype(np.float64))
            want[0, h, i, first : k + 1] += stops[0, h, i, k] * parts / parts.sum()
    return want


def decided_by_hand(energies):
    """One-hot `[1, H, L, M]`: each head walks right until its energy is 0 or more."""
    want = np.zeros((1, H, L, M))
    for h, (written, read) in itertools.product(range(H), SENTENCES):
        place = read.start
        for i in range(written.start, written.stop):
            while place < read.stop - 1 and energies[0, h, i, place] < 0:
                place += 1
            want[0, h, i, place] = 1
    return want


def scored(name, params, scores=SCORES):
    features = MONOTONIC[name](CONFIG).prepare(params, Source(ENCODED, None))
    return Scored(scores, MASK, QUERY, features)


@pytest.mark.parametrize("name", MONOTONIC)
def test_training_has_the_expected_weights_with_noise_on_the_energies(name):
    params = parameters(name)
    noise = DRAW.normal(size=SCORES.shape).astype(np.float32)
    want = spread(name, all_stops_by_enumeration(energies_of(name, params) + noise))
    got = jax.jit(functools.partial(soft, name))(params, scored(name, params), noise)
    np.testing.assert_allclose(got, want, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(got)[want == 0], 0)


def soft(name, params, args, noise=None, config=CONFIG):
    noise = np.zeros_like(SCORES) if noise is None else noise
    return MONOTONIC[name](config).expected(params, args, BEGINS, noise)


def hard(name, params, args, config=CONFIG):
    normalizer = MONOTONIC[name](config)
    return np.asarray(jax.jit(lambda *x: weights_of_all(normalizer, *x))(params, args, BEGINS))


@pytest.mark.parametrize("name", MONOTONIC)
def test_beyond_training_a_head_stops_at_the_first_energy_of_0_or_more(name):
    params = parameters(name)
    want = decided_by_hand(energies_of(name, params))
    assert len({tuple(want[0, h, :4].argmax(-1)) for h in range(H)}) > 1
    got = hard(name, params, scored(name, params))
    np.testing.assert_allclose(got, spread(name, want), atol=1e-6)
    np.testing.assert_array_equal(got[spread(name, want) == 0], 0)


def test_a_probability_of_a_half_stops_a_head_and_nowhere_to_stop_leaves_it_where_it_was():
    energies = jnp.array([[-1.0, 0.0, 2.0], [-1.0, -1.0, -1.0]])
    stopped = jnp.array([0, 1])
    mask = jnp.array([[True, True, True], [True, False, False]])
    after, here = next_stop(stopped, energies, mask)
    assert after.tolist() == [1, 1]
    assert here.astype(int).tolist() == [[0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("name", WIDTHS)
def test_scores_that_differ_by_thousands_neither_overflow_nor_vanish(name):
    """A head that is certain to stop at a position of low scores still has weights of sum 1."""
    scores = SCORES + np.float32(3e3) * (np.arange(M) % 4 == 1)
    params = parameters(name)

    @jax.jit
    def weights(scores):
        return soft(name, params, scored(name, params, scores))

    np.testing.assert_allclose(np.asarray(weights(scores)).sum(-1)[0, :, :6], 1, atol=1e-6)
    assert np.isfinite(jax.grad(lambda scores: (weights(scores) ** 2).sum())(scores)).all()


@pytest.mark.parametrize("name", WIDTHS)
def test_a_head_that_reads_everything_first_is_the_softmax(name):
    """All heads stop at the last position; then a chunk as wide as the row is the softmax too."""
    config = ModelConfig(chunk_width=M + 2)
    params = {**parameters(name), "stop_bias": np.full(H, -1e4, np.float32)}
    args = scored(name, params)
    want = softmax_by_hand(SCORES[:, :, :6], MASK[:, :, :6])
    for weights in (soft, hard):
        got = weights(name, params, args, config=config)
        np.testing.assert_allclose(got[:, :, :6], want, atol=1e-6)
