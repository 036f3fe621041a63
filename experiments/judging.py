"""Verdicts over seeds: when a difference counts, and what a claim is called then."""

import statistics
from collections.abc import Callable, Sequence

from experiments.evidence import Evidence, Found
from transformer_jax.tables.results import Line
from transformer_jax.tables.statistics import exceeds_seeds, of_row

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "not decided", "not run"


def judge(gaps: Sequence[float], wanted: int, spread: Sequence[float] = ()) -> str:
    """The verdict on differences over seeds that the claim expects above 0, or below.

    Args:
      gaps: a difference for each seed.
      wanted: 1 (above) or -1 (below).
      spread: as in `exceeds_seeds`.
    """
    if not exceeds_seeds(gaps, spread):
        return OPEN
    return HOLDS if statistics.fmean(gaps) * wanted > 0 else FAILS


def judged(values: Sequence[float | None], limit: float, wanted: int) -> str:
    """Whether values over seeds are above (wanted 1) or below (-1) a limit; None does not count."""
    known = [value - limit for value in values if value is not None]
    return judge(known, wanted) if len(known) > 1 else NOT_RUN


def of_two(values: Sequence[float]) -> list[float]:
    """Numbers that vary as the difference of two values does if each varies as these do."""
    return [2**0.5 * value for value in values]


def gaps(
    found: Found, row: str, base: str, seeds: Sequence[int], value: Callable[[Evidence], float]
) -> list[float]:
    """The row's value minus the base row's, for each seed at which both were measured."""
    shared = [seed for seed in seeds if {(row, seed), (base, seed)} <= found.keys()]
    return [value(found[row, seed]) - value(found[base, seed]) for seed in shared]


def mean_text(values: Sequence[float | None], form: str) -> str:
    """The mean of the values that are known, as text; empty if there is none."""
    known = [value for value in values if value is not None]
    return format(statistics.fmean(known), form) if known else ""


def of_shared_seeds(lines: Sequence[Line], rows: Sequence[str]) -> list[Line]:
    """Lines of these rows for the seeds that all of them have."""
    seeds = set.intersection(*({line.seed for line in lines if line.row == row} for row in rows))
    return [line for line in lines if line.row in rows and line.seed in seeds]


def mean_of(lines: Sequence[Line], row: str, metric: str) -> float | None:
    """The mean over the row's seeds; None if no seed is recorded."""
    summary = of_row(lines, row, metric)
    return summary.mean if summary else None
