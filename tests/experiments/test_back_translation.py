"""Back-translation: the verdicts, on lines of results."""

from types import SimpleNamespace

from experiments.back_translation import ALL, BEAM, FEW, SHUFFLED, TAGGED, verdicts_on
from experiments.judging import FAILS, HOLDS, NOT_RUN


def test_the_verdicts():
    bleu = {FEW: 20, BEAM: 28, TAGGED: 29, SHUFFLED: 15, ALL: 34}
    lines = [
        SimpleNamespace(row=row, seed=seed, bleu=value + 0.1 * seed)
        for row, value in bleu.items()
        for seed in (0, 1)
    ]
    assert verdicts_on(lines, BEAM) == [HOLDS, HOLDS, ""]
    assert verdicts_on(lines, TAGGED) == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(lines, SHUFFLED) == [FAILS, FAILS, FAILS]
    assert verdicts_on([], TAGGED) == [NOT_RUN, NOT_RUN, NOT_RUN]
