"""Without parallel text: the noise, the dictionary, and the verdicts on what was measured."""

import random

from experiments.judging import FAILS, HOLDS
from experiments.no_parallel_text import (
    BY_WORD,
    CONTROL,
    FRENCH,
    NAMES,
    by_word,
    dictionaries,
    first,
    noisy,
    verdicts_on,
)


def test_noise_leaves_words_out_and_moves_them_a_little():
    line, draw = " ".join(map(str, range(20))), random.Random(0)
    copies = [list(map(int, noisy(line, draw).split())) for _ in range(500)]
    assert 0.88 < sum(map(len, copies)) / 10_000 < 0.92
    far = [abs(sorted(one).index(x) - n) for one in copies for n, x in enumerate(one)]
    assert max(far) == 3 and sum(far) > 0


def test_a_dictionary_has_the_commonest_links():
    pairs = [("a dog sleeps", "un chien dort"), ("a cat sleeps", "un chat dort")] * 20
    pairs += [("A dog runs", "Un chien court")] * 20
    found = dictionaries(pairs)
    assert by_word("A dog, sleeps here.", found["fr"]) == "Un chien, dort here."
    assert by_word("un chat", found["en"]) == "a cat"
    assert list(first(found["fr"], 1)) == ["a"]


def test_the_verdicts():
    none, few, _ = NAMES
    bleu = {none: (5, 3), few: (12, 14), none + CONTROL: (4.5, 0), few + CONTROL: (6, 0)}
    found = {
        (row, seed): {"run": {FRENCH: run + 0.1 * seed}, BY_WORD: {FRENCH: words}}
        for row, (run, words) in bleu.items()
        for seed in (0, 1)
    }
    assert verdicts_on(found, none) == [FAILS, HOLDS, ""]
    assert verdicts_on(found, few) == [HOLDS, FAILS, HOLDS]
