"""BLEU as the objective: the verdicts, on what was measured."""

from experiments.bleu_objective import BLEU, CHRF, CONSTANT, DRAWS, MORE_TEXT, verdicts_on
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN


def test_the_verdicts():
    bleu = {MORE_TEXT: (30, 30), "risk": (40, 40.1), CONSTANT: (30.1, 29.9)}
    others = {MORE_TEXT: (50, 20), "risk": (49, 25), CONSTANT: (51, 19)}  # chrF, BLEU of draws
    found = {
        (row, seed): {BLEU: own[seed], CHRF: others[row][0], DRAWS: others[row][1] + 0.1 * seed}
        for row, own in bleu.items()
        for seed in (0, 1)
    }
    assert verdicts_on(found, "risk") == [HOLDS, FAILS, HOLDS, HOLDS]
    assert verdicts_on(found, CONSTANT) == [OPEN, HOLDS, "", FAILS]
    assert verdicts_on({}, "risk") == [NOT_RUN] * 4
