"""Pruning: which heads are closed, and the verdicts."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import pruning
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.pruning import (
    ERRORS,
    GONE,
    LEAST,
    MOST,
    NEIGHBOURS,
    RANDOM,
    ROW,
    WHOLE,
    closed,
    hard_concrete,
    learned_gates,
    share_open,
    stays,
    verdicts,
    verdicts_further,
    verdicts_learned,
)
from tests.tiny_runs import trained_run
from transformer_jax.api import load
from transformer_jax.evaluation.head_importance import attentions
from transformer_jax.text.built_in_corpus import built_in_pairs


def test_the_heads_with_the_lowest_scores_are_closed():
    gates = closed({"a": np.array([3.0, 1.0, 2.0, 0.5]), "b": np.array([0.0, 1.0, 2.0, 3.0])}, 2)
    assert {name: own.tolist() for name, own in gates.items()} == {
        "a": [1, 0, 1, 0],
        "b": [0, 0, 1, 1],
    }


def test_the_share_of_open_gates_is_that_of_draws():
    log_alpha = {"a": np.array([-2.0, 0.5]), "b": np.array([3.0, -0.3])}
    noise = np.random.default_rng(0).logistic(size=(200_000, 1))
    gates = np.stack([hard_concrete(noise + own) for own in log_alpha.values()])
    assert gates.min() == 0 and gates.max() == 1 and 0.1 < ((gates > 0) & (gates < 1)).mean() < 0.9
    assert share_open(log_alpha) == pytest.approx((gates > 0).mean(), abs=3e-3)


@pytest.mark.slow("searches with a trained model")
def test_gates_of_heads_that_make_the_text_likelier_stay_open(monkeypatch):
    run = load(trained_run())
    whole = run.loaded.translator.params["decoder_0"]["cross_attention"]["out"]

    def log_probs(model, variables, rows):
        """As if the first head of one attention were all that counts."""
        out = variables["params"]["decoder_0"]["cross_attention"]["out"]
        gate = jnp.abs(out[0]).sum() / jnp.abs(whole[0]).sum()
        return jnp.full(rows.target.ids.shape, 9.0) * gate

    monkeypatch.setattr("transformer_jax.evaluation.explanations.log_probs", log_probs)
    monkeypatch.setattr(pruning, "UPDATES", 60)
    found = learned_gates(run, built_in_pairs("valid", 6), 0)
    first, second = found.pop("decoder_0/cross_attention")
    assert second < 1 < first and all(x.max() < 1 for x in found.values())


@pytest.mark.slow("searches with a trained model")
def test_gates_are_learned_on_the_pairs_with_the_weights_fixed(monkeypatch):
    """A model of 40 updates has little use for heads: its gates close."""
    run, pairs = load(trained_run()), built_in_pairs("valid", 6)
    monkeypatch.setattr(pruning, "UPDATES", 30)
    found, again, other = (learned_gates(run, pairs, seed) for seed in (0, 0, 1))
    assert {*found} == {*attentions(run.loaded.model)} and all(len(x) == 2 for x in found.values())
    assert all(x.max() < pruning.START for x in found.values())
    assert all((found[name] == again[name]).all() for name in found)
    assert any((found[name] != other[name]).any() for name in found)


SCORES = {"decoder_0/cross_attention": [8.0, 7, 6, 5, 4, 3, 2, 1]}
LOW_STAY = {"decoder_0/cross_attention": [0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5]}


def found_of(seed: int) -> dict:
    lost = {LEAST: 0.5, RANDOM: 3.0, MOST: 9.0}
    bleu = {f"{way}, {share}": 90 - x - 0.1 * seed for way, x in lost.items() for share in GONE}
    more = {"importance": SCORES, ERRORS: LOW_STAY, NEIGHBOURS: LOW_STAY}
    return {WHOLE: 90 - 0.1 * seed, **bleu, **more}


def test_the_verdicts():
    found = {(ROW, seed): found_of(seed) for seed in (0, 1)}
    assert stays(found_of(0), ERRORS) == pytest.approx(-0.4)
    *shares, aligning, neighbours = [verdict for _, verdict in verdicts(found)]
    assert shares == [HOLDS] * 9 and (aligning, neighbours) == (HOLDS, FAILS)
    further = {where: {**one, f"{LEAST}, half": 80.0 + where[1]} for where, one in found.items()}
    assert [verdict for _, verdict in verdicts_further(further)] == [HOLDS, HOLDS, OPEN, FAILS]
    learned = {where: dict.fromkeys(GONE, 92.0) | {"half": 80.0} for where in found}
    expected = [verdict for _, verdict in verdicts_learned(learned, found)]
    assert expected == [HOLDS, FAILS, HOLDS]
    none = (*verdicts({}), *verdicts_further({}), *verdicts_learned({}, {}))
    assert {verdict for _, verdict in none} == {NOT_RUN}
