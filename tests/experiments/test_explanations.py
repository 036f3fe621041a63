"""Verdicts on explanations."""

from experiments.alignment import AVOIDED, BASE
from experiments.explanations import (
    LAST,
    METHODS,
    PREDICTED,
    READ,
    WATCHED,
    verdicts_on,
)
from experiments.judging import FAILS, HOLDS, NOT_RUN


def test_the_verdicts():
    errors = {WATCHED: (0.3, 0.9), LAST: (0.2, 0.25), "alti": (0.1, 0.12), "norms": (0.4, 0.9)}
    found = {
        (row, seed): {
            way: {PREDICTED: pair[column] + 0.001 * seed, READ: 0.7} for way, pair in errors.items()
        }
        for column, row in enumerate((BASE, AVOIDED))
        for seed in (0, 1)
    }
    assert verdicts_on(found, "alti") == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(found, "norms") == [FAILS, FAILS, HOLDS]
    assert verdicts_on(found, WATCHED) == ["", FAILS, HOLDS]
    assert verdicts_on({}, METHODS[0]) == [NOT_RUN, NOT_RUN, NOT_RUN]
