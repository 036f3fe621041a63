"""Words dropped and doubled by hand, and the measurement on made-up translations."""

from types import SimpleNamespace

import pytest

from experiments import coverage
from experiments.coverage import EXPERIMENT, counted, faults
from tests.experiments.rows import job_in
from transformer_jax.text.built_in_corpus import AlignedPair

# did belongs to kaufte, and the full stop to itself, which is not a word.
PAIR = AlignedPair(
    "Did the old man buy a car?",
    "Kaufte der alte Mann ein Auto?",
    ("Did", "the", "old", "man", "buy", "a", "car", "?"),
    ("Kaufte", "der", "alte", "Mann", "ein", "Auto", "?"),
    ((0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 4), (6, 5), (7, 6)),
)


@pytest.mark.parametrize(
    ("output", "dropped", "doubled"),
    [
        ("Kaufte der alte Mann ein Auto?", 0, 0),
        ("Ein Auto kaufte der alte Mann.", 0, 0),  # the order does not count
        ("Der Mann ein Auto?", 3, 0),  # did, buy and old
        ("Kaufte der alte alte Mann ein Auto Auto?", 0, 2),
        ("Kaufte der alte Mann der Auto?", 1, 1),  # a wrong form that is elsewhere counts twice
        ("", 7, 0),
    ],
)
def test_faults_by_hand(output, dropped, doubled):
    assert faults(PAIR, output) == (7, dropped, doubled)


def test_a_word_that_the_reference_has_twice_is_not_doubled():
    links = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4))
    words = ("The", "dog", "saw", "the", "cat"), ("Der", "Hund", "sah", "der", "Katze")
    pair = AlignedPair("The dog saw the cat", "Der Hund sah der Katze", *words, links)
    assert faults(pair, pair.tgt) == (5, 0, 0)
    assert faults(pair, "Der Hund sah der der Katze") == (5, 0, 2)  # both articles are linked to it


def test_one_of_several_linked_words_is_enough():
    """shouted at: schrie ... an; the particle alone is not a drop."""
    links = ((0, 0), (1, 1), (1, 3), (2, 2), (3, 4))
    words = ("He", "shouted", "me", "."), ("Er", "schrie", "mich", "an", ".")
    pair = AlignedPair("He shouted me.", "Er schrie mich an.", *words, links)
    assert faults(pair, "Er schrie mich.") == (3, 0, 0)
    assert faults(pair, "Er mich.") == (3, 1, 0)


def test_lengths_count_what_is_missing_apart_from_what_is_left_over():
    """Of 6 words each, one translation has 4 and another one 8."""
    outputs = ["Der Mann ein Auto?", "Kaufte der alte alte Mann ein Auto Auto?"]
    found = counted(outputs, [PAIR, PAIR])
    assert found["short"] == found["long"] == pytest.approx(100 * 2 / 12)
    assert found["dropped"] == pytest.approx(100 * 3 / 14)
    assert found["doubled"] == pytest.approx(100 * 2 / 14)


def test_a_run_is_counted_as_it_is_and_with_the_penalty(tmp_path, monkeypatch):
    plain, penalized = [["Kaufte der Mann ein Auto?"] * 2, [PAIR.tgt, "Ein Auto?"]]

    def load(folder, coverage_penalty):
        assert (folder, coverage_penalty) == (job.folder, 0.2)
        found = {(PAIR.src, PAIR.src): penalized}
        return SimpleNamespace(translate=lambda lines: found[tuple(lines)])

    monkeypatch.setattr(coverage, "hypotheses", lambda job: plain)
    monkeypatch.setattr(coverage, "pairs_of_test", lambda count: (PAIR,) * count)
    monkeypatch.setattr("transformer_jax.api.load", load)
    job = job_in(EXPERIMENT, tmp_path)
    assert coverage.counts_of(job) == counted(plain, [PAIR, PAIR])
    assert coverage.with_penalty(job) == counted(penalized, [PAIR, PAIR])
