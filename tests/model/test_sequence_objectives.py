"""Objectives on drawn translations against sacreBLEU, enumeration and autodiff."""

import functools
import itertools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import lay_out, random_pairs, relative_error, tiny_and_params
from transformer_jax.decoding.candidates import draw_translations
from transformer_jax.model.outputs.sequence_objectives import (
    ON_DRAWS,
    constant,
    risk,
    self_critical,
    sentence_bleu,
)
from transformer_jax.text.batches import Drawn, Packed
from transformer_jax.text.vocabulary import EOS
from transformer_jax.training.step import accumulated_gradients, make_loss_fn

DRAW = np.random.default_rng(7)
PAIRS = random_pairs(0, [(9, 7), (4, 5), (6, 2)])
BATCH = lay_out(PAIRS, [[0], [1], [2]], 16, 12)
DRAWS = 4


def test_sentence_bleu_is_that_of_sacrebleu():
    """Of few words, so that n-grams repeat; empty, short and long translations."""
    ids, lengths = DRAW.integers(0, 4, (3, 30, 14)), DRAW.integers(0, 15, (3, 30))
    references, of_references = DRAW.integers(0, 4, (3, 11)), np.array([11, 6, 1])
    got = jax.jit(sentence_bleu)(ids, lengths, references, of_references)
    metric = BLEU(smooth_method="add-k", smooth_value=1, tokenize="none", effective_order=True)
    metric.effective_order = False  # set here, it warns at each sentence
    want = np.zeros(lengths.shape)
    for row, draw in np.ndindex(*want.shape):
        texts = ids[row, draw, : lengths[row, draw]], references[row, : of_references[row]]
        text, reference = (" ".join(map(str, own)) for own in texts)
        want[row, draw] = metric.sentence_score(text, [reference]).score / 100
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert len(np.unique(np.round(want, 6))) > 30 and want.max() > 0.5


OUTPUTS = 5  # of a model that has as many outputs, each with a logit
LOGITS, REWARDS = DRAW.normal(size=OUTPUTS), DRAW.random(OUTPUTS)


def expected_cost(logits):
    return (jax.nn.softmax(logits) * (1 - REWARDS)).sum()


def test_the_slopes_of_risk_are_those_of_the_expected_cost_of_different_draws():
    log_probs, exist = DRAW.normal(size=(2, 4)), np.array([[1, 0, 1, 1], [0, 0, 0, 0]], bool)
    rewards = DRAW.random((2, 4))

    def cost(log_probs):
        q = jnp.where(exist[0], jnp.exp(0.5 * log_probs), 0)
        return (q / q.sum() * (1 - rewards[0])).sum()

    got, slopes = risk(jnp.float32(rewards), jnp.float32(log_probs), exist, 0.5)
    want, gradient = jax.value_and_grad(cost)(jnp.float32(log_probs[0]))
    np.testing.assert_allclose(got, [want, 0], rtol=1e-5)
    np.testing.assert_allclose(slopes, [gradient, np.zeros(4)], atol=1e-6)


def mean_gradient(objective):
    """The mean gradient by the logits over all draws of 3 outputs, weighted by how likely."""
    draws = np.array(list(itertools.product(range(OUTPUTS), repeat=3)))
    log_probs = np.asarray(jax.nn.log_softmax(LOGITS))
    exist = np.ones(draws.shape, bool)
    _, slopes = objective(jnp.float32(REWARDS[draws]), jnp.float32(log_probs[draws]), exist, 1.0)
    of_logits = np.asarray(jax.jacobian(jax.nn.log_softmax)(jnp.float32(LOGITS)))
    of_draws = (np.asarray(slopes)[..., None] * of_logits[draws]).sum(1)
    return (np.exp(log_probs[draws].sum(1))[:, None] * of_draws).sum(0)


def test_reinforce_has_the_gradient_of_the_expected_cost_over_all_draws():
    want = jax.grad(expected_cost)(jnp.float32(LOGITS))
    np.testing.assert_allclose(mean_gradient(self_critical), want, atol=1e-6)
    assert np.abs(want).max() > 0.03


def test_a_constant_reward_prefers_nothing():
    np.testing.assert_allclose(mean_gradient(constant), np.zeros(OUTPUTS), atol=1e-6)


def test_draws_that_do_not_exist_do_not_count():
    """As where a model's logits are not numbers."""
    exist = np.array([[True, True, False], [False, True, False], [False] * 3])
    rewards = np.where(exist, 0.25, np.nan).astype(np.float32)
    rewards[0, 1] = 0.75
    for objective in (self_critical, constant):
        cost, slopes = objective(rewards, rewards, exist, 1.0)
        np.testing.assert_allclose(cost, [0.5, 0.75, 0])
        assert not np.asarray(slopes)[~exist].any()
    np.testing.assert_allclose(self_critical(rewards, rewards, exist, 1.0)[1][0], [0.25, -0.25, 0])


@pytest.fixture(scope="module")
def drawn():
    model, params = tiny_and_params(num_layers=1, dropout=0.3)
    draw = jax.jit(lambda key: draw_translations(model, params, BATCH, key, DRAWS))
    return model, params, draw


@functools.partial(jax.jit, static_argnums=0)
def log_probabilities(model, params, drawn, of_limit=1.0):
    """Log probabilities of all draws, each in a batch of one row: `[rows, draws]`.

    That of an EOS at the limit, which is not drawn, counts `of_limit` times.
    """

    def of_row(row):
        source = jax.tree.map(lambda x: jnp.repeat(x[row : row + 1], DRAWS, 0), BATCH.src)
        ids, lengths = drawn.ids[row], drawn.lengths[row]
        places = jnp.arange(ids.shape[1])
        real = jnp.int32(places < lengths[:, None])
        given = jnp.pad(ids, ((0, 0), (1, 0)), constant_values=2)[:, :-1]
        target = Packed(given, real, jnp.broadcast_to(places, ids.shape))
        log_p = jax.nn.log_softmax(model.apply({"params": params}, source, target))
        counted = real * jnp.where(places < ids.shape[1] - 1, 1.0, of_limit)
        return (jnp.take_along_axis(log_p, ids[..., None], -1)[..., 0] * counted).sum(1)

    return jnp.stack([of_row(row) for row in range(len(drawn.ids))])


def test_draws_have_the_probabilities_of_forced_decoding(drawn):
    model, params, draw = drawn
    found = draw(jax.random.key(0))
    np.testing.assert_allclose(found.log_probs, log_probabilities(model, params, found), rtol=1e-5)
    ends = np.take_along_axis(np.asarray(found.ids), found.lengths[..., None] - 1, -1)
    assert (ends == EOS).all()
    assert len({tuple(ids) for ids in found.ids.reshape(-1, 12).tolist()}) == 3 * DRAWS
    for other, equal in ((0, True), (1, False)):
        assert np.array_equal(draw(jax.random.key(other)).ids, found.ids) == equal


def test_an_empty_row_draws_nothing():
    model, params = tiny_and_params(num_layers=1)
    batch = lay_out(PAIRS, [[0], []], 16, 12)
    found = jax.jit(lambda key: draw_translations(model, params, batch, key, 2))(jax.random.key(0))
    assert found.lengths[0].all() and not found.lengths[1].any()


@pytest.fixture(scope="module")
def gradients(drawn):
    """Of the loss with some objectives, compiled; of the text alone; and of weighted draws."""
    model, params, _ = drawn

    def of_loss(found, **losses):
        batch = BATCH._replace(drawn=found)
        loss_fn = make_loss_fn(model, 0.1, block=20, auxiliary=losses, sharpness=0.5)
        compute = functools.partial(accumulated_gradients, loss_fn, micro_batches=1)
        return jax.jit(compute)(params, batch, jax.random.key(1))

    def weighted(params, found, weights, of_limit):
        return (weights * log_probabilities(model, params, found, of_limit)).sum()

    return of_loss, of_loss(None), jax.jit(jax.grad(weighted))


@pytest.mark.parametrize("name", first_quick(ON_DRAWS, 1))
def test_the_loss_adds_the_cost_and_the_gradient_of_weighted_log_probabilities(
    drawn, gradients, name
):
    """By autodiff of the logits of each row alone; the draws have no dropout, the text has."""
    model, params, draw = drawn
    of_loss, (plain, of_text), of_weighted = gradients
    found = draw(jax.random.key(0))
    again = found.ids.at[0, 1].set(found.ids[0, 0])  # a translation that is drawn twice
    found = Drawn(again, found.lengths.at[0, 1].set(found.lengths[0, 0]), found.log_probs)
    found = found._replace(log_probs=log_probabilities(model, params, found))
    subwords = (BATCH.tgt.segments != 0).sum(1)
    rewards = sentence_bleu(found.ids, found.lengths - 1, BATCH.tgt.ids, subwords - 1)
    exist = np.ones((3, DRAWS), bool)
    exist[0, 1] = name != "risk"
    costs, slopes = ON_DRAWS[name](rewards, found.log_probs, exist, 0.5)

    got, sums = of_loss(found, **{name: 3.0})
    assert (found.lengths == found.ids.shape[-1]).any()
    by_hand = of_weighted(params, found, 3.0 * subwords[:, None] * slopes, float(name == "risk"))
    want = jax.tree.map(np.add, plain, by_hand)
    assert relative_error(*(jax.flatten_util.ravel_pytree(x)[0] for x in (got, want))) < 1e-5
    assert float(sums.auxiliary[name]) == pytest.approx(3 * float(subwords @ costs), rel=1e-5)
    assert sums.nats == of_text.nats
