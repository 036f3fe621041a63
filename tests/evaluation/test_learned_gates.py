"""Learned gates: their share against draws, and what keeps a head open."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny_runs import trained_run
from transformer_jax.api import load
from transformer_jax.evaluation.head_importance import attentions
from transformer_jax.evaluation.learned_gates import START, gates, learned_gates, share_open
from transformer_jax.text.built_in_corpus import built_in_pairs


def learned(run, updates, seed):
    pairs, lines = built_in_pairs("valid", 6), run.loaded.line_translator()
    model = run.loaded.model, run.loaded.translator.params
    return learned_gates(*model, *lines.encode_pairs(pairs), updates, seed)


def test_the_share_of_open_gates_is_that_of_draws():
    log_alpha = {"a": np.array([-2.0, 0.5]), "b": np.array([3.0, -0.3])}
    noise = np.random.default_rng(0).logistic(size=(200_000, 1))
    drawn = np.stack([gates(noise + own) for own in log_alpha.values()])
    assert drawn.min() == 0 and drawn.max() == 1 and 0.1 < ((drawn > 0) & (drawn < 1)).mean() < 0.9
    assert share_open(log_alpha) == pytest.approx((drawn > 0).mean(), abs=3e-3)


@pytest.mark.slow("searches with a trained model")
def test_gates_of_heads_that_make_the_text_likelier_stay_open(monkeypatch):
    run = load(trained_run())
    whole = run.loaded.translator.params["decoder_0"]["cross_attention"]["out"]

    def log_probs(model, variables, rows):
        """As if the first head of one attention were all that counts."""
        out = variables["params"]["decoder_0"]["cross_attention"]["out"]
        gate = jnp.abs(out[0]).sum() / jnp.abs(whole[0]).sum()
        return jnp.full(rows.target.ids.shape, 9.0) * gate

    monkeypatch.setattr("transformer_jax.evaluation.learned_gates.log_probs", log_probs)
    found = learned(run, 60, 0)
    first, second = found.pop("decoder_0/cross_attention")
    assert second < 1 < first and all(x.max() < 1 for x in found.values())


@pytest.mark.slow("searches with a trained model")
def test_gates_are_learned_on_the_pairs_with_the_weights_fixed():
    """A model of 40 updates has little use for heads: its gates close."""
    run = load(trained_run())
    found, again, other = (learned(run, 30, seed) for seed in (0, 0, 1))
    assert {*found} == {*attentions(run.loaded.model)} and all(len(x) == 2 for x in found.values())
    assert all(x.max() < START for x in found.values())
    assert all((found[name] == again[name]).all() for name in found)
    assert any((found[name] != other[name]).any() for name in found)
