"""Pruning: which heads are closed, and the verdicts."""

import numpy as np
import pytest

from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.pruning import (
    ERRORS,
    GONE,
    LEAST,
    MOST,
    NEIGHBOURS,
    RANDOM,
    ROW,
    WHOLE,
    closed,
    stays,
    verdicts,
    verdicts_further,
    verdicts_learned,
)


def test_the_heads_with_the_lowest_scores_are_closed():
    gates = closed({"a": np.array([3.0, 1.0, 2.0, 0.5]), "b": np.array([0.0, 1.0, 2.0, 3.0])}, 2)
    assert {name: own.tolist() for name, own in gates.items()} == {
        "a": [1, 0, 1, 0],
        "b": [0, 0, 1, 1],
    }


SCORES = {"decoder_0/cross_attention": [8.0, 7, 6, 5, 4, 3, 2, 1]}
LOW_STAY = {"decoder_0/cross_attention": [0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5]}


def found_of(seed: int) -> dict:
    lost = {LEAST: 0.5, RANDOM: 3.0, MOST: 9.0}
    bleu = {f"{way}, {share}": 90 - x - 0.1 * seed for way, x in lost.items() for share in GONE}
    more = {"importance": SCORES, ERRORS: LOW_STAY, NEIGHBOURS: LOW_STAY}
    return {WHOLE: 90 - 0.1 * seed, **bleu, **more}


def test_the_verdicts():
    found = {(ROW, seed): found_of(seed) for seed in (0, 1)}
    assert stays(found_of(0), ERRORS) == pytest.approx(-0.4)
    *shares, aligning, neighbours = [verdict for _, verdict in verdicts(found)]
    assert shares == [HOLDS] * 9 and (aligning, neighbours) == (HOLDS, FAILS)
    further = {where: {**one, f"{LEAST}, half": 80.0 + where[1]} for where, one in found.items()}
    assert [verdict for _, verdict in verdicts_further(further)] == [HOLDS, HOLDS, OPEN, FAILS]
    learned = {where: dict.fromkeys(GONE, 92.0) | {"half": 80.0} for where in found}
    expected = [verdict for _, verdict in verdicts_learned(learned, found)]
    assert expected == [HOLDS, FAILS, HOLDS]
    none = (*verdicts({}), *verdicts_further({}), *verdicts_learned({}, {}))
    assert {verdict for _, verdict in none} == {NOT_RUN}
