"""The page about a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import report
from tests import tiny_runs as runs
from tests.experiments.test_figures import files
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.reporting.page import Text
from transformer_jax.runs.run_folder import IMPORTED


def test_some_lines_are_shown_evenly_spaced_and_only_what_was_set():
    lines = list(report.examples([(f"s{n}", f"r{n}", f"t{n}") for n in range(24)]))
    assert len(lines) == 8 * 4 and lines[:5] == [
        "source      s0",
        "reference   r0",
        "translation t0",
        "",
        "source      s3",
    ]
    assert report.settings(Config(seed=7)).rows == [["seed", "7", "0"]]


def evaluated(workdir: str, split: str, checkpoint: str, overrides: dict) -> SimpleNamespace:
    """In place of `evaluate`, whose own tests run it: the references as translations."""
    sides = [runs.read_lines(runs.tiny_corpus() / f"{split}.{suffix}") for suffix in ("en", "de")]
    file = Path(workdir, f"{checkpoint}.txt")
    runs.write_lines(file, sides[1])
    names = {"direction": "en→de", "bleu_signature": "its signature"}
    scores = SimpleNamespace(sentences=12, bleu=100.0, chrf=100.0, brevity_penalty=1.0, **names)
    return SimpleNamespace(hypotheses=file, pairs=list(zip(*sides, strict=True)), scores=scores)


@pytest.mark.slow("trains a run and draws its curves")
def test_the_page_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.commands.evaluate.evaluate", evaluated)
    # Attention is drawn by the function of experiments.figures, whose own test draws it.
    monkeypatch.setattr(report, "draw_attention", lambda asked: [Text(f"drawn: {asked.workdir}")])
    workdir, out = runs.copy_of_run(tmp_path / "run"), tmp_path / "out"
    page = report.report(str(workdir), "test", "latest", out).read_text()
    drawn = {"curves.png", "bleu_by_length.png"}
    assert drawn | {"bleu_by_length.json", "table.md", "index.html"} == files(out)
    assert page.count("data:image/png;base64,") == len(drawn) and f"drawn: {workdir}" in page
    table = (out / "table.md").read_text()
    assert "| model.d_model | 16 | 512 |" in table and "translation " in table
    assert "| en→de | 12 | 100.00 | 100.00 | 1.000 |" in table
    (workdir / "corpus.sha256").write_text(IMPORTED)
    with pytest.raises(ConfigError, match="was imported and has no text of its own"):
        report.report(str(workdir), "test", "latest", tmp_path / "none")
