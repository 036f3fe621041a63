"""Error rates of words and characters, and the latency of simultaneous translation."""

import functools
import random

import numpy as np
import pytest

from transformer_jax.evaluation.bleu import character_errors, edit_distance, word_errors
from transformer_jax.evaluation.latency import (
    average_lagging,
    average_proportion,
    differentiable_lagging,
    format_latency,
    mean_latency,
    wait_k_delays,
)

# Error rates, against a search over all edits ----------------------------------------------------


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


# Latency worked by hand, and what is known of wait-k ---------------------------------------------


def test_delays_of_wait_k_grow_by_one_up_to_the_end():
    assert wait_k_delays(3, 6, 6).tolist() == [3, 4, 5, 6, 6, 6]
    assert wait_k_delays(9, 4, 2).tolist() == [4, 4]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_wait_k_lags_k_behind_a_translation_as_long_as_its_source(k):
    delays = wait_k_delays(k, 8, 8)
    assert average_lagging(delays, 8, 8) == pytest.approx(k)
    assert differentiable_lagging(delays, 8, 8) == pytest.approx(k)


def test_latency_by_hand():
    # 4 source and 2 target tokens: the second token is written at the end, where 2 were to be read.
    delays = np.array([1, 4])
    assert average_lagging(delays, 4, 2) == pytest.approx(((1 - 0) + (4 - 2)) / 2)
    assert average_lagging(delays, 4, 4) == pytest.approx(((1 - 0) + (4 - 1)) / 2)
    assert average_proportion(delays, 4, 2) == pytest.approx(5 / 8)
    assert average_proportion(delays, 4, 5) == pytest.approx(5 / 20)
    # g' = 1, max(4, 1 + 2).
    assert differentiable_lagging(delays, 4, 2) == pytest.approx((1 + (4 - 2)) / 2)
    # By a reference of 1: g' = 1, max(4, 1 + 4), and 4 tokens were to be read by the second.
    assert differentiable_lagging(delays, 4, 1) == pytest.approx((1 + (5 - 4)) / 2)
    # The source is read after the first token: AL counts it alone, DAL the two that follow too.
    early = np.array([4, 4, 4, 4])
    assert average_lagging(early, 4, 4) == 4
    assert differentiable_lagging(early, 4, 4) == pytest.approx(4), "each token takes its time"
    # A translation that never reads the end is averaged over all of its tokens.
    assert average_lagging(np.array([1, 2]), 4, 2) == pytest.approx((1 + (2 - 2)) / 2)


def test_the_mean_leaves_out_empty_translations_and_names_both_lengths():
    delays = [np.array([1, 4]), np.array([], int), np.array([2, 2])]
    found = mean_latency(delays, [4, 3, 2], [4, 5, 1])
    assert found.average_lagging == pytest.approx((1.5 + 2.0) / 2)
    assert found.average_lagging_of_reference == pytest.approx((2.0 + 2.0) / 2)
    assert found.length_adaptive == pytest.approx((2.0 + 2.0) / 2)
    assert found.average_proportion == pytest.approx((5 / 8 + 1) / 2)
    assert found.differentiable == pytest.approx((1.5 + 2.0) / 2)
    assert found.average_proportion_of_reference == pytest.approx((5 / 16 + 2) / 2)
    # By references of 4 and 1: (1 + (4 - 1)) / 2 and (2 + (4 - 2)) / 2.
    assert found.differentiable_of_reference == pytest.approx((2.0 + 2.0) / 2)
    line = format_latency(found)
    assert "by the hypothesis's length: AL 1.75, DAL 1.75, AP 0.812; by the reference's:" in line
    assert "by the reference's: AL 2.00, DAL 2.00, AP 1.156; by the longer one's: LAAL 2.00" in line
    assert np.isnan(mean_latency([], [], []).average_lagging)
