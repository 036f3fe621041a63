"""The verdicts on kinds of positions, and the configs of the rows."""

from pathlib import Path

import pytest

from experiments.claims.lengths import ALL_LENGTHS, BEYOND, SINUSOIDAL, WITHIN, by_row, extrapolates
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.positions import EXPERIMENT, KINDS, against_sinusoids, findings
from transformer_jax.tables.experiment import make_jobs


def lengths(**rows):
    """By row and seed, BLEU within and beyond."""
    return {row: dict(enumerate(zip(*values, strict=True))) for row, values in rows.items()}


@pytest.mark.parametrize(
    ("beyond", "verdict"),
    [((70, 75), HOLDS), ((70, 60), OPEN), ((39, 30), FAILS), ((39, 45), OPEN)],
)
def test_a_kind_extrapolates_if_it_does_in_every_seed(beyond, verdict):
    found = lengths(t5=((90, 91), beyond), **{ALL_LENGTHS: ((90, 91), (80, 80))})
    assert extrapolates(found, "t5") == verdict
    assert extrapolates(found, "alibi") == NOT_RUN
    nothing = lengths(t5=((90,), beyond[:1]), **{ALL_LENGTHS: ((90,), (0,))})
    assert extrapolates(nothing, "t5") == NOT_RUN


def test_a_difference_counts_if_it_is_larger_than_between_seeds():
    found = lengths(
        **{SINUSOIDAL: ((90, 91, 92), (30, 31, 35))},
        t5=((90.5, 90.9, 92), (60, 62, 64)),
        none=((50, 52, 51), (33, 29, 34)),
    )
    assert against_sinusoids(found, "t5", WITHIN) == OPEN
    assert against_sinusoids(found, "t5", BEYOND) == "better (+30.0)"
    assert against_sinusoids(found, "none", WITHIN) == "worse (-40.0)"
    assert against_sinusoids(found, "none", BEYOND) == OPEN
    assert against_sinusoids(found, "rotary", BEYOND) == NOT_RUN


def test_rows_differ_in_their_positions_alone():
    jobs = {
        job.row: job.config() for job in make_jobs(EXPERIMENT, "small", Path("runs"), seeds=(0,))
    }
    assert {config.data.max_length for name, config in jobs.items() if name in KINDS} == {12}
    assert jobs[ALL_LENGTHS].data.max_length > 12
    assert [config.model.positions for config in jobs.values()] == [
        "sinusoidal",
        "learned",
        "none",
        "index",
        "relative",
        "relative",
        "t5",
        "rotary",
        "alibi",
        "sinusoidal",
    ]
    long = {job.config().data.max_length for job in make_jobs(EXPERIMENT, "multi30k", Path("runs"))}
    assert len(long) == 1 and long.pop() > 12


def test_without_runs_the_table_is_empty(tmp_path):
    jobs = make_jobs(EXPERIMENT, "small", tmp_path / "runs")
    _, table = findings(tmp_path, jobs)
    assert [row[0] for row in table.rows] == [*KINDS, ALL_LENGTHS]
    assert all(cell in ("", NOT_RUN) for row in table.rows for cell in row[1:])
    found = {jobs[0].label: {"sentences": [1, 2], SINUSOIDAL: [90.0, 30.0]}}
    assert by_row(found) == {SINUSOIDAL: {0: [90.0, 30.0]}}
