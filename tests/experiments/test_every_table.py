"""What holds for every experiment: its page without runs, its comparisons and its rates."""

import importlib
from pathlib import Path

import pytest

from experiments import (
    coverage,
    fair_comparison,
    few_pairs,
    later_parts,
    real_text,
    scores,
    table2_bleu,
)
from experiments.claims.lengths import ALL_LENGTHS
from experiments.judging import NOT_RUN
from tests.experiments.rows import configs_of, differing
from transformer_jax.reporting.page import Table
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.results import read_results

RECORDED = Path(__file__).parents[2] / "docs" / "results"


NOT_JUDGED = {"positions": [ALL_LENGTHS], "small_corpus": [later_parts.BASE]}
OTHER_ROWS = {"coverage": [coverage.PENALTY]}


@pytest.mark.parametrize(
    "name",
    [
        "agreement",
        "alignment",
        "caveats",
        "copying",
        "coverage",
        "fair_comparison",
        "few_pairs",
        "hard_attention",
        "monotonic",
        "positions",
        "small_corpus",
        "wait_k",
        "windows",
    ],
)
def test_a_page_without_runs_has_every_row_and_no_verdict(name, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.windows.cost_of_step", dict)  # it takes minutes
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    scale = "small" if "small" in experiment.scales else [*experiment.scales][-1]
    jobs = make_jobs(experiment, scale, tmp_path / "runs")
    parts = experiment.findings(tmp_path / name / scale, jobs)
    verdicts, *others = [part.rows for part in parts if isinstance(part, Table)]
    assert [row[0] for row in verdicts if NOT_RUN not in row] == NOT_JUDGED.get(name, [])
    cells = [cell for row in verdicts for cell in row[1:] if not cell.isdigit()]
    assert {*cells} <= {NOT_RUN, ""}
    shown = {row[0] for table in (verdicts, *others) for row in table}
    assert shown >= {*experiment.rows, *OTHER_ROWS.get(name, [])}


BUDGET = {"train.steps", "train.peak_learning_rate", "train.remat"}  # remat is speed


@pytest.mark.parametrize(
    ("experiment", "scale", "may_differ"),
    [
        (fair_comparison.EXPERIMENT, "budget_1", BUDGET),
        (table2_bleu.EXPERIMENT, "small", {*BUDGET, "train.clip_norm"}),
        (few_pairs.EXPERIMENT, few_pairs.FEW, BUDGET),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_contenders_differ_in_the_model_and_these_keys_alone(
    experiment, scale, may_differ, in_checkout
):
    first, *others = configs_of(experiment, scale).values()
    for config in others:
        keys = {key for key in differing(first, config) if not key.startswith("model.")}
        assert keys <= may_differ
        assert config.model.dropout == first.model.dropout


@pytest.mark.parametrize(
    ("experiment", "scale", "trial", "tried", "rates"),
    [
        (fair_comparison, "budget_1", "rate", fair_comparison.TRIED, fair_comparison.RATES),
        (later_parts, "small", "rate", later_parts.TRIED, later_parts.RATES),
        (real_text, "cores_en-it", "cores_rate", real_text.TRIED, real_text.RATES_OF_CORES),
        (
            scores,
            "small",
            "rate",
            scores.TRIED,
            {scores.name_of(*which): rate for which, rate in scores.RATES.items()},
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_row_has_the_rate_with_the_lowest_recorded_perplexity(
    experiment, scale, trial, tried, rates
):
    for row, config in configs_of(experiment.EXPERIMENT, scale).items():
        assert config.train.peak_learning_rate == rates[row], row
    perplexity: dict[str, dict[float, float]] = {}
    for rate in tried:
        folder = RECORDED / experiment.EXPERIMENT.name / f"{trial}_{rate}"
        for line in read_results(folder / "results.csv"):
            perplexity.setdefault(line.row, {})[rate] = line.perplexity
    whole = {row: own for row, own in perplexity.items() if len(own) == len(tried)}
    assert len(whole) > 1
    best = {row: min(own, key=own.__getitem__) for row, own in whole.items()}
    assert best.items() <= rates.items()
