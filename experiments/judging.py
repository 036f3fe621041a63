"""Verdicts over seeds: when a difference counts, and what a claim is called then."""

import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.evidence import Evidence, Found, of_jobs, of_seeds
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.experiment import Job
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

Value = Callable[..., Any]  # a number, from what was measured of a run; None: it has none


def at(*keys: str | int) -> Value:
    """Takes the value at these keys, one in the other."""
    return lambda found: functools.reduce(operator.getitem, keys, found)


def more(value: Value) -> Value:
    """A row's value less that of the row beside it."""
    return lambda own, base: value(own) - value(base)


def side_by_side(found: Found, *rows: str) -> list[tuple[Evidence, ...]]:
    """What was measured of these rows, for each seed at which all of them were."""
    own, *others = (of_seeds(found, row) for row in rows)
    seeds = [seed for seed in own if all(seed in other for other in others)]
    return [(own[seed], *(other[seed] for other in others)) for seed in seeds]


def scores_of(lines: Sequence[Line]) -> Found:
    """The BLEU of recorded runs that have one, as what was measured of them."""
    return {line[:2]: {"bleu": line.bleu} for line in lines if not math.isnan(line.bleu)}


class Rule(NamedTuple):
    """A claim about rows: a number at each seed is above a limit, or below it."""

    claim: str
    value: Value  # of what was measured of the row, and of each row in `beside`
    wanted: int  # 1: above the limit; -1: below it
    limit: float = 0.0
    beside: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()  # that it is about; empty: all that are not in `beside`

    def values(self, found: Found, row: str) -> list[Any]:
        """The number for each seed at which the row and those beside it were measured."""
        return [self.value(*own) for own in side_by_side(found, row, *self.beside)]

    def verdict(self, found: Found, row: str) -> str:
        """The verdict on a row; empty if the claim is not about it."""
        if row in self.beside or (self.rows and row not in self.rows):
            return ""
        return judged(self.values(found, row), self.limit, self.wanted)


class Column(NamedTuple):
    """A column of a table with a line for each row: a mean over seeds."""

    head: str
    value: Value
    form: str


def claims(rules: Sequence[Rule], found: Found, form: str = "") -> Table:
    """A table with the verdict on each claim, which is about one row; a form adds the mean."""
    cells = []
    for rule in rules:
        [row] = rule.rows
        mean = [mean_text(rule.values(found, row), form)] if form else []
        cells.append([rule.claim, rule.verdict(found, row), *mean])
    return Table(["claim", "verdict", *(["difference"] if form else [])], cells)


def verdicts(rules: Sequence[Rule], found: Found, rows: Iterable[str]) -> Table:
    """A table with the verdict on every claim, for each row that a claim is about."""
    cells = [[row, *(rule.verdict(found, row) for rule in rules)] for row in rows]
    return Table(["row", *(rule.claim for rule in rules)], [own for own in cells if any(own[1:])])


def page(
    rules: Sequence[Rule],
    columns: Sequence[Column],
    found: Found,
    rows: Sequence[str],
    title: str,
) -> list[Part]:
    """A page: the verdicts on every row, and under a title what was measured of it."""
    table = verdicts(rules, found, rows)
    return [Heading("Verdicts"), table, Heading(title), means(columns, found, rows)]


def page_of_runs(
    ask: Callable[[Job], Evidence], rules: Sequence[Rule], columns: Sequence[Column], title: str
) -> Callable[[Path, Sequence[Job]], list[Part]]:
    """The findings of an experiment: a page of what all its runs answer to one question."""

    def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
        rows = list(dict.fromkeys(job.row for job in jobs))
        return page(rules, columns, of_jobs(folder, jobs, ask), rows, title)

    return findings


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
