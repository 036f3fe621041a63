"""Distillation: the verdicts, on what was measured."""

from experiments.distillation import ALONE, BEAM, GREEDY, RATE, verdicts_on
from experiments.judging import FAILS, HOLDS, NOT_RUN


def test_the_verdicts():
    bleu = {ALONE: (30, 28), "both": (32, 31.5), "predictions": (29, 27.5)}
    found = {
        (row, seed): {BEAM: beam + 0.1 * seed, GREEDY: greedy, RATE: 1}
        for row, (beam, greedy) in bleu.items()
        for seed in (0, 1)
    }
    assert verdicts_on(found, "both") == [HOLDS, HOLDS]
    assert verdicts_on(found, "predictions") == [FAILS, FAILS]
    assert verdicts_on({}, "both") == [NOT_RUN, NOT_RUN]
