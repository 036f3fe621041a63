"""The verdicts on kinds of positions."""

import pytest

from experiments.claims.lengths import ALL_LENGTHS, BEYOND, SINUSOIDAL, WITHIN, by_row, extrapolates
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.positions import against_sinusoids


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


def test_lengths_are_found_by_row_and_seed():
    found = {"sinusoidal, seed 0": {"sentences": [1, 2], SINUSOIDAL: [90.0, 30.0]}}
    assert by_row(found) == {SINUSOIDAL: {0: [90.0, 30.0]}}
