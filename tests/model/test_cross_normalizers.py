"""Attention that decides for one source position: random in training, certain beyond it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import softmax_by_hand
from tests.fixtures.tiny import lay_out, model_inputs, random_pairs, relative_error, tiny_and_params
from transformer_jax.model.attention.cross_normalizers import (
    NOISY,
    gumbel,
    gumbel_noise,
    normal_noise,
)
from transformer_jax.model.layers.dropout import NoiseSource, hashed, noise_bits

B, L, M, H = 2, 5, 4, 3
DRAW = np.random.default_rng(8)
SCORES = DRAW.normal(size=(B, H, L, M)).astype(np.float32)
NOISE = DRAW.gumbel(size=(B, H, L, M)).astype(np.float32)
MASK = DRAW.random((B, 1, L, M)) < 0.6
MASK[1, 0, 2] = False  # a query that may attend to nothing


def argmax_by_hand(scores):
    want = np.zeros((B, H, L, M))
    for b, h, i in np.ndindex(B, H, L):
        allowed = [j for j in range(M) if MASK[b, 0, i, j]]
        if allowed:
            want[b, h, i, max(allowed, key=lambda j: scores[b, h, i, j])] = 1
    return want


def test_all_weight_is_on_the_highest_sum_of_score_and_noise():
    with_noise = argmax_by_hand(SCORES + NOISE)
    without = argmax_by_hand(SCORES)
    assert (with_noise != without).any()
    np.testing.assert_array_equal(gumbel(SCORES, MASK, NOISE), with_noise)
    np.testing.assert_array_equal(gumbel(SCORES, MASK, None), without)


def test_the_gradient_of_a_draw_is_that_of_the_softmax():
    """w (g - sum of w g) for w = softmax(score + noise); none without noise."""
    mask = MASK | (np.arange(M) == 0)
    upstream = DRAW.normal(size=SCORES.shape)
    got = jax.grad(lambda scores: (gumbel(scores, mask, NOISE) * upstream).sum())(SCORES)
    soft = softmax_by_hand((SCORES + NOISE).astype(np.float64), mask)
    want = soft * (upstream - (soft * upstream).sum(-1, keepdims=True))
    assert relative_error(got, want) < 1e-5
    alone = jax.grad(lambda scores: (gumbel(scores, mask, None) * upstream).sum())(SCORES)
    assert not np.asarray(alone).any()


def test_keys_are_drawn_as_often_as_the_softmax_says():
    """Chi-square, for each head: 10,000 draws of one of 4 keys, one of them masked for a head."""
    rows, length = 100, 100
    scores = np.array([[0.0, 1.0, -1.0, 0.5], [2.0, 0.0, 0.3, 0.1], [0.0, 0.0, 0.0, 0.0]])
    mask = np.ones((1, H, 1, M), bool)
    mask[0, 1, 0, 2] = False
    noise_source = NoiseSource(jnp.array([5, 6, 7], jnp.uint32), jnp.arange(rows) + 11)
    everywhere = np.broadcast_to(scores[:, None], (rows, H, length, M))
    noise = gumbel_noise(noise_source, everywhere.shape)
    counts = np.asarray(gumbel(jnp.float32(everywhere), mask, noise)).sum((0, 2))
    expected = softmax_by_hand(scores, mask[0, :, 0]) * rows * length
    assert counts[1, 2] == 0
    allowed = mask[0, :, 0]
    parts = np.where(allowed, (counts - expected) ** 2 / np.where(allowed, expected, 1), 0)
    # Mean 3 (2 for the head with a masked key); one value in a million is above 30.
    assert parts.sum(-1).max() < 30


def test_the_noise_of_energies_is_normal():
    """Mean 0, variance 1, and 5 % beyond 1.96: each within 5 standard errors."""
    noise_source = NoiseSource(noise_bits(hashed(jax.random.key(3))), jnp.arange(100))
    noise = np.asarray(normal_noise(noise_source, (100, H, 50, M)))
    size = noise.size
    assert abs(noise.mean()) < 5 / np.sqrt(size)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / size)
    assert abs((abs(noise) > 1.96).mean() - 0.05) < 5 * np.sqrt(0.05 * 0.95 / size)


@functools.cache
def watched(name):
    """(batch, rows, key) -> the watched weights in training."""
    model, params = tiny_and_params(watch=True, cross_normalizer=name, num_layers=1)

    @jax.jit
    def weights(batch, rows_B, key):
        rngs = {"dropout": hashed(key)}
        inputs = model_inputs(batch)
        args = ({"params": params}, *inputs, rows_B)
        return model.apply(*args, rngs=rngs, method="logits_and_watched")[1]

    return lambda *args: np.asarray(weights(*args))


@pytest.mark.parametrize("name", NOISY)
def test_the_noise_of_training_belongs_to_the_row_and_the_step(name):
    pairs = random_pairs(3, [(9, 7), (4, 5)])
    key = jax.random.key(4)
    batch = lay_out(pairs, [[0], [0], [1]], 10, 8)
    real = batch.tgt.segments != 0
    weights = watched(name)(batch, jnp.array([6, 2, 9]), key)
    turned = jax.tree.map(lambda x: x[::-1], batch)
    np.testing.assert_array_equal(watched(name)(turned, jnp.array([9, 2, 6]), key)[::-1], weights)
    assert np.abs(weights[0] - weights[1])[real[0]].max() > 0.01  # the same sentence
    other_key = watched(name)(batch, jnp.array([6, 2, 9]), jax.random.key(5))
    assert np.abs(other_key - weights)[real].max() > 0.01
