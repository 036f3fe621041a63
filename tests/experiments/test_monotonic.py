"""Groups of sentences, what is measured of each, and the rules of the verdicts."""

from pathlib import Path

import pytest

from experiments import monotonic
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.monotonic import (
    BASE,
    EXPERIMENT,
    MONOTONIC,
    OTHER,
    ROWS,
    SAME,
    VERB,
    by_order,
    findings,
    group_of,
    verdicts,
)
from transformer_jax.config.files import load_config
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.built_in_corpus import AlignedPair

SEEDS = (0, 1, 2)


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
    assert [group_of(pair) for pair in (SLEEPS, HIM, LAKE)] == [SAME, VERB, OTHER]


def test_each_group_has_its_scores(tmp_path, monkeypatch):
    pairs = (SLEEPS, HIM, LAKE, HIM)
    outputs = ["Anna schläft.", "Er ruft ihn.", "Anna schläft heute hier.", "Er ruft ihn an."]
    monkeypatch.setattr(monotonic, "hypotheses", lambda job: outputs)
    monkeypatch.setattr(monotonic, "pairs_of_test", lambda count: pairs[:count])
    found = by_order(make_jobs(EXPERIMENT, "small", runs=tmp_path)[0])
    assert {name: own["sentences"] for name, own in found.items()} == {SAME: 1, VERB: 2, OTHER: 1}
    assert {name: own["exact"] for name, own in found.items()} == {SAME: 1, VERB: 0.5, OTHER: 1}
    assert found[VERB]["words"] == 7 / 8


def evidence(same, verb):
    one = {"sentences": 10, "bleu": 80.0, "words": 0.9}
    return {SAME: {**one, "exact": same}, VERB: {**one, "exact": verb}, OTHER: {**one, "exact": 0}}


def found_of(row, values, monotonic_verb=0.2):
    found = {(BASE, seed): evidence(0.7, 0.5) for seed in SEEDS}
    found |= {(MONOTONIC, seed): evidence(0.6, monotonic_verb) for seed in SEEDS}
    return found | {(row, seed): evidence(*own) for seed, own in enumerate(values)}


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([(0.69, 0.3), (0.70, 0.31), (0.69, 0.32)], [HOLDS, HOLDS, HOLDS]),
        ([(0.40, 0.10), (0.41, 0.11), (0.39, 0.10)], [FAILS, HOLDS, FAILS]),
        ([(0.50, 0.49), (0.51, 0.50), (0.49, 0.50)], [FAILS, FAILS, HOLDS]),
        ([(0.60, 0.1), (0.70, 0.2), (0.65, 0.45)], [OPEN, OPEN, OPEN]),
        ([(0.60, 0.2)], [NOT_RUN, NOT_RUN, NOT_RUN]),
    ],
)
def test_the_verdicts_on_a_row(values, want):
    assert verdicts(found_of("lookback", values), "lookback", SEEDS) == want


def test_monotonic_is_not_compared_with_itself():
    assert verdicts(found_of(MONOTONIC, []), MONOTONIC, SEEDS)[2] == ""


def test_the_rows_differ_in_the_normalizer_only():
    configs = [load_config("configs/demo.py", dict(own)) for own in ROWS.values()]
    assert [config.model.cross_normalizer for config in configs] == list(ROWS)


def test_a_page_without_runs_says_so(tmp_path):
    parts = findings(tmp_path, make_jobs(EXPERIMENT, "small", runs=Path(tmp_path)))
    assert {cell for row in parts[1].rows for cell in row[1:]} == {NOT_RUN, ""}
    assert [row[0] for row in parts[3].rows] == list(ROWS)
