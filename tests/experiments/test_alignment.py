"""Shifts by hand, the measurement on a tiny run, and the rules of the verdicts."""

from pathlib import Path

import numpy as np
import pytest

from experiments.alignment import (
    AVOIDED,
    BASE,
    EXPERIMENT,
    FULL,
    ROWS,
    SHARES,
    alignment_of,
    can_be_manipulated,
    findings,
    is_enough,
    place_of_the_weights,
    shifted,
)
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN, judged
from tests import tiny_runs as runs
from transformer_jax.config.files import load_config
from transformer_jax.evaluation.alignment import alignment_error_rates
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.built_in_corpus import built_in_pairs

SEEDS = (0, 1, 2)
FEW = next(iter(SHARES))


def test_a_shift_gives_a_position_the_word_of_another():
    words = np.array([0, 0, 1, 2, -1])
    assert shifted(words, 0).tolist() == [0, 0, 1, 2, -1]
    assert shifted(words, -1).tolist() == [-1, 0, 0, 1, 2], "the word that was just read"
    assert shifted(words, 1).tolist() == [0, 1, 2, -1, -1]


@pytest.mark.slow("trains a run")
def test_without_a_shift_the_rates_are_those_of_the_alignments(tmp_path):
    job = make_jobs(EXPERIMENT, "small", runs=tmp_path)[0]
    workdir = runs.trained_run()
    found = alignment_of(job._replace(folder=workdir))
    from transformer_jax.api import load

    loaded = load(workdir, max_length=256).loaded
    want = alignment_error_rates(
        loaded.model, loaded.translator.params, loaded.vocabulary, built_in_pairs("test", 1_000)
    )
    np.testing.assert_allclose(found["error rates"]["0"], want.mean_N)
    assert len(set(map(tuple, found["error rates"].values()))) == 3
    [mass], [entropy] = found["weight on linked subwords"], found["entropy"]
    assert 0 < mass < 1 and 0 < entropy < np.log(64)


def test_eos_is_linked_to_nothing(tmp_path, monkeypatch):
    """Nor is a subword of no word: weight on the source's EOS is not weight on linked subwords."""

    def on_eos(model, params, src, tgt, *args):
        for src_ids, tgt_ids in zip(src, tgt, strict=True):
            weights = np.zeros((1, 1, len(tgt_ids), len(src_ids)))
            weights[..., -1] = 1.0
            yield weights

    monkeypatch.setattr("transformer_jax.evaluation.alignment.cross_weights", on_eos)
    job = make_jobs(EXPERIMENT, "small", runs=tmp_path)[0]
    found = alignment_of(job._replace(folder=runs.trained_run()))
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
    found = {
        (BASE, seed): evidence((before[seed], 0.2 + seed / 1_000, after[seed])) for seed in SEEDS
    }
    assert place_of_the_weights(found, SEEDS) == verdict
    assert place_of_the_weights(found, (0,)) == NOT_RUN


@pytest.mark.parametrize(
    ("few", "verdict"),
    [
        ([0.071, 0.069, 0.07], HOLDS),
        ([0.15, 0.16, 0.14], FAILS),
        ([0.05, 0.09, 0.11], OPEN),
        ([0.2], NOT_RUN),
    ],
)
def test_a_share_is_enough_within_two_hundredths(few, verdict):
    found = {(FULL, seed): evidence((0.5, 0.06, 0.5)) for seed in SEEDS}
    found |= {(FEW, seed): evidence((0.5, rate, 0.5)) for seed, rate in enumerate(few)}
    assert is_enough(found, FEW, SEEDS) == verdict


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
    found = {(BASE, seed): evidence((0.5, 0.2, 0.5)) for seed in SEEDS}
    found |= {(AVOIDED, seed): evidence((1, 1, 1), mass) for seed, mass in enumerate(masses)}
    assert can_be_manipulated(found, losses, SEEDS) == verdict


def test_below_a_limit_is_a_test_over_seeds():
    assert judged([0.1, 0.2], 1, -1) == HOLDS and judged([1.9, 2.0], 1, -1) == FAILS
    assert judged([0.1], 1, -1) == NOT_RUN


def test_the_rows_differ_in_links_and_weights_only():
    configs = {row: load_config("configs/demo.py", dict(own)) for row, own in ROWS.items()}
    pairs = [config.data.aligned_pairs for config in configs.values()]
    assert pairs == [None, 600, 6_000, None, None]
    weights = [(c.train.alignment_weight, c.train.avoidance_weight) for c in configs.values()]
    assert weights == [(0, 0), (0.5, 0), (0.5, 0), (0.5, 0), (0, 1)]


def test_a_page_without_runs_says_so(tmp_path):
    parts = findings(tmp_path, make_jobs(EXPERIMENT, "small", runs=Path(tmp_path)))
    verdicts = parts[1]
    assert {row[1] for row in verdicts.rows} == {NOT_RUN}
    assert [row[0] for row in verdicts.rows][1:3] == [f"{row} is enough" for row in SHARES]
