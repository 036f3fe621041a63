"""Judges claims: what a verdict may rest on, and when a difference counts."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.claims.evidence import Evidence, Found
from experiments.short_demo import SHORT_DEMO
from transformer_jax.reporting.page import Part
from transformer_jax.tables.results import Line
from transformer_jax.tables.statistics import METRICS, PValues, by_seed, differences, of_row

REFERENCE = "reference"  # the row that other rows on the built-in corpus are compared with
GRAMMAR = SHORT_DEMO.overrides  # its training; other rows differ from it in the keys they name
HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "not decided", "not run"
P_LARGEST = 0.05  # a difference counts if its p is below this


class Finding(NamedTuple):
    """A claim and its verdict."""

    claim: str
    place: str  # in the paper
    verdict: str
    because: str
    parts: Sequence[Part] = ()  # tables and pictures with the numbers


class Claim(NamedTuple):
    """What the paper says, and where."""

    text: str
    place: str

    def is_found(self, verdict: str, because: str, *parts: Part) -> Finding:
        """The finding on this claim."""
        return Finding(*self, verdict, because, parts)

    def is_not_run(self, because: str = "its runs are missing") -> Finding:
        """The finding if results are missing."""
        return Finding(*self, NOT_RUN, because)


class Recorded(NamedTuple):
    """A table's finished runs; other rows are compared with its base row."""

    lines: Sequence[Line]
    p_values: PValues  # of BLEU against the base row's, seed by seed
    base: str

    def differences(self, row: str, metric: str) -> list[float]:
        """How a row differs from the base row: a value for each seed that both have."""
        return differences(self.lines, row, self.base, metric)

    def of_base(self, metric: str) -> list[float]:
        """The base row's values, one for each seed."""
        return by_seed(self.lines, metric, self.base)[self.base].tolist()

    def judge(self, row: str, metric: str, wanted: int, noise: Sequence[float]) -> str:
        """As `judge` below, for a row against the base row; BLEU must pass the bootstrap too."""
        p = [p for (name, _), p in self.p_values.items() if name == row]
        if metric == "bleu" and not (p and statistics.median(p) < P_LARGEST):
            return OPEN
        return judge(self.differences(row, metric), wanted, noise)


class Known(NamedTuple):
    """Everything that verdicts are based on."""

    folder: Path  # of the claims' results
    lines: Sequence[Line]  # of the claims' own runs
    evidence: Evidence
    table_2: Recorded
    longer: Recorded  # table 2 with three times the steps
    table_3: Recorded
    positions: Evidence  # of experiments.positions, by row and seed


def judge(gaps: Sequence[float], wanted: int, noise: Sequence[float] = ()) -> str:
    """The verdict on differences over seeds that the claim expects above 0, or below.

    Args:
      gaps: a difference for each seed.
      wanted: 1 (above) or -1 (below).
      noise: as in `exceeds_seeds`.
    """
    if not exceeds_seeds(gaps, noise):
        return OPEN
    return HOLDS if statistics.fmean(gaps) * wanted > 0 else FAILS


def judged(values: Sequence[float | None], limit: float, wanted: int) -> str:
    """Whether values over seeds are above (wanted 1) or below (-1) a limit; None does not count."""
    known = [value - limit for value in values if value is not None]
    return judge(known, wanted) if len(known) > 1 else NOT_RUN


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


def exceeds_seeds(values: Sequence[float], noise: Sequence[float] = ()) -> bool:
    """Whether differences over seeds have a mean other than 0: Student's t, two-sided, p < 0.05.

    Args:
      values: a difference for each seed.
      noise: values of one row over its seeds. If there is a single difference, both of its rows are
        taken to have the deviation of these values.
    """
    from scipy.stats import t

    sample, factor = (values, len(values) ** -0.5) if len(values) > 1 else (noise, 2**0.5)
    if not values or len(sample) < 2:
        return False
    error = factor * statistics.stdev(sample)
    return abs(statistics.fmean(values)) > t.ppf(1 - P_LARGEST / 2, len(sample) - 1) * error


def on_grammar(
    finding: Finding,
    lines: Sequence[Line],
    row: str,
    metric: str,
    wanted: int,
    base: str = REFERENCE,
    refutes: bool = True,
) -> Finding:
    """Judges the same claim on two rows of the built-in corpus, over seeds.

    Args:
      finding: the finding on Multi30k.
      lines: lines of the claims' own runs.
      row: the row to compare with `base`.
      metric: the metric to compare.
      wanted: 1 or -1, the sign of the difference that the claim expects.
      base: the other row.
      refutes: whether a difference with the other sign refutes the claim.
    """
    values = by_seed(lines, metric, row, base).dropna()
    if values.empty:
        return finding
    which = judge((values[row] - values[base]).tolist(), wanted)
    label, (compared, other) = METRICS[metric].label, values.mean()
    numbers = f'{label} {compared:.2f} in the row "{row}", {other:.2f} in "{base}"'
    which = OPEN if which == FAILS and not refutes else which
    return or_by_grammar(finding, which, numbers, len(values))


def or_by_grammar(finding: Finding, which: str, numbers: str, seeds: int) -> Finding:
    """Lets the built-in corpus decide what Multi30k leaves open; adds its numbers in any case.

    Args:
      finding: the finding on Multi30k.
      which: the verdict on the built-in corpus.
      numbers: its numbers, as text.
      seeds: the number of seeds behind them.
    """
    is_open = finding.verdict == OPEN
    decides = "this decides" if is_open and which != OPEN else f"by itself: {which}"
    because = f"{finding.because}; on the built-in corpus {numbers} ({seeds} seeds; {decides})"
    verdict = which if is_open else finding.verdict
    return finding._replace(verdict=verdict, because=because)


def of_shared_seeds(lines: Sequence[Line], rows: Sequence[str]) -> list[Line]:
    """Lines of these rows for the seeds that all of them have."""
    seeds = set.intersection(*({line.seed for line in lines if line.row == row} for row in rows))
    return [line for line in lines if line.row in rows and line.seed in seeds]


def mean_of(lines: Sequence[Line], row: str, metric: str) -> float | None:
    """The mean over the row's seeds; None if no seed is recorded."""
    summary = of_row(lines, row, metric)
    return summary.mean if summary else None
