"""The measurement on a tiny run."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import agreement
from experiments.agreement import EXPERIMENT, agreement_of
from tests import tiny_runs as runs
from tests.experiments.rows import job_in
from transformer_jax.api import load
from transformer_jax.evaluation.alignment import alignment_error_rates
from transformer_jax.text.built_in_corpus import AlignedPair, built_in_pairs


def test_both_directions_are_measured_on_their_own_folders(tmp_path, monkeypatch):
    """One model in both folders: it reads German too, in its way."""
    shutil.copytree(runs.trained_run(), tmp_path / "run")
    shutil.copytree(runs.trained_run(), tmp_path / "run" / "reverse")
    bleus = {tmp_path / "run": 30.0, tmp_path / "run" / "reverse": 20.0}

    def evaluate(folder, split):
        return SimpleNamespace(scores=SimpleNamespace(bleu=bleus[Path(folder)]))

    monkeypatch.setattr(agreement, "PAIRS", 30)
    monkeypatch.setattr("transformer_jax.commands.evaluate.evaluate", evaluate)
    job = job_in(EXPERIMENT, tmp_path / "run")
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
