"""Crossing links by hand, and what moves in sentences of the corpus."""

import pytest

from grammar import generate
from grammar.order import moves_a_verb, verb_forms
from transformer_jax.text.built_in_corpus import built_in_pairs, crossings

pytestmark = pytest.mark.slow("nothing but the folder grammar changes these")


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
    pairs = built_in_pairs("train", 600)
    for pair, written in zip(pairs, generate("train", 600), strict=True):
        moves = moves_a_verb(pair.src_words, pair.tgt_words, pair.alignment)
        assert moves == pair.moves_a_verb
        if written.construction == "predicate":
            assert pair.is_monotone, pair.src
    monotone = sum(pair.is_monotone for pair in pairs) / len(pairs)
    moved = sum(pair.moves_a_verb for pair in pairs) / len(pairs)
    assert 0.3 < monotone < 0.45 and 0.5 < moved < 0.65
