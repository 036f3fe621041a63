"""Parts that came after the paper: the rates of their rows, and the verdicts by their rules."""

from pathlib import Path

import pytest

from experiments.judging import NOT_RUN, OPEN
from experiments.later_parts import BASE, EXPERIMENT, RATES, ROWS, TRIED, verdict_of
from tests.tables.test_statistics import line
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.results import counts, read_results

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        ([85.0, 86.1, 87.2], "helps"),
        ([81.0, 82.1, 83.2], "hurts"),
        ([83.0, 88.0, 81.0], OPEN),
        ([85.0], NOT_RUN),
    ],
)
def test_a_part_is_judged_beside_the_base_seed_by_seed(own, verdict):
    lines = [line(BASE, seed, value) for seed, value in enumerate([83.0, 84.0, 85.0])]
    lines += [line("RMSNorm", seed, value) for seed, value in enumerate(own)]
    assert verdict_of(lines, "RMSNorm")[0] == verdict


def test_every_row_is_tuned_alike_and_runs_with_the_rate_that_was_chosen_for_it():
    tried = {
        scale: {
            job.row: job.config().train.peak_learning_rate
            for job in make_jobs(EXPERIMENT, scale, Path("runs"), seeds=(0,))
        }
        for scale in EXPERIMENT.scales
    }
    assert tried.pop("small") == RATES
    assert [set(rates.values()) for rates in tried.values()] == [{rate} for rate in TRIED]
    assert all(rates.keys() == ROWS.keys() for rates in tried.values())


def test_the_chosen_rate_has_the_lowest_recorded_perplexity():
    found: dict[str, dict[float, float]] = {row: {} for row in ROWS}
    for rate in TRIED:
        results = ROOT / "docs" / "results" / "later_parts" / f"rate_{rate}" / "results.csv"
        for one in read_results(results):
            found[one.row][rate] = one.perplexity
    assert {row: min(tried, key=tried.__getitem__) for row, tried in found.items()} == RATES


def test_swiglu_has_the_size_of_the_base():
    jobs = make_jobs(EXPERIMENT, "small", Path("runs"), (BASE, "SwiGLU"), seeds=(0,))
    base, gated = (counts(job.config())[0] for job in jobs)
    assert gated == pytest.approx(base, rel=2e-3)
