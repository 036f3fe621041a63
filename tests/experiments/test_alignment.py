"""Shifts by hand, the measurement on a tiny run, and the rules of the verdicts."""

import numpy as np
import pytest

from experiments import alignment
from experiments.alignment import AVOIDED, BASE, EXPERIMENT, alignment_of, shifted
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from tests import tiny_runs as runs
from tests.experiments.rows import by_seed, job_in
from transformer_jax.api import load
from transformer_jax.evaluation.alignment import alignment_error_rates
from transformer_jax.text.built_in_corpus import built_in_pairs


def test_a_shift_gives_a_position_the_word_of_another():
    words = np.array([0, 0, 1, 2, -1])
    assert shifted(words, 0).tolist() == [0, 0, 1, 2, -1]
    assert shifted(words, -1).tolist() == [-1, 0, 0, 1, 2], "the word that was just read"
    assert shifted(words, 1).tolist() == [0, 1, 2, -1, -1]


@pytest.mark.slow("trains a run")
def test_without_a_shift_the_rates_are_those_of_the_alignments():
    workdir = runs.trained_run()
    found = alignment_of(job_in(EXPERIMENT, workdir))
    loaded = load(workdir, max_length=256).loaded
    want = alignment_error_rates(
        loaded.model, loaded.translator.params, loaded.vocabulary, built_in_pairs("test", 1_000)
    )
    np.testing.assert_allclose(found["error rates"]["0"], want.mean_N)
    assert len(set(map(tuple, found["error rates"].values()))) == 3
    [mass], [entropy] = found["weight on linked subwords"], found["entropy"]
    assert 0 < mass < 1 and 0 < entropy < np.log(64)


def test_eos_is_linked_to_nothing(monkeypatch):
    """Nor is a subword of no word: weight on the source's EOS is not weight on linked subwords."""

    def on_eos(model, params, src, tgt, *args):
        for src_ids, tgt_ids in zip(src, tgt, strict=True):
            weights = np.zeros((1, 1, len(tgt_ids), len(src_ids)))
            weights[..., -1] = 1.0
            yield weights

    monkeypatch.setattr("transformer_jax.evaluation.alignment.cross_weights", on_eos)
    found = alignment_of(job_in(EXPERIMENT, runs.trained_run()))
    assert found["weight on linked subwords"] == [0.0] and found["entropy"] == [0.0]


def evidence(errors, mass=0.5):
    rates = {str(shift): [own, 0.9] for shift, own in zip((-1, 0, 1), errors, strict=True)}
    return {"error rates": rates, "weight on linked subwords": [mass, 0.1], "entropy": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([0.4, 0.41, 0.39], [0.5, 0.52, 0.51], HOLDS),
        ([0.1, 0.12, 0.11], [0.5, 0.52, 0.51], FAILS),
        ([0.4, 0.41, 0.39], [0.1, 0.4, 0.31], OPEN),
    ],
)
def test_the_place_of_the_weights(before, after, verdict):
    found = by_seed(BASE, map(evidence, zip(before, (0.2, 0.201, 0.202), after, strict=True)))
    assert alignment.place_of_the_weights(found) == verdict
    assert alignment.place_of_the_weights({(BASE, 0): found[BASE, 0]}) == NOT_RUN


@pytest.mark.parametrize(
    ("masses", "losses", "verdict"),
    [
        ([0.01, 0.02, 0.04], [0.1, 0.2, 0.1], HOLDS),
        ([0.01, 0.02, 0.06], [0.1, 0.2, 0.1], FAILS),
        ([0.01, 0.02, 0.04], [2.1, 2.2, 2.1], FAILS),
        ([0.01, 0.02, 0.04], [0.1, 2.2, 1.1], OPEN),
        ([0.01], [0.1], NOT_RUN),
    ],
)
def test_manipulation_needs_little_weight_and_a_small_loss(masses, losses, verdict):
    found = by_seed(BASE, 3 * [evidence((0.5, 0.2, 0.5))])
    found |= by_seed(AVOIDED, [evidence((1, 1, 1), mass) for mass in masses])
    assert alignment.can_be_manipulated(found, losses) == verdict
