"""The fair comparison: its seeds, and verdicts by its rule."""

from pathlib import Path

from experiments import fair_comparison, rates
from experiments.fair_comparison import BUDGETS, EXPERIMENT, HYBRID, POST, PRE, verdict_of
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from tests.tables.test_statistics import line
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.results import write_results


def lines_of(**bleu):
    """Lines of rows; the first row of each side has the lowest perplexity."""
    rows = {"pre": PRE, "post": POST, "recurrent": "recurrent", "hybrid": HYBRID}
    return [
        line(rows[name], seed, value, perplexity=5.0 + n, parameters=2, training_flops=1e13)
        for n, (name, values) in enumerate(bleu.items())
        for seed, value in enumerate(values)
    ]


def test_budgets_use_other_seeds_than_tuning():
    def seeds(experiment, scale):
        return {job.seed for job in make_jobs(experiment, scale, Path("runs"))}

    own = [seeds(EXPERIMENT, f"budget_{times}") for times in BUDGETS]
    assert own == [{1, 2, 3}, {1, 2}, {1}]
    assert seeds(rates.EXPERIMENT, "fair_comparison") == {0}


def test_the_better_transformer_is_compared_with_the_best_other():
    lines = lines_of(pre=(33, 34), post=(35, 36), hybrid=(30, 30), recurrent=(40, 40))
    assert fair_comparison.gaps_of(lines) == (PRE, HYBRID, [3, 4])


def test_one_seed_is_judged_by_the_deviation_of_another_budget():
    lines = lines_of(pre=(35,), recurrent=(30,))
    assert verdict_of(lines)[0] == OPEN
    assert verdict_of(lines, spread=(2.0, 2.3))[0] == HOLDS
    assert verdict_of(lines, spread=(2.0, 6.0))[0] == OPEN
    # Three differences with a deviation of 1 judge another one by t = 4.303, 2 degrees of freedom.
    for gap, verdict in ((1.1 * 4.303, HOLDS), (0.9 * 4.303, OPEN)):
        one = lines_of(pre=(30 + gap,), recurrent=(30,))
        assert verdict_of(one, spread=(3.0, 4.0, 5.0))[0] == verdict


def test_the_findings_read_every_budget(tmp_path):
    for times, values, better in ((1, (33, 34, 35.1), 4), (3, (36, 37.1), -4)):
        lines = lines_of(pre=values, recurrent=[round(one) - better for one in values])
        (tmp_path / f"budget_{times}").mkdir()
        write_results(tmp_path / f"budget_{times}", lines)
    parts = fair_comparison.findings(tmp_path / "budget_1", [])
    assert [row[1] for row in parts[1].rows] == [HOLDS, FAILS, NOT_RUN]
    assert (tmp_path / "budget_1" / "budgets.png").stat().st_size > 5_000
