"""Label-smoothed cross entropy: hand-worked values, a float64 reference, closed-form gradients.

The same from the decoder's output and the embedding, a block of rows at a time.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import relative_error
from transformer_jax.model.outputs.cross_entropy import LossSettings, loss_and_gradient
from transformer_jax.model.outputs.loss_blocks import Parts
from transformer_jax.model.outputs.softmax_output import output_logits, projected_loss

B, L, V, PADDED = 2, 3, 5, 8
DRAW = np.random.default_rng(3)
LOGITS = np.where(np.arange(PADDED) < V, 2 * DRAW.normal(size=(B, L, PADDED)), -1e9)
TARGETS = np.array([[0, 4, 2], [3, 3, 0]])
REAL = np.array([[True, True, True], [True, False, False]])


def sums(logits=LOGITS, targets=TARGETS, real=REAL, smoothing=0.1, size=V):
    arrays = jnp.asarray(logits, jnp.float32), jnp.asarray(targets), jnp.asarray(real)
    return loss_and_gradient(*arrays, smoothing, size)[0]


def numbers(sums):
    """The four sums as an array. There are no auxiliary losses here."""
    *four, auxiliary = sums
    assert auxiliary == {}
    return np.array(four)


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
    np.testing.assert_allclose(numbers(sums(smoothing=smoothing)), by_hand(smoothing), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_softmax_minus_smoothed_targets(smoothing):
    def loss(logits):
        sums, closed_form = loss_and_gradient(
            logits, jnp.asarray(TARGETS), jnp.asarray(REAL), smoothing, V
        )
        return sums.smoothed_nats, closed_form

    want = np.zeros((B, L, PADDED))
    for b, i in zip(*np.nonzero(REAL), strict=True):
        p = np.exp(LOGITS[b, i, :V]) / np.exp(LOGITS[b, i, :V]).sum()
        want[b, i, :V] = p - smoothed_targets(TARGETS[b, i], smoothing)
    for got in jax.grad(loss, has_aux=True)(jnp.asarray(LOGITS, jnp.float32)):
        assert relative_error(np.asarray(got), want) < 1e-6
        assert not got[~REAL].any() and not got[..., V:].any()


def test_large_logits_do_not_overflow():
    assert np.isfinite(numbers(sums(logits=LOGITS * 1e4))).all()
    shifted = sums(LOGITS + 50.0)
    np.testing.assert_allclose(numbers(shifted), numbers(sums()), rtol=1e-4)


# From the decoder's output and the embedding -----------------------------------------------------

ROWS, LENGTH, FEATURES = 12, 4, 6
X = DRAW.normal(size=(ROWS, LENGTH, FEATURES)).astype(np.float32)
TABLE = DRAW.normal(size=(PADDED, FEATURES)).astype(np.float32)
ROW_TARGETS = DRAW.integers(0, V, (ROWS, LENGTH))
ROW_REAL = DRAW.random((ROWS, LENGTH)) < 0.7


def projected(dtype="float32", block=LENGTH, replicas=1, kept=None):
    settings = LossSettings(0.1, V, dtype, block, replicas, logits_dtype=kept)

    def loss(x, table):
        wanted = jnp.asarray(ROW_TARGETS), jnp.asarray(ROW_REAL)
        sums = projected_loss(Parts(x, table), *wanted, settings)
        return sums.smoothed_nats, sums

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(X, TABLE)


def directly(dtype="float32", kept="float32"):
    def loss(x, table):
        logits = output_logits(x, table, dtype)
        logits += jax.lax.stop_gradient(logits.astype(kept).astype("float32") - logits)
        sums, _ = loss_and_gradient(logits, jnp.asarray(ROW_TARGETS), jnp.asarray(ROW_REAL), 0.1, V)
        return sums.smoothed_nats, sums

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        jnp.asarray(X), jnp.asarray(TABLE)
    )


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("block", [1, LENGTH, 2 * LENGTH, 1_000])
def test_a_loss_in_blocks_is_that_of_all_logits_and_so_are_its_gradients(block, replicas):
    (_, want_sums), want = directly()
    (_, sums), got = projected(block=block, replicas=replicas)
    np.testing.assert_allclose(numbers(sums), numbers(want_sums), rtol=1e-6)
    for mine, theirs in zip(got, want, strict=True):
        assert relative_error(np.asarray(mine), np.asarray(theirs)) < 1e-6


def test_rounded_logits_are_rounded_once_and_passed_by_gradients():
    (_, want_sums), want = directly(kept="bfloat16")
    (_, sums), got = projected(kept="bfloat16")
    np.testing.assert_allclose(numbers(sums), numbers(want_sums), rtol=1e-6)
    for mine, theirs in zip(got, want, strict=True):
        assert relative_error(np.asarray(mine), np.asarray(theirs)) < 1e-6
    assert numbers(sums).tolist() != numbers(directly()[0][1]).tolist()


def test_in_bfloat16_the_gradients_are_float32_and_near():
    (_, want_sums), want = directly()
    (_, sums), got = projected(dtype="bfloat16")
    np.testing.assert_allclose(sums[:2], want_sums[:2], rtol=0.01)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == np.float32
        assert 1e-6 < relative_error(np.asarray(mine), np.asarray(theirs)) < 0.02


def logits_at_once(block, batch=8, length=16, replicas=1):
    """The largest number of logits in one array of the compiled loss."""
    settings = LossSettings(0.1, V, "float32", block, replicas)
    shapes = (batch, length, FEATURES), (PADDED, FEATURES)
    ids = jnp.zeros((batch, length), jnp.int32)

    def loss(x, table):
        return projected_loss(Parts(x, table), ids, ids == 0, settings).smoothed_nats

    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*map(jnp.zeros, shapes))
    found = re.findall(rf"f32\[([\d,]+),{PADDED}\]", str(jaxpr))
    return max(math.prod(map(int, shape.split(","))) for shape in found)


def test_no_more_logits_than_a_block_a_replica_are_held():
    assert logits_at_once(block=1_000) == 8 * 16
    assert logits_at_once(block=32) == 32
    assert logits_at_once(block=33) == 32, "whole rows"
    assert logits_at_once(block=1) == 16, "at least a row"
    assert logits_at_once(block=32, replicas=2) == 2 * 32


def test_the_table_s_gradient_of_several_devices_is_not_transposed():
    """XLA joins sums over devices that are added as they are: see docs/scaling.md."""

    def program(replicas):
        settings = LossSettings(0.1, V, "float32", 2_048, replicas)

        def total(table):
            x = jnp.ones((B, L, 4))
            return projected_loss(
                Parts(x, table), jnp.asarray(TARGETS), jnp.asarray(REAL), settings
            ).smoothed_nats

        return str(jax.make_jaxpr(jax.grad(total))(jnp.ones((PADDED, 4))))

    assert [f"f32[{PADDED},4] = transpose" in program(n) for n in (1, 2)] == [True, False]
