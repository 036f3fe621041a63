"""Claims and findings, and what verdicts on them may rest on."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.evidence import Evidence
from experiments.judging import FAILS, NOT_RUN, OPEN, judge, of_two
from experiments.short_demo import SHORT_DEMO
from transformer_jax.reporting.page import Part
from transformer_jax.tables.results import Line
from transformer_jax.tables.statistics import METRICS, P_LARGEST, by_seed, differences

REFERENCE = "reference"  # the row that other rows on the built-in corpus are compared with
GRAMMAR = SHORT_DEMO.overrides  # its training; other rows differ from it in the keys they name


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


class Probe(NamedTuple):
    """A question that the first seed's runs of `rows` answer; without rows, nothing is trained."""

    name: str  # of the answer in results.jsonl
    ask: Callable[..., Evidence]  # takes the rows' jobs
    rows: tuple[str, ...] = ()


class Recorded(NamedTuple):
    """A table's finished runs; other rows are compared with its base row."""

    lines: Sequence[Line]
    base: str

    def differences(self, row: str, metric: str) -> list[float]:
        """How a row differs from the base row: a value for each seed that both have."""
        return differences(self.lines, row, self.base, metric)

    def spread(self, metric: str) -> list[float]:
        """How differences of two rows vary over seeds if each row varies as the base row does."""
        return of_two(by_seed(self.lines, metric, self.base)[self.base].tolist())

    def judge(self, row: str, metric: str, wanted: int, spread: Sequence[float]) -> str:
        """As `judging.judge`, for a row against the base; BLEU must pass the bootstrap too."""
        p = [line.p["bleu"] for line in self.lines if line.row == row and "bleu" in line.p]
        if metric == "bleu" and not (p and statistics.median(p) < P_LARGEST):
            return OPEN
        return judge(self.differences(row, metric), wanted, spread)


class Known(NamedTuple):
    """Everything that verdicts are based on."""

    folder: Path  # of the claims' results
    lines: Sequence[Line]  # of the claims' own runs
    evidence: Evidence
    table_2: Recorded
    longer: Recorded  # table 2 with three times the steps
    table_3: Recorded
    positions: Evidence  # of experiments.positions, by row and seed


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
