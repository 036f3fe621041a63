"""The measurement on a tiny run, and the rules of the verdicts."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import agreement
from experiments.agreement import BASE, EXPERIMENT, agreement_of, verdicts
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from tests import tiny_runs as runs
from tests.experiments.rows import SEEDS, by_seed
from transformer_jax.api import load
from transformer_jax.evaluation.alignment import alignment_error_rates
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.built_in_corpus import AlignedPair, built_in_pairs

ROW = "gamma 0.3"


def test_both_directions_are_measured_on_their_own_folders(tmp_path, monkeypatch):
    """One model in both folders: it reads German too, in its way."""
    shutil.copytree(runs.trained_run(), tmp_path / "run")
    shutil.copytree(runs.trained_run(), tmp_path / "run" / "reverse")
    bleus = {tmp_path / "run": 30.0, tmp_path / "run" / "reverse": 20.0}

    def evaluate(folder, split):
        return SimpleNamespace(scores=SimpleNamespace(bleu=bleus[Path(folder)]))

    monkeypatch.setattr(agreement, "PAIRS", 30)
    monkeypatch.setattr("transformer_jax.commands.evaluate.evaluate", evaluate)
    job = make_jobs(EXPERIMENT, "small", runs=tmp_path)[0]._replace(folder=tmp_path / "run")
    found = agreement_of(job)
    assert found["bleu"] == {"forward": 30.0, "reverse": 20.0}

    loaded = load(str(job.folder), max_length=256).loaded
    pairs = built_in_pairs("test", 30)
    parts = (loaded.model, loaded.translator.params, loaded.vocabulary)
    swapped = [
        AlignedPair(tgt, src, tgt_words, src_words, [(j, i) for i, j in links])
        for src, tgt, src_words, tgt_words, links, *_ in pairs
    ]
    for way, own in (("forward", pairs), ("reverse", swapped)):
        want = alignment_error_rates(*parts, own).mean_N[0]
        assert found["error rate"][way] == pytest.approx(want)
    assert 0 <= found["error rate of common links"] <= 1


def evidence(rate, common, bleu):
    both = {"forward": rate + 0.01, "reverse": rate - 0.01}
    scores = {"forward": bleu - 1, "reverse": bleu + 1}
    return {"error rate": both, "error rate of common links": common, "bleu": scores}


@pytest.mark.parametrize(
    ("rates", "commons", "bleus", "want"),
    [
        ([0.1, 0.11, 0.1], [0.15, 0.16, 0.15], [89.9, 90.0, 90.1], [HOLDS, FAILS, HOLDS]),
        ([0.3, 0.31, 0.3], [0.05, 0.06, 0.05], [87.9, 88.0, 88.1], [FAILS, HOLDS, FAILS]),
        ([0.1, 0.2, 0.3], [0.05, 0.1, 0.15], [87.0, 89.0, 91.0], [OPEN, OPEN, OPEN]),
        ([0.1], [0.1], [90.0], [NOT_RUN, NOT_RUN, NOT_RUN]),
    ],
)
def test_the_verdicts_on_a_gamma(rates, commons, bleus, want):
    found = by_seed(BASE, 3 * [evidence(0.2, 0.1, 90.0)])
    found |= by_seed(ROW, map(evidence, rates, commons, bleus))
    assert verdicts(found, ROW, SEEDS) == want


def test_a_loss_in_one_direction_counts():
    found = by_seed(BASE, [evidence(0.2, 0.1, 90.0 + seed / 100) for seed in SEEDS])
    found |= by_seed(ROW, [evidence(0.1, 0.1, 90.0) for _ in SEEDS])
    for seed in SEEDS:
        found[ROW, seed]["bleu"]["reverse"] -= 3.0
    assert verdicts(found, ROW, SEEDS)[2] == FAILS
