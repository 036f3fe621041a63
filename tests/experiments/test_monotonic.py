"""Groups of sentences, what is measured of each, and the rules of the verdicts."""

from experiments import monotonic
from experiments.judging import FAILS, HOLDS
from experiments.monotonic import BASE, EXPERIMENT, MONOTONIC, OTHER, SAME, VERB, verdicts_on
from tests.experiments.rows import by_seed, job_in
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
    found = monotonic.by_order(job_in(EXPERIMENT, tmp_path))
    assert {name: own["sentences"] for name, own in found.items()} == {SAME: 1, VERB: 2, OTHER: 1}
    assert {name: own["exact"] for name, own in found.items()} == {SAME: 1, VERB: 0.5, OTHER: 1}
    assert found[VERB]["words"] == 7 / 8


def test_only_wider_heads_are_compared_with_monotonic_ones():
    found = by_seed(MONOTONIC, 3 * [{SAME: {"exact": 0.6}, VERB: {"exact": 0.2}}])
    found |= by_seed(BASE, 3 * [{SAME: {"exact": 0.7}, VERB: {"exact": 0.5}}])
    moved = 0.3, 0.31, 0.32
    found |= by_seed("lookback", [{SAME: {"exact": 0.69}, VERB: {"exact": own}} for own in moved])
    assert verdicts_on(found, "lookback") == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(found, MONOTONIC) == [FAILS, HOLDS, ""]
