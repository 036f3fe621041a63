"""Verdicts over seeds: when a difference counts, and what a claim is called then."""

import functools
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.evidence import Evidence, Found, of_seeds
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.results import Line
from transformer_jax.tables.statistics import exceeds_seeds, of_row, text_of

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


def judged(
    values: Iterable[float | None], limit: float, wanted: int, refuted: float | None = None
) -> str:
    """Whether values over seeds are above (wanted 1) or below (-1) a limit; None does not count.

    It does not hold if they are on the other side of the limit, or of `refuted` if that is given.
    One seed decides nothing.
    """
    known = [value for value in values if value is not None]
    if not known:
        return NOT_RUN
    verdict = judge([value - limit for value in known], wanted)
    if refuted is None or verdict == HOLDS:
        return verdict
    return FAILS if judge([value - refuted for value in known], wanted) == FAILS else OPEN


def of_two(values: Sequence[float]) -> list[float]:
    """Numbers that vary as the difference of two values does if each varies as these do."""
    return [2**0.5 * value for value in values]


def mean_text(values: Iterable[float | None], form: str) -> str:
    """The mean of the values that are known, as text; empty if there is none."""
    known = [value for value in values if value is not None]
    return format(statistics.fmean(known), form) if known else ""


def mean_of(lines: Sequence[Line], row: str, metric: str) -> float | None:
    """The mean over the row's seeds; None if no seed is recorded."""
    summary = of_row(lines, row, metric)
    return summary.mean if summary else None


# What was measured of rows -------------------------------------------------------------------

Value = Callable[[Evidence], Any]  # a number, from what was measured of a run; None: it has none


def at(*keys: str | int) -> Value:
    """Takes the value at these keys, one in the other."""
    return lambda found: functools.reduce(operator.getitem, keys, found)


class Rule(NamedTuple):
    """A claim about a row: a value of it, less the base row's, is above a limit, or below it."""

    claim: str
    value: Value
    wanted: int  # 1: above the limit; -1: below it
    limit: float = 0.0

    def verdict(self, found: Found, row: str, base: str) -> str:
        """The verdict on a row, over the seeds at which both rows were measured."""
        return judged(gaps(found, row, base, self.value), self.limit, self.wanted)


class Column(NamedTuple):
    """A column of a table with a line for each row: a mean over seeds."""

    head: str
    value: Value
    form: str


def gaps(found: Found, row: str, base: str, value: Value) -> list[float]:
    """The row's value minus the base row's, for each seed at which both were measured."""
    own, other = of_seeds(found, row), of_seeds(found, base)
    return [value(own[seed]) - value(other[seed]) for seed in own if seed in other]


def verdicts(rules: Sequence[Rule], found: Found, rows: Iterable[str], base: str) -> Table:
    """A table with the verdict on every claim for every row but the base."""
    cells = [
        [row, *(rule.verdict(found, row, base) for rule in rules)] for row in rows if row != base
    ]
    return Table(["row", *(rule.claim for rule in rules)], cells)


def with_verdicts(
    claims: Iterable[str], verdicts: Mapping[str, Sequence[str]], title: str, *parts: Part
) -> list[Part]:
    """A page: the verdicts on each claim for every row, and what was measured, under a title."""
    cells = [[row, *own] for row, own in verdicts.items()]
    return [Heading("Verdicts"), Table(["row", *claims], cells), Heading(title), *parts]


def means(
    columns: Sequence[Column],
    found: Found,
    rows: Iterable[str],
    lines: Sequence[Line] | None = None,
) -> Table:
    """A table with a line for each row; lines of results add a first column, their BLEU."""
    cells = []
    for row in rows:
        own = of_seeds(found, row).values()
        bleu = [] if lines is None else [text_of(of_row(lines, row, "bleu"), ".1f")]
        cells.append([row, *bleu, *(mean_text(map(one.value, own), one.form) for one in columns)])
    bleu = [] if lines is None else ["BLEU"]
    return Table(["row", *bleu, *(one.head for one in columns)], cells)
