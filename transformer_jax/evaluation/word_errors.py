"""Word and character error rates of recordings and pictures that are read, with their intervals.

The rate is (S + D + I) / N over a whole text: substitutions, deletions and insertions of the
cheapest way from the references to the translations, and the references' number of words or
characters. It may exceed 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES, SEED = 1_000, 0
TAILS = (2.5, 97.5)  # percentiles: an interval of 95 %


class ErrorRate(NamedTuple):
    """A rate, and the interval of 95 % from resampled lines (Koehn 2004)."""

    rate: float  # 0: no errors
    low: float
    high: float


def word_errors(hypotheses: Sequence[str], references: Sequence[str]) -> ErrorRate:
    """The word error rate; words are between white space, and case counts."""
    return _error_rate([x.split() for x in hypotheses], [x.split() for x in references])


def character_errors(hypotheses: Sequence[str], references: Sequence[str]) -> ErrorRate:
    """The character error rate; white space of any length is one space."""
    one_space = [[" ".join(x.split()) for x in lines] for lines in (hypotheses, references)]
    return _error_rate(*one_space)


def edit_distance(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """The fewest substitutions, deletions and insertions between both (Levenshtein 1966)."""
    row = list(range(len(hypothesis) + 1))  # row[i]: from reference[:0] to hypothesis[:i]
    for j, wanted in enumerate(reference, 1):
        diagonal, row[0] = row[0], j
        for i, found in enumerate(hypothesis, 1):
            cost = diagonal if found == wanted else 1 + min(diagonal, row[i - 1], row[i])
            diagonal, row[i] = row[i], cost
    return row[-1]


def _error_rate(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> ErrorRate:
    pairs = zip(hypotheses, references, strict=True)
    errors = np.array([edit_distance(*pair) for pair in pairs], np.float64)
    lengths = np.array(list(map(len, references)), np.float64)
    random = np.random.default_rng(SEED)
    drawn = random.multinomial(len(errors), np.full(len(errors), 1 / len(errors)), RESAMPLES)
    rates = drawn @ errors / np.maximum(drawn @ lengths, 1)
    low, high = np.percentile(rates, TAILS)
    return ErrorRate(float(errors.sum() / max(1, lengths.sum())), float(low), float(high))
