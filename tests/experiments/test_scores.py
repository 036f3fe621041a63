"""Score functions with narrow and wide keys: the verdicts by their rules."""

import pytest

from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.scores import NARROW, WIDE, name_of, verdict_of
from tests.tables.test_statistics import line


def lines_of(**bleu):
    """Lines of scores, from pairs of BLEU with narrow and with wide keys, one for each seed."""
    return [
        line(name_of(score, d_k), seed, value)
        for score, pairs in bleu.items()
        for seed, pair in enumerate(pairs)
        for d_k, value in zip((NARROW, WIDE), pair, strict=True)
    ]


SCALED = [(87, 86), (88, 86.5), (86, 85)]
PLAIN = [(50, 4), (45, 2), (57, 8)]


@pytest.mark.parametrize(
    ("score", "own", "verdict"),
    [
        ("additive", [(85, 90), (86, 90.5), (87, 91)], HOLDS),
        ("bilinear", [(90, 20), (88, 10), (89, 31)], FAILS),  # it loses more than the scaled one
        ("cosine", [(80, 79), (80, 30), (80, 95)], OPEN),
        ("cosine", [(3, 3), (3, 2), (4, 3)], OPEN),  # it learned nothing, so d_k cannot matter
        ("cosine", [(0, 0), (0, 0), (0, 0)], OPEN),  # BLEU of 0.00, as of empty translations
        ("additive", [(85, 90)], NOT_RUN),
    ],
)
def test_a_score_is_judged_beside_the_scaled_and_the_plain_product(score, own, verdict):
    lines = lines_of(scaled_dot=SCALED, dot=PLAIN, **{score: own})
    assert verdict_of(lines, score)[0] == verdict


def test_the_plain_product_is_judged_beside_the_scaled_one():
    assert verdict_of(lines_of(scaled_dot=SCALED, dot=PLAIN), "dot")[0] == FAILS
    assert verdict_of(lines_of(dot=PLAIN), "dot")[0] == NOT_RUN
