"""Label-smoothed cross entropy: hand-worked values, a float64 reference, closed-form gradients."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import relative_error
from transformer_jax.training.loss import loss_sums

B, L, V, PADDED = 2, 3, 5, 8
DRAW = np.random.default_rng(3)
LOGITS = np.where(np.arange(PADDED) < V, 2 * DRAW.normal(size=(B, L, PADDED)), -1e9)
TARGETS = np.array([[0, 4, 2], [3, 3, 0]])
REAL = np.array([[True, True, True], [True, False, False]])


def sums(logits=LOGITS, targets=TARGETS, real=REAL, smoothing=0.1, size=V):
    arrays = jnp.asarray(logits, jnp.float32), jnp.asarray(targets), jnp.asarray(real)
    return loss_sums(*arrays, smoothing, size)


def smoothed_targets(target, smoothing):
    """(1 - epsilon) one_hot + epsilon / V: the target gets its share of the uniform part too."""
    q = np.full(V, smoothing / V)
    q[target] += 1 - smoothing
    return q


def by_hand(smoothing):
    smoothed = nats = correct = 0.0
    for b, i in zip(*np.nonzero(REAL), strict=True):
        p = np.exp(LOGITS[b, i, :V]) / np.exp(LOGITS[b, i, :V]).sum()
        smoothed -= smoothed_targets(TARGETS[b, i], smoothing) @ np.log(p)
        nats -= np.log(p[TARGETS[b, i]])
        correct += p.argmax() == TARGETS[b, i]
    return smoothed, nats, correct, REAL.sum()


def test_smoothing_worked_by_hand():
    # p = (3/4, 1/4): nats = ln 4/3, the uniform part (ln 4/3 + ln 4) / 2.
    got = sums([[[math.log(3), 0.0, -1e9]]], [[0]], [[True]], 0.1, 2)
    assert float(got.nats) == pytest.approx(0.28768207, rel=1e-6)
    assert float(got.smoothed_nats) == pytest.approx(0.34261268, rel=1e-6)  # over V - 1: 0.3975
    assert (float(got.correct), float(got.tokens)) == (1, 1)
    got = sums([[[math.log(3), 0.0, -1e9]]], [[1]], [[True]], 0.1, 2)
    assert float(got.smoothed_nats) == pytest.approx(0.9 * math.log(4) + 0.1 * 0.8369882, rel=1e-6)
    assert float(got.correct) == 0


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_sums_equal_a_float64_reference(smoothing):
    np.testing.assert_allclose(sums(smoothing=smoothing), by_hand(smoothing), rtol=1e-6)


def test_sums_add_over_micro_batches():
    parts = [sums(LOGITS[[b]], TARGETS[[b]], REAL[[b]]) for b in range(B)]
    np.testing.assert_allclose(sums(), np.sum(parts, axis=0), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_softmax_minus_smoothed_targets(smoothing):
    def loss(logits):
        return loss_sums(logits, jnp.asarray(TARGETS), jnp.asarray(REAL), smoothing, V)[0]

    want = np.zeros((B, L, PADDED))
    for b, i in zip(*np.nonzero(REAL), strict=True):
        p = np.exp(LOGITS[b, i, :V]) / np.exp(LOGITS[b, i, :V]).sum()
        want[b, i, :V] = p - smoothed_targets(TARGETS[b, i], smoothing)
    got = np.asarray(jax.grad(loss)(jnp.asarray(LOGITS, jnp.float32)))
    assert relative_error(got, want) < 1e-6
    assert not got[~REAL].any() and not got[..., V:].any()


def test_padding_positions_contribute_nothing():
    other = np.where(REAL[..., None], LOGITS, 7 * DRAW.normal(size=LOGITS.shape))
    targets = np.where(REAL, TARGETS, 1)
    np.testing.assert_array_equal(sums(other, targets), sums())
    assert [float(x) for x in sums(real=np.zeros_like(REAL))] == [0, 0, 0, 0]


def test_large_logits_do_not_overflow():
    assert all(np.isfinite(x) for x in sums(logits=LOGITS * 1e4))
    shifted = sums(LOGITS + 50.0)
    np.testing.assert_allclose(shifted, sums(), rtol=1e-4)


def test_smoothing_punishes_certainty():
    certain = functools.partial(sums, [[[30.0, 0, 0, 0, 0]]], [[0]], [[True]])
    assert float(certain(smoothing=0.0).smoothed_nats) < 1e-9
    assert float(certain(smoothing=0.1).smoothed_nats) == pytest.approx(0.1 * 30 * 4 / 5, rel=1e-5)
