"""A small demo prints scores, translations and the paths of its plots."""

import sys

import pytest

from experiments import demo
from tests import tiny_runs as runs
from transformer_jax.text import built_in_corpus

pytestmark = pytest.mark.slow("trains a demo")

SMALL = {**runs.TINY_DEMO, "train.valid_every": 3}


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(built_in_corpus, "PAIRS", {"train": 60_000, "valid": 16, "test": 12})
    overrides = [f"--config.{name}={value}" for name, value in SMALL.items()]
    workdir = f"--workdir={tmp_path / 'run'}"
    monkeypatch.setattr(sys, "argv", ["demo", workdir, *overrides])
    return tmp_path / "run"


def test_the_demo_prints_scores_translations_and_the_plots_paths(small, capsys):
    demo.main()
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("BLEU ") and "en→de" in lines[0]
    begins = [line.split(" ")[0] for line in lines]
    assert begins.count("source") == 7 and begins.count("translation") == 7
    assert begins.count("reference") == 6
    references = {
        pair.tgt for pair in built_in_corpus.BuiltInCorpus(runs.tiny_config().data).split("test")
    }
    assert {line[12:] for line in lines if line.startswith("reference")} <= references
    for name in ("attention", "curves"):
        (line,) = [line for line in lines if line.startswith(name)]
        assert line == f"{name:<11} {small / name}.png"
        assert (small / f"{name}.png").read_bytes().startswith(b"\x89PNG")
