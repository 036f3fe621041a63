"""Minimum Bayes risk: of many samples, the translation that is most like the others.

Source: Kumar and Byrne 2004; with samples of the model, Eikema and Aziz 2020.
"""

import collections
from collections.abc import Callable, Sequence

Utility = Callable[[str, str], float]  # (translation, reference) -> 0 to 100


def _chrf() -> Utility:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return lambda text, reference: metric.sentence_score(text, [reference]).score


def _bleu() -> Utility:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(effective_order=True)  # else most sentences without a common 4-gram score 0
    return lambda text, reference: metric.sentence_score(text, [reference]).score


UTILITIES: dict[str, Callable[[], Utility]] = {"chrf": _chrf, "bleu": _bleu}


def expected_utilities(samples: Sequence[str], utility: Utility) -> dict[str, float]:
    """Each different sample's mean utility against all samples, itself included, best first.

    It computes the utility of n^2 pairs for n different samples. Of samples with equal utility, the
    earlier one comes first.
    """
    counts = collections.Counter(samples)  # in the order of their first occurrence
    found = {
        text: sum(count * utility(text, other) for other, count in counts.items()) / len(samples)
        for text in counts
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))
