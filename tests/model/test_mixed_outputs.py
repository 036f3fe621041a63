"""Outputs that are mixtures: probabilities, loss and gradients against loops in float64."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

from tests.fixtures.references import along_a_direction
from tests.fixtures.tiny import drawn_params, place_of
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.interfaces import Given
from transformer_jax.model.outputs import mixed_loss
from transformer_jax.model.outputs.choices import OUTPUTS
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.sides.embeddings import shift_right
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.vocabulary import BOS

B, L, M, D, E, V, PADDED = 2, 6, 5, 3, 4, 9, 16
SMOOTHING = 0.1
TIMES = 3.0  # the loss in the function that is differentiated
SEED = 4
DRAW = np.random.default_rng(8)


def side(*rows, length):
    """Sentences of few subwords, so that they repeat."""
    place = place_of(*rows, length=length)
    segments = np.asarray(place.segments)
    ids = np.where(segments, DRAW.integers(4, 7, segments.shape), 0)
    return Packed(ids, segments, np.asarray(place.positions))


SOURCE = side([3, 2], [2], length=M)
TARGET = side([4, 2], [4], length=L)
READ = TARGET._replace(ids=np.array(shift_right(jnp.array(TARGET.ids), TARGET.positions, BOS)))


class Drawn(NamedTuple):
    """What a loss depends on, float64."""

    x_BLD: Any
    table_VD: Any
    encoded_BME: Any
    watched_BLM: Any
    params: Any


def output(name, **changes):
    return OUTPUTS[name](ModelConfig(d_model=D, output=name, marginal_positions=K, **changes), V)


def drawn(name):
    out = output(name)
    draw = np.random.default_rng(SEED)
    same_BLM = TARGET.segments[:, :, None] == SOURCE.segments[:, None]
    same_BLM &= SOURCE.segments[:, None] != 0  # padding attends to nothing, as with a sink
    raw_BLM = draw.exponential(size=same_BLM.shape) * same_BLM
    sums_BL1 = np.where(TARGET.segments[..., None], raw_BLM.sum(-1, keepdims=True), 1)
    sizes = {"d_model": D, "hidden": D, "encoded": E}
    return Drawn(
        x_BLD=draw.normal(size=(B, L, D)),
        table_VD=draw.normal(size=(PADDED, D)),
        encoded_BME=draw.normal(size=(B, M, E)),
        watched_BLM=raw_BLM / sums_BL1,
        params=jax.tree.map(np.float64, drawn_params(out.parameters, sizes, draw)),
    )


def given(found):
    return Given(found.table_VD, found.params, found.watched_BLM, found.encoded_BME, SOURCE, READ)


def uniform(probs):
    return -np.log(probs).mean()


def copy_by_hand(found, b, i):
    """The probabilities of a position, and the cross entropy of its uniform part."""
    vocabulary = softmax(found.table_VD[:V] @ found.x_BLD[b, i])
    gate = found.params["copy_gate"] @ found.x_BLD[b, i] + found.params["copy_gate_bias"]
    gate = expit(gate)
    probs = (1 - gate) * vocabulary
    for m in range(M):
        probs[SOURCE.ids[b, m]] += gate * found.watched_BLM[b, i, m]
    return probs, uniform(vocabulary)


def history_by_hand(found, b, i):
    """The subwords before position i of its sentence, each with the output when it was read."""
    vocabulary = softmax(found.table_VD[:V] @ found.x_BLD[b, i])
    p = found.params
    query = found.x_BLD[b, i] @ p["history_query"] + p["history_query_bias"]
    begin = i - TARGET.positions[b, i]
    read = range(begin + 1, i + 1)
    keys = [*(found.x_BLD[b, m] for m in read), p["history_sentinel"]]
    weights = softmax(np.array([np.tanh(query) @ key / np.sqrt(D) for key in keys]))
    probs = weights[-1] * vocabulary
    for m, weight in zip(read, weights[:-1], strict=True):
        probs[TARGET.ids[b, m - 1]] += weight
    return probs, uniform(vocabulary)


def marginal_by_hand(found, b, i):
    """Every choice of one of the likeliest source positions, and what is predicted after it."""
    weights = found.watched_BLM[b, i]
    probs = np.zeros(V)
    smooth = 0.0
    best = [m for m in np.argsort(-weights)[:K] if weights[m] > 0]
    for m in best:
        x = found.x_BLD[b, i] + found.encoded_BME[b, m] @ found.params["marginal_context"]
        choice = weights[m] / weights[best].sum()
        probs += choice * softmax(found.table_VD[:V] @ x)
        smooth += choice * uniform(softmax(found.table_VD[:V] @ x))
    return probs, smooth


K = 3  # more than a sentence of the source has
BY_HAND = {"copy": copy_by_hand, "history": history_by_hand, "marginal": marginal_by_hand}
EACH = pytest.mark.parametrize("name", BY_HAND)


def probs_by_hand(name, found):
    probs = np.ones((B, L, V))
    smooth = np.zeros((B, L))
    for b, i in zip(*np.nonzero(TARGET.segments), strict=True):
        probs[b, i], smooth[b, i] = BY_HAND[name](found, b, i)
    return probs, smooth


def loss_by_hand(name, found):
    probs, smooth = probs_by_hand(name, found)
    own = np.take_along_axis(probs, TARGET.ids[..., None], -1)[..., 0]
    parts = -(1 - SMOOTHING) * np.log(own) + SMOOTHING * smooth
    return parts[TARGET.segments != 0].sum()


@functools.cache
def compiled(name):
    """A configuration's drawn arrays, log probabilities, loss, and a multiple's gradients."""
    with jax.enable_x64(True):
        out = output(name, dtype="float64")
        found = drawn(name)
        settings = LossSettings(SMOOTHING, V, "float64", L, B)

        def loss(found):
            sums = out.loss(found.x_BLD, given(found), Batch(SOURCE, TARGET), settings)
            return TIMES * sums.smoothed_nats, sums

        @jax.jit
        def compute(found):
            log_probs = out.logits(found.x_BLD, given(found))
            return log_probs, jax.value_and_grad(loss, has_aux=True)(found)

        log_probs, ((_, sums), gradients) = compute(jax.tree.map(jnp.asarray, found))
        return found, np.array(log_probs), sums, jax.tree.map(np.array, gradients)


@EACH
def test_probabilities_are_those_of_the_equation_and_sum_to_1(name):
    found, log_probs, *_ = compiled(name)
    want, _ = probs_by_hand(name, found)
    real = TARGET.segments != 0
    np.testing.assert_allclose(np.exp(log_probs)[real][:, :V], want[real], rtol=1e-10)
    np.testing.assert_allclose(np.exp(log_probs).sum(-1)[real], 1, rtol=1e-10)
    assert (log_probs[..., V:] < -9e8).all(), "the vocabulary's padding"


@EACH
def test_the_loss_is_that_of_the_equation_and_so_are_its_counts(name):
    found, _, sums, _ = compiled(name)
    probs, _ = probs_by_hand(name, found)
    real = TARGET.segments != 0
    own = np.take_along_axis(probs, TARGET.ids[..., None], -1)[..., 0]
    assert float(sums.smoothed_nats) == pytest.approx(loss_by_hand(name, found), rel=1e-10)
    assert float(sums.nats) == pytest.approx(-np.log(own[real]).sum(), rel=1e-10)
    likeliest = (probs.argmax(-1) == TARGET.ids)[real]
    assert (float(sums.correct), float(sums.tokens)) == (likeliest.sum(), real.sum())
    assert 0 < likeliest.sum() < real.sum()


@EACH
def test_gradients_are_finite_differences_of_the_equation(name):
    """By the decoder's output, the embedding, the output's parameters and what it attends to."""
    found, *_, gradients = compiled(name)
    leaves, structure = jax.tree.flatten(found)
    moved = 0

    def loss_at(n, leaf):
        changed = structure.unflatten([*leaves[:n], leaf, *leaves[n + 1 :]])
        return TIMES * loss_by_hand(name, changed)

    for n, gradient in enumerate(jax.tree.leaves(gradients)):
        loss = functools.partial(loss_at, n)
        slope, want = along_a_direction(loss, gradient, leaves[n])  # what is masked stays 0
        assert slope == pytest.approx(want, rel=1e-6, abs=1e-8), n
        moved += slope != 0
    assert moved == 5, "it does not depend on all that it should depend on"


@EACH
def test_rows_of_several_replicas_and_blocks_have_the_gradients_of_one_block(name):
    """Four rows, two for each of two replicas, a block for each of these."""
    out = output(name)
    one = drawn(name)

    def doubled(x):
        return np.concatenate([x, x])

    factor_B11 = np.array([1.0, 0.5, 2.0, -1.0])[:, None, None]
    whole = one._replace(
        x_BLD=doubled(one.x_BLD) * factor_B11,
        encoded_BME=doubled(one.encoded_BME),
        watched_BLM=doubled(one.watched_BLM),
    )
    source, target, read = (jax.tree.map(doubled, side) for side in (SOURCE, TARGET, READ))

    def gradients(block, replicas):
        settings = LossSettings(SMOOTHING, V, "float32", block, replicas)

        def loss(found):
            beside = given(found)._replace(source=source, target=read)
            return out.loss(found.x_BLD, beside, Batch(source, target), settings).smoothed_nats

        return jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.float32, whole))

    (got, of_blocks), (want, of_one) = gradients(L, 2), gradients(100 * L, 1)
    assert float(got) == pytest.approx(float(want), rel=1e-6)
    for one, other in zip(jax.tree.leaves(of_blocks), jax.tree.leaves(of_one), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_target_that_is_half_a_percent_less_likely_is_not_correct():
    """One position; the target is subword 0, and nothing is copied."""
    for best, is_correct in ((0.4, True), (0.402, False), (0.4 + 1e-7, True)):
        probs = jnp.array([0.4, best, 0.8 - best])[None, None, None, None]
        nothing = jnp.zeros((1, 1, 1, 2))
        fixed = jnp.zeros((1, 1, 1), int), None, jnp.zeros((1, 1, 2), int), nothing
        others = jnp.zeros((1, 1, 1, 1)), jnp.full((1, 1, 1), -np.inf)
        assert mixed_loss._is_likeliest(probs, others, fixed).item() == is_correct
