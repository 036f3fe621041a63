"""Who may attend to whom, by hand."""

import jax.numpy as jnp
import pytest

from tests.fixtures.tiny import place_of
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

PACKED = place_of([3, 2], length=6)  # then padding
ONE = place_of([5])
SEVEN = place_of([7])
NEWEST = Place(jnp.array([[1]]), jnp.array([[2]]))  # what search asks for, at position 2
PAST = "10000 11000 11100 11110 11111"


def rows(mask):
    """The keys that each query sees, of one row: a word of 0 and 1 for each query."""
    assert mask.ndim == 4 and mask.shape[:2] == (1, 1)
    return " ".join("".join(map(str, query)) for query in mask[0, 0].astype(int).tolist())


@pytest.mark.parametrize(
    ("patterns", "query", "key", "want"),
    [
        ([same_sentence], place_of([1, 2], length=4), PACKED, "111000 000110 000110 000000"),
        ([causal], ONE, ONE, PAST),
        ([causal], NEWEST, ONE, "11100"),
        ([same_sentence, causal], PACKED, PACKED, "100000 110000 111000 000100 000110 000000"),
        ([within(0)], ONE, ONE, "10000 01000 00100 00010 00001"),
        ([within(1)], ONE, ONE, "11000 11100 01110 00111 00011"),
        ([within(3)], ONE, ONE, "11110 11111 11111 11111 01111"),
        # The two positions beside a query, and those 3 and 6 away.
        ([strided(3)], SEVEN, SEVEN, "1111001 1111100 1111110 1111111 0111111 0011111 1001111"),
    ],
)
def test_the_keys_that_each_query_sees(patterns, query, key, want):
    assert rows(mask_of(patterns, query, key)) == want


@pytest.mark.parametrize(
    ("changes", "is_decoder", "place", "want"),
    [
        ({}, False, PACKED, "111000 111000 111000 000110 000110 000000"),
        ({}, True, ONE, PAST),
        ({"window": 3}, False, ONE, "11000 11100 01110 00111 00011"),
        ({"window": 3}, True, ONE, "10000 11000 11100 01110 00111"),
        ({"window": 3}, False, PACKED, "110000 111000 011000 000110 000110 000000"),
        (
            {"pattern": "strided", "stride": 3},
            False,
            SEVEN,
            "1111001 1111100 1111110 1111111 0111111 0011111 1001111",
        ),
        (
            {"pattern": "strided", "stride": 3},
            True,
            SEVEN,
            "1000000 1100000 1110000 1111000 0111100 0011110 1001111",
        ),
    ],
)
def test_the_encoder_sees_around_a_query_and_the_decoder_its_past(changes, is_decoder, place, want):
    """A window is around the query in the encoder and ends at it in the decoder."""
    patterns = self_patterns(ModelConfig(**changes), is_decoder)
    assert rows(mask_of(patterns, place, place)) == want


def test_each_row_has_its_own_sentences():
    place = place_of([2], [1, 1])
    mask = same_sentence(place, place)
    assert mask[:, 0].astype(int).tolist() == [[[1, 1], [1, 1]], [[1, 0], [0, 1]]]
