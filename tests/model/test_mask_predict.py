"""The masked language model: what is masked, its loss by hand, and lengths."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.fixtures.tiny import VOCABULARY, lay_out, random_pairs, tiny_and_params
from transformer_jax.model.layers.dropout import NoiseSource
from transformer_jax.model.outputs.mask_predict import (
    LENGTH_WEIGHT,
    LENGTHS,
    MASK,
    drawn_masks,
    length_class,
)
from transformer_jax.text.vocabulary import EOS
from transformer_jax.training.step import make_loss_fn

PAIRS = random_pairs(0, [(9, 5), (3, 9), (2, 1), (6, 2)])
ROWS = [[0, 1, 2], [3]]
BATCH = lay_out(PAIRS, ROWS, 18, 18)


def masks(draws: int) -> np.ndarray:
    """Masks of the target's rows, drawn so often `[draws, batch, tgt_len]`."""
    bits = np.random.default_rng(0).integers(0, 2**32, (draws, 3), dtype=np.uint32)
    target = BATCH.tgt.map(jnp.asarray)
    draw = jax.vmap(lambda bits: drawn_masks(target, NoiseSource(bits, jnp.arange(2))))
    return np.asarray(jax.jit(draw)(bits))


def test_every_number_of_masks_and_every_subword_is_as_likely():
    found = masks(4_000)
    word = (BATCH.tgt.segments != 0) & (BATCH.tgt.ids != EOS)
    assert not found[:, ~word].any()
    counts = {}
    for segment, words in ((1, 4), (2, 8)):
        own = found[:, 0, BATCH.tgt.segments[0] == segment][:, :words]
        counts[segment] = own.sum(1)
        shares = np.bincount(counts[segment], minlength=words + 1) / len(own)
        assert shares[0] == 0
        np.testing.assert_allclose(shares[1:], 1 / words, atol=0.03)
        np.testing.assert_allclose(own.mean(0), (words + 1) / (2 * words), atol=0.03)
    assert found[:, 1, 0].all(), "of one subword, that one"
    assert abs(np.corrcoef(counts[1], counts[2])[0, 1]) < 0.05
    # Whether the first subword is masked says nothing about the number, beyond its own share.
    first = found[:, 0, 0]
    np.testing.assert_allclose(first[counts[1] == 1].mean(), 1 / 4, atol=0.05)
    np.testing.assert_allclose(first[counts[1] == 3].mean(), 3 / 4, atol=0.05)


def test_the_loss_by_hand():
    """A sentence of one subword: a softmax at the mask, and a softmax over lengths."""
    model, params = tiny_and_params(parallel="mask_predict", num_layers=1)
    batch = lay_out([([5, 6, 9, EOS], [8, EOS])], [[0]], 6, 4)
    sums = jax.jit(make_loss_fn(model, 0.0))(params, batch)
    target = batch.tgt._replace(ids=np.array([[MASK, EOS, 0, 0]], np.int32))

    def both(model):
        encoded = model.encode(batch.src)
        x, _ = model.decode(encoded, batch.src, target, full_context=True)
        return encoded, model.out().logits(x, model.given(None, encoded, batch.src, target))

    encoded, logits = jax.jit(lambda params: model.apply({"params": params}, method=both))(params)
    nats = -jax.nn.log_softmax(logits[0, 0, :VOCABULARY])[8]
    of_lengths = np.asarray(encoded)[0, :4].mean(0) @ params["length_kernel"]
    log_p = jax.nn.log_softmax(of_lengths + params["length_bias"])
    np.testing.assert_allclose(sums.nats, nats, rtol=1e-5)
    length = -log_p[2 - 4 + LENGTHS // 2]
    np.testing.assert_allclose(sums.smoothed_nats, nats + LENGTH_WEIGHT * length, rtol=1e-5)
    assert sums.tokens == 1


def test_only_masked_subwords_count_and_a_length_counts_as_often():
    """With parameters of zeros each subword costs log V, and each length log 256."""
    model, params = tiny_and_params(parallel="mask_predict", num_layers=1)
    params = jax.tree.map(jnp.zeros_like, params)
    noise = NoiseSource(jnp.arange(3, dtype=jnp.uint32), jnp.arange(2))
    count = int(drawn_masks(BATCH.tgt.map(jnp.asarray), noise).sum())
    sums = jax.jit(make_loss_fn(model, 0.0))(params, BATCH)
    assert sums.tokens == count and 3 <= count <= 13
    np.testing.assert_allclose(sums.nats, count * np.log(VOCABULARY), rtol=1e-5)
    length = sums.smoothed_nats - sums.nats
    np.testing.assert_allclose(length, 0.1 * count * np.log(LENGTHS), rtol=1e-4)


def test_a_masked_subword_is_predicted_from_those_before_and_after_it():
    model, params = tiny_and_params(parallel="mask_predict", num_layers=1)
    loss = jax.jit(make_loss_fn(model, 0.0))
    batch = lay_out([([5, 6, EOS], [8, 9, 10, 11, 12, 13, EOS])], [[0]], 4, 7)
    noise = NoiseSource(jnp.arange(3, dtype=jnp.uint32), jnp.arange(1))
    [masked_L] = np.asarray(drawn_masks(batch.tgt.map(jnp.asarray), noise))
    seen = np.flatnonzero(~masked_L[:6])
    assert seen[0] < np.flatnonzero(masked_L)[-1] and seen[-1] > np.flatnonzero(masked_L)[0]
    for at in seen:
        ids = batch.tgt.ids.copy()
        ids[0, at] = 20
        other = batch._replace(tgt=batch.tgt._replace(ids=ids))
        assert abs(loss(params, other).nats - loss(params, batch).nats) > 1e-4


def test_lengths_that_are_too_far_away_are_cut():
    assert length_class(jnp.array([5, 400, 1]), jnp.array([5, 5, 400])).tolist() == [128, 255, 0]
