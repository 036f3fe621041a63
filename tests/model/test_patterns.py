"""Who may attend to whom, by hand."""

import jax.numpy as jnp
import pytest

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.patterns import (
    causal,
    mask_of,
    same_sentence,
    self_patterns,
    strided,
    within,
)
from transformer_jax.model.interfaces import Place


def place(segments, positions):
    return Place(jnp.array([segments]), jnp.array([positions]))


# Sentence 1 has three positions and sentence 2 two, then padding.
PACKED = place([1, 1, 1, 2, 2, 0], [0, 1, 2, 0, 1, 0])
ONE = place([1] * 5, [0, 1, 2, 3, 4])


def table(mask):
    assert mask.ndim == 4 and mask.shape[:2] == (1, 1)
    return mask[0, 0].astype(int).tolist()


def test_segments_attend_within_themselves_and_never_to_padding():
    query = place([1, 2, 2, 0], [0, 0, 1, 0])
    key = place([1, 1, 2, 0, 0], [0, 1, 0, 0, 0])
    assert table(same_sentence(query, key)) == [
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0],
    ]


def test_each_row_has_its_own_sentences():
    rows = Place(jnp.array([[1, 1], [1, 2]]), jnp.array([[0, 1], [0, 0]]))
    mask = same_sentence(rows, rows)
    assert mask[:, 0].astype(int).tolist() == [[[1, 1], [1, 1]], [[1, 0], [0, 1]]]


def test_the_causal_pattern_shows_a_position_itself_and_its_past():
    one = place([1, 1, 1], [0, 1, 2])
    assert table(causal(one, one)) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_the_causal_pattern_asks_positions_in_the_sentence_as_search_does():
    newest = place([1], [2])
    assert table(causal(newest, ONE)) == [[1, 1, 1, 0, 0]]


def test_causal_self_attention_of_a_packed_row():
    assert table(mask_of((same_sentence, causal), PACKED, PACKED)) == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("reach", "want"),
    [
        (0, [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]),
        (1, [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]),
        (3, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]),
    ],
)
def test_within_allows_positions_at_most_that_far_apart_on_both_sides(reach, want):
    assert table(within(reach)(ONE, ONE)) == want


def test_strided_attention_sees_near_positions_and_each_stride_th_one():
    """Rows are queries. A stride of 3: the two positions beside a query, and those 3 and 6 away."""
    seven = Place(jnp.ones((1, 7), jnp.int32), jnp.arange(7)[None])
    want = [[abs(i - j) in (0, 1, 2, 3, 6) for j in range(7)] for i in range(7)]
    assert table(strided(3)(seven, seven)) == want
    for is_decoder in (False, True):
        config = ModelConfig(pattern="strided", stride=3)
        allowed = [
            [x and (j <= i or not is_decoder) for j, x in enumerate(row)]
            for i, row in enumerate(want)
        ]
        assert table(mask_of(self_patterns(config, is_decoder), seven, seven)) == allowed


def test_without_a_window_the_encoder_sees_the_sentence_and_the_decoder_its_past():
    config = ModelConfig()
    assert table(mask_of(self_patterns(config, is_decoder=False), PACKED, PACKED)) == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    assert table(mask_of(self_patterns(config, is_decoder=True), ONE, ONE)) == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]


def test_a_window_of_three_is_around_the_query_in_the_encoder_and_ends_at_it_in_the_decoder():
    config = ModelConfig(window=3)
    assert table(mask_of(self_patterns(config, is_decoder=False), ONE, ONE)) == [
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1],
    ]
    assert table(mask_of(self_patterns(config, is_decoder=True), ONE, ONE)) == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


def test_a_window_never_reaches_into_the_next_sentence_of_the_row():
    assert table(mask_of(self_patterns(ModelConfig(window=3), False), PACKED, PACKED)) == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]
