"""Crossing links by hand, and what moves in sentences of the corpus."""

import pytest

from transformer_jax.grammar import generate
from transformer_jax.grammar.order import crossings, moves_a_verb, verb_forms


def test_crossings_by_hand():
    assert crossings([(0, 0), (1, 1), (1, 2), (2, 3)]) == []
    assert crossings([(0, 1), (1, 0)]) == [((0, 1), (1, 0))]
    # has sold the car: hat das Auto verkauft
    assert crossings([(0, 0), (1, 3), (2, 1), (3, 2)]) == [((1, 3), (2, 1)), ((1, 3), (3, 2))]


def test_within_a_unit_nothing_crosses_but_other_words_cross_its_parts():
    """are relaxing: entspannen uns; turn off the lamp: schaltet die Lampe aus."""
    unit = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert crossings(unit) == []
    assert crossings(unit[:-1]) == [((0, 1), (1, 0))]
    assert crossings([(0, 0), (0, 2), (1, 0), (1, 2), (2, 1)]) == [
        ((0, 2), (2, 1)),
        ((1, 2), (2, 1)),
    ]


@pytest.mark.parametrize(
    ("src", "tgt", "links", "moves"),
    [
        ("The bear danced today", "Heute tanzte der Bär", ((0, 2), (1, 3), (2, 1), (3, 0)), True),
        ("Today he laughs", "Heute lacht er", ((0, 0), (1, 2), (2, 1)), True),
        ("We turn on the lamp", "Wir schalten die Lampe ein",
         ((0, 0), (1, 1), (1, 4), (2, 1), (2, 4), (3, 2), (4, 3)), True),
        ("My cat's dog is old", "Der Hund meiner Katze ist alt",
         ((0, 2), (1, 0), (1, 3), (2, 1), (3, 4), (4, 5)), False),
        # The plant is a noun that looks like a verb: planting.
        ("My plant here is old", "Hier meine Pflanze ist alt",
         ((0, 1), (1, 2), (2, 0), (3, 3), (4, 4)), False),
    ],
)  # fmt: skip
def test_a_verb_moves_if_its_links_cross_others(src, tgt, links, moves):
    assert crossings(links)
    assert moves_a_verb(src.split(), tgt.split(), links) is moves


def test_forms_are_of_verbs():
    src, tgt = verb_forms()
    assert {"buys", "bought", "buying", "has", "must", "is", "did"} <= src
    assert {"kaufte", "gekauft", "anzurufen", "anrief", "muss", "worden"} <= tgt
    assert not {"to", "not", "his"} & src and not {"", "nicht", "zu"} & tgt


def test_what_moves_in_the_corpus_is_what_its_constructions_say():
    pairs = generate("train", 600)
    for pair in pairs:
        assert not (pair.is_monotone and pair.moves_a_verb)
        if pair.construction == "predicate":
            assert pair.is_monotone, pair.src
    monotone = sum(pair.is_monotone for pair in pairs) / len(pairs)
    moved = sum(pair.moves_a_verb for pair in pairs) / len(pairs)
    assert 0.3 < monotone < 0.45 and 0.5 < moved < 0.65
