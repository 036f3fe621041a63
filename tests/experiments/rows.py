"""What tests of experiments share: the configs of rows, and what was measured of a row by seed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from experiments.judging import Found, Rule
from transformer_jax.config.schema import Config
from transformer_jax.tables.experiment import Experiment, Job, make_jobs

Value = TypeVar("Value")


def configs_of(
    experiment: Experiment, scale: str = "small", rows: tuple[str, ...] = (), seed: int = 0
) -> dict[str, Config]:
    """The configs of an experiment's rows."""
    jobs = make_jobs(experiment, scale, Path("runs"), rows, seeds=(seed,))
    return {job.row: job.config() for job in jobs}


def job_in(experiment: Experiment, folder: Path) -> Job:
    """A job of an experiment's first row, whose run is in this folder."""
    return make_jobs(experiment, "small", folder)[0]._replace(folder=folder)


def by_seed(row: str, values: Iterable[Value]) -> dict[tuple[str, int], Value]:
    """What was measured of a row: one value for each seed."""
    return {(row, seed): value for seed, value in enumerate(values)}


def verdicts_on(rules: Sequence[Rule], found: Found, row: str) -> list[str]:
    """The verdicts of these rules on a row."""
    return [rule.verdict(found, row) for rule in rules]
