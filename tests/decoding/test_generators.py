"""Minimum Bayes risk against a double loop."""

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_jax.decoding.generators import UTILITIES, expected_utilities

SAMPLES = [
    "ein Hund läuft .",
    "ein Hund rennt durch den Park .",
    "der Hund läuft .",
    "ein Hund läuft .",
    "",
    "eine Katze schläft .",
]


@pytest.mark.parametrize(
    ("name", "metric"), [("chrf", CHRF()), ("bleu", BLEU(effective_order=True))]
)
def test_expected_utilities_are_those_of_a_double_loop(name, metric):
    found = expected_utilities(SAMPLES, UTILITIES[name]())
    assert set(found) == set(SAMPLES) and len(found) == 5
    for text in set(SAMPLES):
        scores = [metric.sentence_score(text, [other]).score for other in SAMPLES]
        assert found[text] == pytest.approx(sum(scores) / len(scores))
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert next(iter(found)) == "ein Hund läuft ."


def test_a_utility_takes_the_translation_first_and_equal_samples_keep_their_order():
    found = expected_utilities(["a", "a", "bb"], lambda text, reference: len(text) - len(reference))
    assert found == {"bb": pytest.approx(2 / 3), "a": pytest.approx(-1 / 3)}
    assert list(found) == ["bb", "a"]
    assert list(expected_utilities(["b", "a", "c"], lambda *_: 1.0)) == ["b", "a", "c"]
