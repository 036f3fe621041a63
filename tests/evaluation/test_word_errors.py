"""Word and character error rates, against a search over all edits."""

import functools
import random

import pytest

from transformer_jax.evaluation.word_errors import character_errors, edit_distance, word_errors


@functools.cache
def slow(one: tuple, other: tuple) -> int:
    """The distance by its definition."""
    if not one or not other:
        return len(one) + len(other)
    if one[0] == other[0]:
        return slow(one[1:], other[1:])
    return 1 + min(slow(one[1:], other), slow(one, other[1:]), slow(one[1:], other[1:]))


def test_the_distance_is_the_fewest_edits():
    draw = random.Random(0)
    for _ in range(200):
        one, other = (tuple(draw.choices("abc", k=draw.randint(0, 6))) for _ in range(2))
        assert edit_distance(one, other) == slow(one, other)


def test_rates_are_sums_over_the_text():
    found, wanted = ["a b", "", "one two three four"], ["a c", "x", "one two"]
    assert word_errors(found, wanted).rate == pytest.approx((1 + 1 + 2) / 5)
    assert word_errors(["a b c"], ["a"]).rate == 2, "it may exceed 1"
    assert character_errors(["a  b", "ab"], ["a b", "b"]).rate == pytest.approx(1 / 4)
    assert word_errors([""], [""]).rate == 0


def test_the_interval_holds_the_rate_and_shrinks_with_the_text():
    few = word_errors(["a b"] * 5 + ["a x"] * 5, ["a b"] * 10)
    many = word_errors(["a b"] * 500 + ["a x"] * 500, ["a b"] * 1_000)
    assert few.rate == many.rate == 0.25
    assert few.low < many.low < 0.25 < many.high < few.high
    assert few.high - few.low == pytest.approx(10 * (many.high - many.low), rel=0.2)
    none = word_errors(["a"] * 9, ["a"] * 9)
    assert none == (0, 0, 0)
