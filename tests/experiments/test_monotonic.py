"""Groups of sentences, what is measured of each, and the rules of the verdicts."""

import pytest

from experiments import monotonic
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.monotonic import BASE, EXPERIMENT, MONOTONIC, OTHER, SAME, VERB, verdicts
from tests.experiments.rows import SEEDS, by_seed
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.built_in_corpus import AlignedPair


def pair_of(src, tgt, links, moves_a_verb=False):
    """A pair of lines whose last words have a full stop that is a word of its own."""
    words = (tuple(line.replace(".", " .").split()) for line in (src, tgt))
    return AlignedPair(src, tgt, *words, links, moves_a_verb)


SLEEPS = pair_of("Anna sleeps.", "Anna schläft.", ((0, 0), (1, 1), (2, 2)))
HIM_LINKS = ((0, 0), (1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 4))
HIM = pair_of("He is calling him.", "Er ruft ihn an.", HIM_LINKS, moves_a_verb=True)
LAKE = pair_of("Anna sleeps here today.", "Anna schläft heute hier.", ((0, 0), (1, 1), (2, 3),
                                                                       (3, 2), (4, 4)))  # fmt: skip


def test_sentences_are_grouped_by_what_moves():
    assert [monotonic.group_of(pair) for pair in (SLEEPS, HIM, LAKE)] == [SAME, VERB, OTHER]


def test_each_group_has_its_scores(tmp_path, monkeypatch):
    pairs = (SLEEPS, HIM, LAKE, HIM)
    outputs = ["Anna schläft.", "Er ruft ihn.", "Anna schläft heute hier.", "Er ruft ihn an."]
    monkeypatch.setattr(monotonic, "hypotheses", lambda job: outputs)
    monkeypatch.setattr(monotonic, "pairs_of_test", lambda count: pairs[:count])
    found = monotonic.by_order(make_jobs(EXPERIMENT, "small", runs=tmp_path)[0])
    assert {name: own["sentences"] for name, own in found.items()} == {SAME: 1, VERB: 2, OTHER: 1}
    assert {name: own["exact"] for name, own in found.items()} == {SAME: 1, VERB: 0.5, OTHER: 1}
    assert found[VERB]["words"] == 7 / 8


def evidence(same, verb):
    one = {"sentences": 10, "bleu": 80.0, "words": 0.9}
    return {SAME: {**one, "exact": same}, VERB: {**one, "exact": verb}, OTHER: {**one, "exact": 0}}


@pytest.mark.parametrize(
    ("same", "verb", "want"),
    [
        ([0.69, 0.70, 0.69], [0.3, 0.31, 0.32], [HOLDS, HOLDS, HOLDS]),
        ([0.40, 0.41, 0.39], [0.10, 0.11, 0.10], [FAILS, HOLDS, FAILS]),
        ([0.50, 0.51, 0.49], [0.49, 0.50, 0.50], [FAILS, FAILS, HOLDS]),
        ([0.60, 0.70, 0.65], [0.1, 0.2, 0.45], [OPEN, OPEN, OPEN]),
        ([0.60], [0.2], [NOT_RUN, NOT_RUN, NOT_RUN]),
    ],
)
def test_the_verdicts_on_a_row(same, verb, want):
    found = by_seed(BASE, 3 * [evidence(0.7, 0.5)]) | by_seed(MONOTONIC, 3 * [evidence(0.6, 0.2)])
    found |= by_seed("lookback", map(evidence, same, verb))
    assert verdicts(found, "lookback", SEEDS) == want
    assert verdicts(found, MONOTONIC, SEEDS)[2] == "", "it is not compared with itself"
