"""Other ways to train, and smaller models: the verdicts, on what was measured."""

import random

import numpy as np
import pytest

from experiments import (
    at_once,
    back_translation,
    bleu_objective,
    distillation,
    no_parallel_text,
    pruning,
    smaller,
)
from experiments.back_translation import ALL, FEW, SHUFFLED, TAGGED
from experiments.bleu_objective import CONSTANT, MORE_TEXT
from experiments.judging import FAILS, HOLDS, OPEN, claims, scores_of
from experiments.no_parallel_text import BY_WORD, CONTROL, FRENCH, NAMES, by_word
from tests.experiments.rows import by_seed, verdicts_on
from tests.tables.test_statistics import line


def test_distillation_verdicts():
    bleu = {distillation.ALONE: (30, 28), "both": (32, 31.5), "predictions": (29, 27.5)}
    found = {}
    for row, (beam, greedy) in bleu.items():
        others = {distillation.GREEDY: greedy, distillation.RATE: 1}
        found |= by_seed(row, [{distillation.BEAM: beam + x, **others} for x in (0, 0.1)])
    assert verdicts_on(distillation.RULES, found, "both") == [HOLDS, HOLDS]
    assert verdicts_on(distillation.RULES, found, "predictions") == [FAILS, FAILS]


def test_back_translation_verdicts():
    beam = back_translation.BEAM
    bleu = {FEW: 20, beam: 28, TAGGED: 29, SHUFFLED: 15, ALL: 34}
    lines = [line(row, seed, own + 0.1 * seed) for row, own in bleu.items() for seed in (0, 1)]
    found = scores_of(lines)
    assert verdicts_on(back_translation.RULES, found, beam) == [HOLDS, HOLDS, ""]
    assert verdicts_on(back_translation.RULES, found, TAGGED) == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(back_translation.RULES, found, SHUFFLED) == [FAILS, FAILS, FAILS]


def test_noise_leaves_words_out_and_moves_them_a_little():
    text, draw = " ".join(map(str, range(20))), random.Random(0)
    copies = [list(map(int, no_parallel_text.noisy(text, draw).split())) for _ in range(500)]
    assert 0.88 < sum(map(len, copies)) / 10_000 < 0.92
    far = [abs(sorted(one).index(x) - n) for one in copies for n, x in enumerate(one)]
    assert max(far) == 3 and sum(far) > 0


def test_a_dictionary_has_the_commonest_links():
    pairs = [("a dog sleeps", "un chien dort"), ("a cat sleeps", "un chat dort")] * 20
    pairs += [("A dog runs", "Un chien court")] * 20
    found = no_parallel_text.dictionaries(pairs)
    assert by_word("A dog, sleeps here.", found["fr"]) == "Un chien, dort here."
    assert by_word("un chat", found["en"]) == "a cat"
    assert list(no_parallel_text.first(found["fr"], 1)) == ["a"]


def test_no_parallel_text_verdicts():
    none, few, _ = NAMES
    bleu = {none: (5, 3), few: (12, 14), none + CONTROL: (4.5, 0), few + CONTROL: (6, 0)}
    found = {}
    for row, (run, words) in bleu.items():
        by_words = {BY_WORD: {FRENCH: words}}
        found |= by_seed(row, [{"run": {FRENCH: run + x}, **by_words} for x in (0, 0.1)])
    assert no_parallel_text.verdicts_on(found, none) == [FAILS, HOLDS, ""]
    assert no_parallel_text.verdicts_on(found, few) == [HOLDS, FAILS, HOLDS]


def test_bleu_objective_verdicts():
    bleu = {MORE_TEXT: (30, 30), "risk": (40, 40.1), CONSTANT: (30.1, 29.9)}
    others = {MORE_TEXT: (50, 20), "risk": (49, 25), CONSTANT: (51, 19)}  # chrF, BLEU of draws
    found = {}
    for row, (chrf, draws) in others.items():
        same = {bleu_objective.CHRF: chrf, bleu_objective.DRAWS: draws}
        found |= by_seed(row, [{bleu_objective.BLEU: own, **same} for own in bleu[row]])
    assert verdicts_on(bleu_objective.RULES, found, "risk") == [HOLDS, FAILS, HOLDS, HOLDS]
    assert verdicts_on(bleu_objective.RULES, found, CONSTANT) == [OPEN, HOLDS, "", FAILS]


def way_to_write(bleu, alone=10.0, together=100.0):
    speeds = {at_once.ALONE: alone, at_once.TOGETHER: together}
    return {at_once.BLEU: bleu, **speeds, at_once.REPEATED: 0.0}


def test_at_once_verdicts():
    masked, taught, first = "mask-predict", at_once.TAUGHT_BY, at_once.FASTEST["mask-predict"]
    found = {
        (row, seed): {
            name: way_to_write(bleu + 0.1 * seed, *speeds) for name, (bleu, *speeds) in ways.items()
        }
        for row, ways in {
            at_once.DEEP: {at_once.GREEDY: (30, 10, 100)},
            at_once.DEEP + taught: {at_once.GREEDY: (31, 10, 100)},
            masked: {first: (10, 5, 300), at_once.TEN: (24, 1, 20)},
            masked + taught: {first: (20, 5, 300), at_once.TEN: (28, 1, 20)},
        }.items()
        for seed in (0, 1)
    }
    assert at_once.verdicts_on(found, masked) == [HOLDS, HOLDS, FAILS, HOLDS, FAILS]
    assert at_once.verdicts_on(found, at_once.DEEP) == [HOLDS, "", "", "", ""]
    found[masked + taught, 1][at_once.TEN] = way_to_write(20.0)
    assert at_once.verdicts_on(found, masked)[:2] == [OPEN, OPEN]


def test_a_word_counts_if_it_is_the_one_before_it():
    assert at_once.repeated(["a a dog dog dog", "b a b"]) == 100 * 3 / 8
    assert at_once.repeated(["", "a"]) == 0


def test_smaller_verdicts():
    numbers = {
        smaller.LARGE: {
            smaller.TRAINED: (33, 100),
            smaller.INT8: (32.9, 100),
            smaller.NARROW: (33, 130),
            smaller.FURTHER_ALONE: (35, 100),
            smaller.PRUNED: (34, 120),
        },
        smaller.STUDENT: {smaller.TRAINED: (30, 300), smaller.INT8: (29.8, 290)},
    }
    found = {
        (row, seed): {
            way: {smaller.BLEU: bleu + 0.1 * seed, smaller.RATE: rate + seed, smaller.SIZE: 8.0}
            for way, (bleu, rate) in ways.items()
        }
        for row, ways in numbers.items()
        for seed in (0, 1)
    }
    assert smaller.verdicts_on(found, smaller.LARGE, smaller.INT8) == [HOLDS, OPEN]
    assert smaller.verdicts_on(found, smaller.LARGE, smaller.NARROW) == [HOLDS, HOLDS]
    assert smaller.verdicts_on(found, smaller.LARGE, smaller.PRUNED) == [FAILS, HOLDS]
    assert smaller.verdicts_on(found, smaller.STUDENT, smaller.TRAINED) == [FAILS, HOLDS]
    assert smaller.verdicts_on(found, smaller.STUDENT, smaller.INT8) == [HOLDS, FAILS]


def test_the_weights_of_the_newest_checkpoint_count(tmp_path):
    for step, part, size in ((9, "params", 7), (10, "int8", 2_000), (10, "optimizer", 100)):
        file = tmp_path / "checkpoints" / str(step) / part / "d" / "part"
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(size))
    (tmp_path / "checkpoints" / "10.sha256.json").write_text("{}")
    assert smaller.megabytes(tmp_path) == 0.002


def test_the_heads_with_the_lowest_scores_are_closed():
    importance = {"a": np.array([3.0, 1.0, 2.0, 0.5]), "b": np.array([0.0, 1.0, 2.0, 3.0])}
    gates = {name: own.tolist() for name, own in pruning.closed(importance, 2).items()}
    assert gates == {"a": [1, 0, 1, 0], "b": [0, 0, 1, 1]}


SCORES = {"decoder_0/cross_attention": [8.0, 7, 6, 5, 4, 3, 2, 1]}
LOW_STAY = {"decoder_0/cross_attention": [0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5]}


def found_of(seed: int) -> dict:
    lost = {pruning.LEAST: 0.5, pruning.RANDOM: 3.0, pruning.MOST: 9.0}
    shares = pruning.GONE
    bleu = {f"{way}, {share}": 90 - x - 0.1 * seed for way, x in lost.items() for share in shares}
    more = {"importance": SCORES, pruning.ERRORS: LOW_STAY, pruning.NEIGHBOURS: LOW_STAY}
    return {pruning.WHOLE: 90 - 0.1 * seed, **bleu, **more}


def test_pruning_verdicts():
    found = {(pruning.ROW, seed): found_of(seed) for seed in (0, 1)}
    assert pruning.stays(found_of(0), pruning.ERRORS) == pytest.approx(-0.4)
    *shares, aligning, neighbours = [verdict for _, verdict in claims(pruning.RULES, found).rows]
    assert shares == [HOLDS] * 9 and (aligning, neighbours) == (HOLDS, FAILS)
    half = f"{pruning.LEAST}, half"
    further = {where: {**one, half: 80.0 + where[1]} for where, one in found.items()}
    expected = [verdict for _, verdict in claims(pruning.FURTHER_RULES, further).rows]
    assert expected == [HOLDS, HOLDS, OPEN, FAILS]
    learned = dict.fromkeys(pruning.GONE, 92.0) | {"half": 80.0}
    both = {where: {**one, **learned} for where, one in found.items()}
    expected = [verdict for _, verdict in claims(pruning.GATES_RULES, both).rows]
    assert expected == [HOLDS, FAILS, HOLDS]
