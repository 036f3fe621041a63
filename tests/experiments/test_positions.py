"""The verdicts on kinds of positions."""

from experiments.claims.lengths import ALL_LENGTHS, BEYOND, SINUSOIDAL, WITHIN, extrapolates
from experiments.judging import NOT_RUN, OPEN
from experiments.positions import against_sinusoids


def lengths(**rows):
    """By row and seed, BLEU within and beyond."""
    return {row: dict(enumerate(zip(*values, strict=True))) for row, values in rows.items()}


def test_where_no_length_is_translated_nothing_is_judged():
    """The verdicts of other lengths are those of test_claims.py."""
    nothing = lengths(t5=((90,), (70,)), **{ALL_LENGTHS: ((90,), (0,))})
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
