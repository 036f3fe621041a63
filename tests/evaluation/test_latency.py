"""Latency worked by hand, and what is known of wait-k."""

import numpy as np
import pytest

from transformer_jax.evaluation.latency import (
    average_lagging,
    average_proportion,
    differentiable_lagging,
    format_latency,
    mean_latency,
    wait_k_delays,
)


def test_delays_of_wait_k_grow_by_one_up_to_the_end():
    assert wait_k_delays(3, 6, 6).tolist() == [3, 4, 5, 6, 6, 6]
    assert wait_k_delays(9, 4, 2).tolist() == [4, 4]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_wait_k_lags_k_behind_a_translation_as_long_as_its_source(k):
    delays = wait_k_delays(k, 8, 8)
    assert average_lagging(delays, 8, 8) == pytest.approx(k)
    assert differentiable_lagging(delays, 8, 8) == pytest.approx(k)


def test_by_hand():
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
