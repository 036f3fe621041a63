"""Hard attention: the estimate of the gradient against all possible draws, and what is drawn."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from tests.fixtures.tiny import (
    VOCABULARY,
    batch_of,
    lay_out,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
)
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.model.attention import hard_attention
from transformer_jax.model.attention.hard_attention import (
    REINFORCE,
    choose,
    first_baseline,
    next_baseline,
    reinforced,
    with_draw,
)
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.layers.dropout import NoiseSource
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.outputs.objectives import loss_weights
from transformer_jax.training import cost
from transformer_jax.training.step import make_loss_fn

WEIGHTS = loss_weights(TrainConfig(hard_attention="reinforce"))
WORDS = np.array([3, 5, 7], np.uint32)
HEADS, SOURCE, TARGET = 2, 3, 2


def test_the_mean_over_all_draws_is_the_gradient_of_the_expected_loss(monkeypatch):
    """A whole model: 2 heads draw one of 3 source positions at 2 target positions, in 81 ways.

    The second layer sees what the first one has drawn. Beside them are positions and a row of
    padding. The estimate has some baseline, which the expectation does not know.
    """
    ways = itertools.product(range(SOURCE), repeat=HEADS * TARGET)
    every_ZHL = jnp.array(list(ways)).reshape(-1, HEADS, TARGET)
    every_ZHL = jnp.pad(every_ZHL, ((0, 0), (0, 0), (0, 1)))  # padding: any position
    with jax.enable_x64(True):
        sizes = {"num_layers": 1, "num_decoder_layers": 2, "watched_layer": 0, "d_ff": 0}
        model = tiny_model(**sizes, num_heads=HEADS, dtype="float64").clone(watch=True)
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), random_params(model))
        pair = [(SOURCE, TARGET)]
        batch = lay_out(random_pairs(0, pair), [[0], []], SOURCE + 1, TARGET + 1)
        settings = LossSettings(0.1, VOCABULARY, "float64", 2048, 1, tuple(WEIGHTS.items()))

        def forced(params, chosen_HL):
            """The sums of the loss, and the product of the probabilities of what is drawn."""
            seen = []

            def fixed(weights_BHLM, _):
                seen.append(jnp.take_along_axis(weights_BHLM[0], chosen_HL[..., None], -1)[..., 0])
                return jnp.stack([chosen_HL, chosen_HL])

            monkeypatch.setattr(hard_attention, "choose", fixed)
            rngs = {"dropout": jax.random.key(0)}
            baseline = jnp.asarray(0.7, jnp.float64)
            arguments = batch, jnp.arange(2), settings, baseline
            sums, _ = model.apply({"params": params}, *arguments, rngs=rngs, method="loss")
            (probability_HL,) = seen
            return sums, probability_HL[:, :TARGET].prod()

        @jax.jit
        @functools.partial(jax.jacrev, has_aux=True)
        def both(params):
            sums, each_Z = jax.vmap(forced, (None, 0))(params, every_ZHL)
            expected = (each_Z * sums.smoothed_nats).sum()
            estimate = (jax.lax.stop_gradient(each_Z) * sums.objective).sum()
            return jnp.stack([expected, estimate]), (each_Z, sums.smoothed_nats)

        gradients, (each_Z, nats_Z) = jax.device_get(both(params))
        want, got = (ravel_pytree(jax.tree.map(lambda x, n=n: x[n], gradients))[0] for n in (0, 1))
    assert each_Z.sum() == pytest.approx(1, rel=1e-12)
    assert len(set(np.round(nats_Z, 6).tolist())) == 81, "every draw has a loss of its own"
    assert relative_error(got, want) < 1e-10
    query = gradients["decoder_0"]["cross_attention"]["query"][1]
    assert np.abs(query).max() > 1e-4, "only what was drawn teaches the scores"


def test_a_choice_answers_for_its_own_and_later_positions_of_its_sentence():
    batch = lay_out(random_pairs(1, [(3, 3), (2, 2), (4, 4)]), [[0, 1], [2]], 5, 6)
    draw = np.random.default_rng(0)
    segments = batch.tgt.segments
    logs = -draw.random(segments.shape)
    nats = draw.random(segments.shape) * (segments != 0)
    gradient = np.zeros(segments.shape)
    for b, i in zip(*np.nonzero(segments), strict=True):
        later = [t for t in range(i, segments.shape[1]) if segments[b, t] == segments[b, i]]
        gradient[b, i] = (nats[b, later] - 0.3).sum()

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
    def found(logs, nats, baseline):
        return reinforced(logs, nats, baseline, batch.tgt)

    value, (by_log, by_nats, by_baseline) = found(logs, nats, 0.3)
    assert value == pytest.approx((gradient * logs).sum(), rel=1e-5)
    np.testing.assert_allclose(by_log, gradient, rtol=1e-5)
    assert not by_nats.any() and not by_baseline, "the reward is a constant"


def test_positions_are_drawn_as_often_as_the_weights_say_by_row_and_head():
    weights_M = np.array([0.1, 0.0, 0.6, 0.3], np.float32)
    rows, length = (200, 30)
    weights_BHLM = jnp.tile(weights_M, (rows, HEADS, length, 1))
    chosen_BHL = np.asarray(jax.jit(choose)(weights_BHLM, NoiseSource(WORDS, np.arange(rows))))
    total = rows * length
    for own_BL in chosen_BHL.swapaxes(0, 1):
        counts_M = np.bincount(own_BL.ravel(), minlength=4)
        assert counts_M[1] == 0, "a probability of 0"
        deviations = np.sqrt(total * weights_M * (1 - weights_M))
        assert (np.abs(counts_M - total * weights_M) <= 4 * deviations).all()
    same = np.mean(chosen_BHL[:, 0] == chosen_BHL[:, 1])
    assert same == pytest.approx((weights_M**2).sum(), abs=0.03), "heads draw on their own"
    some = np.array([7, 3, 199])
    part_BHL = jax.jit(choose)(weights_BHLM[:3], NoiseSource(WORDS, some))
    np.testing.assert_array_equal(part_BHL, chosen_BHL[some])


@pytest.mark.parametrize("empty", [0.0, None])
def test_padding_is_never_drawn_and_has_no_part_in_the_gradient(empty):
    """The last query is padding: its weights are all 0, or equal as those of the softmax."""
    mask = np.ones((1, 1, 4, 5), bool)
    mask[..., 3:] = mask[..., 3, :] = False

    def normalize(scores_BHLM, mask):
        weights_BHLM = softmax(scores_BHLM, mask)
        return weights_BHLM if empty is None else jnp.where(mask, weights_BHLM, empty)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def logs(scores_BHLM):
        found = []
        one = with_draw(normalize, NoiseSource(WORDS, jnp.arange(50)), found)(scores_BHLM, mask)
        return found[0].log_probability_BL[:, :3].sum(), (found[0].log_probability_BL, one)

    scores = np.random.default_rng(0).normal(size=(50, HEADS, 4, 5)).astype(np.float32)
    (_, (log_BL, one_BHLM)), gradient = logs(scores)
    np.testing.assert_array_equal(one_BHLM.sum(-1), 1)
    assert not one_BHLM[:, :, :3, 3:].any(), "keys of padding"
    assert np.isfinite(log_BL).all() and np.isfinite(gradient).all()
    weights = np.where(mask, np.exp(scores), 0)
    weights[:, :, :3] /= weights[:, :, :3].sum(-1, keepdims=True)
    want_BL = np.log((weights * one_BHLM)[:, :, :3].sum(-1)).sum(1)
    np.testing.assert_allclose(log_BL[:, :3], want_BL, rtol=1e-5)
    assert np.abs(gradient[:, :, :3, :3]).max() > 0.1 and not gradient[:, :, 3].any()


def test_each_step_and_row_draws_anew_and_rows_of_padding_lose_nothing():
    """The number of a row in the global batch is part of what is drawn."""
    model = tiny_model(num_layers=1, d_ff=0).clone(watch=True)
    params = random_params(model)
    batch = lay_out(random_pairs(0, [(4, 2)]), [[0], []], 6, 5)
    loss = jax.jit(make_loss_fn(model, 0.1, auxiliary=WEIGHTS))
    sums = [
        loss(params, batch, jnp.array(rows), jax.random.key(seed), jnp.float32(3))
        for rows, seed in (([0, 1], 0), ([0, 1], 1), ([5, 1], 0))
    ]
    assert np.isfinite(sums[0].objective) and sums[0].auxiliary.keys() == {REINFORCE}
    assert sums[0].tokens == 2 and len({float(own.smoothed_nats) for own in sums}) == 3


def test_draws_save_one_product_of_the_backward_pass():
    """No gradient reaches the scores through one-hot weights."""
    config = ModelConfig(num_layers=1, d_model=16, num_heads=2, d_ff=0, dropout=0.0)
    plain, drawn = (
        cost.step_flops(config, VOCABULARY, (7, 5), TrainConfig(hard_attention=kind))
        for kind in (None, REINFORCE)
    )
    assert drawn == plain - 2 * 7 * 5 * config.d_model


def test_the_baseline_is_a_running_mean_of_the_loss_per_subword():
    first = first_baseline(41)
    assert first == pytest.approx(np.log(41))
    sums = LossSums(*map(jnp.float32, (12, 0, 0, 4)))
    second = next_baseline(first, sums)
    assert second == pytest.approx(0.9 * np.log(41) + 0.1 * 12 / 4)
    nothing = LossSums(*map(jnp.float32, (0, 0, 0, 0)))
    assert next_baseline(first, nothing) == pytest.approx(0.9 * np.log(41))


def test_draws_have_the_output_s_bias_in_their_loss():
    model = tiny_model(num_layers=1, d_ff=0, output_bias=True).clone(watch=True)
    params = random_params(model)
    batch = batch_of((4, 1))
    loss = jax.jit(make_loss_fn(model, 0.0, auxiliary=WEIGHTS))
    arguments = batch, jnp.arange(1), jax.random.key(0), jnp.float32(3)
    before = loss(params, *arguments).nats
    bias_V = params["output_bias"].at[batch.tgt.ids[0]].add(30)
    after = loss({**params, "output_bias": bias_V}, *arguments).nats
    assert after < 1e-6 < 1 < before
