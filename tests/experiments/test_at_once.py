"""Writing at once: the verdicts, on what was measured, and repeated words."""

from experiments.at_once import (
    ALONE,
    BLEU,
    DEEP,
    FASTEST,
    GREEDY,
    REPEATED,
    TAUGHT_BY,
    TEN,
    TOGETHER,
    repeated,
    verdicts_on,
)
from experiments.judging import FAILS, HOLDS, OPEN


def way(bleu, alone=10.0, together=100.0):
    return {BLEU: bleu, ALONE: alone, TOGETHER: together, REPEATED: 0.0}


def test_the_verdicts():
    masked, taught, first = "mask-predict", TAUGHT_BY, FASTEST["mask-predict"]
    found = {
        (row, seed): {
            name: way(bleu + 0.1 * seed, *speeds) for name, (bleu, *speeds) in ways.items()
        }
        for row, ways in {
            DEEP: {GREEDY: (30, 10, 100)},
            DEEP + taught: {GREEDY: (31, 10, 100)},
            masked: {first: (10, 5, 300), TEN: (24, 1, 20)},
            masked + taught: {first: (20, 5, 300), TEN: (28, 1, 20)},
        }.items()
        for seed in (0, 1)
    }
    assert verdicts_on(found, masked) == [HOLDS, HOLDS, FAILS, HOLDS, FAILS]
    assert verdicts_on(found, DEEP) == [HOLDS, "", "", "", ""]
    found[masked + taught, 1][TEN] = way(20.0)
    assert verdicts_on(found, masked)[:2] == [OPEN, OPEN]


def test_a_word_counts_if_it_is_the_one_before_it():
    assert repeated(["a a dog dog dog", "b a b"]) == 100 * 3 / 8
    assert repeated(["", "a"]) == 0
