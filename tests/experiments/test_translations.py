"""What translations get right, by hand."""

import math

import pytest

from experiments.translations import bleu, scores, share_written, words_of
from transformer_jax.text.built_in_corpus import built_in_pairs


def test_words_are_those_of_the_corpus_without_punctuation():
    for pair in built_in_pairs("train", 50):
        for line, words in ((pair.src, pair.src_words), (pair.tgt, pair.tgt_words)):
            assert words_of(line) == [word for word in words if word not in (",", ".", "?")]


def test_a_word_is_written_as_often_as_it_is_wanted():
    """Of die, die and Frau, the first line has one die; the second line has its only word."""
    outputs = ["Die Katze sieht die Maus.", "Anna"]
    wanted = [["die", "die", "Frau"], ["Anna"]]
    assert share_written(outputs, wanted) == 2 / 4


def test_scores_of_two_sentences():
    found = scores(["Er lacht.", "Sie isst nicht."], ["Er lacht.", "Sie isst den Kuchen nicht."])
    assert found["sentences"] == 2 and found["exact"] == 0.5
    assert found["words"] == 5 / 7
    assert 0 < found["bleu"] < 100
    assert bleu(["Er lacht laut und viel."], ["Er lacht laut und viel."]) == pytest.approx(100)
    assert math.isnan(bleu([], []))
