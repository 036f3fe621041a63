"""Which words of translations are right: dropped and doubled words, names, names that recur."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import copying, coverage, recurring_names
from experiments.copying import COPY, HISTORY, INVENTED, KNOWN, RULES, SEPARATE, SOFTMAX
from experiments.coverage import counted, faults
from experiments.judging import FAILS, HOLDS, OPEN, claims
from experiments.recurring_names import Mention, cached, documents, mentions
from experiments.translations import bleu, scores, share_written, words_of
from tests.experiments.rows import by_seed, job_in
from transformer_jax.text.built_in_corpus import AlignedPair, built_in_pairs, names_in

# Translations ------------------------------------------------------------------------------------


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


# Coverage ----------------------------------------------------------------------------------------

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
    job = job_in(coverage.EXPERIMENT, tmp_path)
    assert coverage.counts_of(job) == counted(plain, [PAIR, PAIR])
    assert coverage.with_penalty(job) == counted(penalized, [PAIR, PAIR])


# Copying -----------------------------------------------------------------------------------------


@pytest.fixture
def of_training(monkeypatch):
    """Pairs of the training split in place of test's, which take seconds to draw."""
    copying.named_pairs.cache_clear()
    monkeypatch.setattr(copying, "PAIRS", 60)
    monkeypatch.setattr(copying, "pairs_of_test", functools.partial(built_in_pairs, "train"))
    yield copying.named_pairs(60)
    copying.named_pairs.cache_clear()


def test_the_test_split_has_the_pairs_that_are_asked_for():
    assert len(copying.named_pairs(copying.PAIRS)[KNOWN]) > 50


def test_the_same_sentences_have_known_and_invented_names(of_training):
    known, invented = of_training[KNOWN], of_training[INVENTED]
    assert len(known) == len(invented) > 2
    for one, other in zip(known, invented, strict=True):
        assert names_in(one.src_words) and not names_in(other.src_words)
        assert one.alignment == other.alignment and one.src != other.src


def test_names_are_counted_apart_from_other_words(of_training, tmp_path, monkeypatch):
    """The made-up model translates all but the first sentence's invented names."""
    known, invented = of_training[KNOWN], of_training[INVENTED]
    lines = {pair.src: pair.tgt for pair in (*known, *invented)}
    lines[invented[0].src] = known[0].tgt

    def load(folder):
        assert folder == job.folder
        return SimpleNamespace(translate=lambda sources: [lines[src] for src in sources])

    monkeypatch.setattr("transformer_jax.api.load", load)
    job = job_in(copying.EXPERIMENT, tmp_path)
    found = copying.names_of(job)
    assert found[KNOWN]["names"] == found[KNOWN]["exact"] == 1
    wrong, names = (
        sum(len(names_in(pair.tgt_words)) for pair in pairs) for pairs in (known[:1], known)
    )
    assert found[INVENTED]["names"] == pytest.approx(1 - wrong / names)
    assert found[INVENTED]["exact"] == pytest.approx(1 - 1 / len(known))
    assert found[INVENTED]["words"] > found[INVENTED]["names"]


def evidence(names, bleu=84.0):
    one = {"sentences": 10, "exact": 0.5, "words": 0.9}
    return {KNOWN: {**one, "bleu": bleu, "names": 0.99},
            INVENTED: {**one, "bleu": 80.0, "names": names}}  # fmt: skip


def test_each_claim_on_copying_looks_at_its_own_numbers():
    found = by_seed(SOFTMAX, map(evidence, (0.80, 0.81, 0.82), (84.0, 84.1, 84.2)))
    found |= by_seed(COPY, map(evidence, (0.95, 0.97, 0.99), 3 * [82.8]))
    found |= by_seed(HISTORY, map(evidence, (0.75, 0.80, 0.85)))
    found |= by_seed(SEPARATE, map(evidence, (0.85, 0.87, 0.89)))
    want = [FAILS, HOLDS, OPEN, FAILS, FAILS]
    assert [verdict for _, verdict in claims(RULES, found).rows] == want


# Recurring names ---------------------------------------------------------------------------------

IDS = np.array([5, 7, 5, 5, 9])


@pytest.fixture
def few_documents(monkeypatch):
    """Documents that are made in no time."""
    monkeypatch.setattr(recurring_names, "SIZES", {"train": 30, "valid": 5, "test": 5})
    documents.cache_clear()
    yield
    documents.cache_clear()


def test_two_names_take_turns_and_no_split_has_those_of_another(few_documents):
    splits = {name: documents(name) for name in recurring_names.SIZES}
    for one in splits["test"]:
        counts = [one.text.count(name) for name in one.names]
        assert counts == [3, 3] and one.text.count(". ") + one.text.count("? ") == 19
    known = {name for one in splits["train"] for name in one.names}
    assert not known & {name for one in splits["test"] for name in one.names}


def test_a_mention_is_the_subwords_that_spell_the_name():
    pieces = ["▁Ke", "mi", "dan", "'s", "▁car", "▁Kemi", "dan.", "▁Fo", "li", "</s>"]
    found = list(mentions(pieces, ("Kemidan", "Foli")))
    assert found == [Mention(0, 3, False), Mention(5, 7, True), Mention(7, 9, False)]


def test_with_theta_0_the_cache_is_the_share_of_a_subword_among_those_before():
    states = np.random.default_rng(0).normal(size=(5, 3))
    log_probs = np.log([0.5, 0.4, 0.3, 0.2, 0.1])
    got = np.exp(cached(log_probs, states, IDS, 0.0, 0.25))
    model, shares = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0, 1 / 2, 2 / 3, 0])
    np.testing.assert_allclose(got, [0.5, *(0.75 * model + 0.25 * shares)])


def test_the_cache_prefers_states_like_the_present_one_and_sums_to_1():
    states = np.random.default_rng(0).normal(size=(5, 3))
    theta = 2.0
    weights = np.exp(theta * states[:4] @ states[4])
    weights /= weights.sum()
    total = 0.0
    for subword in range(12):
        ids = np.append(IDS[:4], subword)
        p = 1 / 12  # the model's, for every subword
        got = np.exp(cached(np.log(np.full(5, p)), states, ids, theta, 0.4))[4]
        assert got == pytest.approx(0.6 * p + 0.4 * weights[IDS[:4] == subword].sum())
        total += got
    assert total == pytest.approx(1)
