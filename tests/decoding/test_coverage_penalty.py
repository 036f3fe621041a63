"""The coverage penalty: by hand, and against searches that sum the attention in plain loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding import reference_search as reference
from tests.decoding.toy_decoders import (
    BATCH,
    SIZE,
    AttendingModel,
    HashModel,
    assert_equals_reference,
    assert_same_hypotheses,
    assert_same_result,
    compiled,
    find,
    never_stop_early,
    run,
)
from transformer_jax.decoding import search
from transformer_jax.decoding.penalties import Coverage, coverage_penalty


def coverage_of(sums, counted):
    return np.asarray(coverage_penalty(Coverage(jnp.array(sums), jnp.array(counted))))


def test_the_coverage_penalty_by_hand():
    """Wu et al. 2016, equation 14; two hypotheses of a sentence of three words, then EOS."""
    sums = [[[0.5, 2.0, 0.25, 9.0], [1.0, 1.5, 0.1, 0.0]]]
    words = [[True, True, True, False]]
    got = coverage_of(sums, words)
    np.testing.assert_allclose(got, [[-2.0794415, -2.3025851]], rtol=1e-6)  # log 1/8, log 1/10


def test_a_source_word_that_is_never_attended_costs_log_of_a_millionth():
    got = coverage_of([[[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]], [[True, True, True]])
    np.testing.assert_allclose(got, [[2 * np.log(1e-6), np.log(1e-6)]], rtol=1e-6)


def test_search_stays_finite_where_source_words_are_never_attended():
    model = AttendingModel(2)
    beta = 0.3
    model.weights[:] = [0.0, 1.0, 0.0, 0.0]  # the same array as in the table
    limits = np.full(BATCH, SIZE)
    counted = np.array([[True, True, False, False]] * 3 + [[True, True, True, False]] * 2)
    found = run(AttendingModel, model.table, limits, 0.6, beta, counted, beam=4, n_best=3)
    assert np.isfinite(found.scores).all()
    missed = np.array([1, 1, 1, 2, 2])[:, None]
    plain = found.log_probs / ((5 + found.lengths) / 6) ** 0.6
    np.testing.assert_allclose(found.scores, plain + beta * missed * np.log(1e-6), rtol=1e-5)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_beta_of_0_changes_nothing(beam):
    limits = np.array([9, 7, 3, 0, 5])
    for seed in range(4):
        model = AttendingModel(seed)
        settings = {"beam": beam, "n_best": min(beam, 3)}
        plain = run(AttendingModel, model.table, limits, 0.6, **settings)
        counted = run(AttendingModel, model.table, limits, 0.6, 0.0, model.counted, **settings)
        jax.tree.map(np.testing.assert_array_equal, counted, plain)


@pytest.mark.parametrize("alpha", [0.6, -1.0])
def test_a_beam_wide_enough_finds_every_hypothesis_by_its_score_with_coverage(alpha):
    model = AttendingModel(7, batch=2, vocabulary=4)
    beta = 0.8
    limits = np.array([4, 4])
    settings = {"beam": 64, "n_best": 41, "size": 4}
    result = run(AttendingModel, model.table, limits, alpha, beta, model.counted, **settings)
    for sentence in (0, 1):
        every = reference.every_hypothesis(model.next_logits, sentence, limit=4)
        want = []
        for ids, log_prob in every.items():
            score = log_prob / reference.gnmt(len(ids), alpha)
            score += beta * model.penalty(sentence, list(ids))
            want.append(reference.Hypothesis(list(ids), log_prob, score))
        assert len(want) == 40
        best = sorted(want, key=lambda hypothesis: -hypothesis.score)
        assert best != sorted(want, key=lambda h: -h.log_prob / reference.gnmt(len(h.ids), alpha))
        assert_same_hypotheses(result, sentence, best)


def test_early_stopping_with_coverage_saves_steps_and_changes_nothing(monkeypatch):
    limits = np.array([9, 7, 9, 0, 5])
    cases = [(seed, alpha, beta) for seed in range(4) for alpha in (0.6, -1.0) for beta in (0.2, 2)]
    models = {seed: AttendingModel(seed, eos_logit=1.5) for seed in range(4)}

    def search_all(run):
        return [
            run(
                AttendingModel,
                models[seed].table,
                limits,
                alpha,
                float(beta),
                models[seed].counted,
                beam=4,
                n_best=3,
            )
            for seed, alpha, beta in cases
        ]

    early = search_all(run)
    monkeypatch.setattr(search, "_may_still_enter", never_stop_early)
    full = search_all(compiled(functools.partial(find)))  # traced anew
    for (seed, alpha, beta), got, want in zip(cases, early, full, strict=True):
        assert_same_result(got, want)

        def added(sentence, ids, model=models[seed], beta=beta):
            return beta * model.penalty(sentence, ids)

        assert_equals_reference(models[seed], limits, alpha, got, beam=4, n_best=3, added=added)
    assert all(want.steps == 9 for want in full)
    assert any(got.steps < 9 for got in early)


def test_a_coverage_penalty_without_watched_weights_is_refused():
    counted = np.ones((BATCH, 3), bool)
    with pytest.raises(ValueError, match="needs the decoder's watched weights"):
        run(HashModel, HashModel(0).table, np.full(BATCH, 3), 0.6, 0.1, counted, beam=2, n_best=1)
