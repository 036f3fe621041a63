"""GENERATORS: the ways to write translations, by the names of decode.method.

**Beam search** is in search.py, **sampling** in sampling.py. **Minimum Bayes risk** draws samples
and takes the one that is most like the others (Kumar and Byrne 2004; with samples of the model,
Eikema and Aziz 2020). **Mask-predict** and **CTC** write all subwords at once (parallel.py).
"""

import collections
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from transformer_jax.config.decode import DecodeConfig
from transformer_jax.errors import ConfigError

MOST_SAMPLES = 1_000  # one call holds all samples of a sentence in memory
Utility = Callable[[str, str], float]  # (translation, reference) -> 0 to 100


class Generator(NamedTuple):
    """A way to write translations."""

    # decode -> the largest n_best, and why it is the largest.
    most: Callable[[DecodeConfig], tuple[int, str]]
    # (decode, n_best) -> samples drawn of each sentence; 0: it draws none.
    samples: Callable[[DecodeConfig, int], int] = lambda decode, n_best: 0
    # (decode, texts, tokens of BLEU) -> the different texts and their new scores, best first; None:
    # as they are.
    ranked: Callable[[DecodeConfig, Sequence[str], str], Mapping[str, float]] | None = None


def _chrf(tokens: str) -> Utility:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return lambda text, reference: metric.sentence_score(text, [reference]).score


def _bleu(tokens: str) -> Utility:
    from sacrebleu.metrics.bleu import BLEU

    # Else most sentences without a common 4-gram score 0.
    metric = BLEU(tokenize=tokens, effective_order=True)
    return lambda text, reference: metric.sentence_score(text, [reference]).score


UTILITIES: dict[str, Callable[[str], Utility]] = {"chrf": _chrf, "bleu": _bleu}


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


GENERATORS: dict[str, Generator] = {
    "beam": Generator(
        most=lambda decode: (
            decode.beam_size,
            f"a beam of {decode.beam_size} finds no more. Raise --beam_size.",
        ),
    ),
    "sample": Generator(
        samples=lambda decode, n_best: n_best,
        most=lambda decode: (MOST_SAMPLES, "draw more with other seeds."),
    ),
    "mbr": Generator(
        samples=lambda decode, n_best: decode.samples,
        most=lambda decode: (
            decode.samples,
            f"mbr chooses from {decode.samples} samples. Raise decode.samples.",
        ),
        ranked=lambda decode, texts, tokens: expected_utilities(
            texts, UTILITIES[decode.utility](tokens)
        ),
    ),
    "mask_predict": Generator(
        most=lambda decode: (
            decode.lengths,
            f"{decode.lengths} lengths are tried. Raise decode.lengths.",
        ),
    ),
    "ctc": Generator(
        most=lambda decode: (1, "ctc writes one translation of a sentence."),
    ),
}


def check_n_best(n_best: int, decode: DecodeConfig) -> None:
    """Raises ConfigError if decode.method does not give that many translations of a line."""
    most, why = GENERATORS[decode.method].most(decode)
    if isinstance(n_best, bool) or not isinstance(n_best, numbers.Integral):
        raise ConfigError(f"n_best={n_best!r} is not a whole number.")
    if n_best < 1:
        raise ConfigError(f"--n_best={n_best} is below 1: ask for at least 1 translation per line.")
    if n_best > most:
        raise ConfigError(f"--n_best={n_best} is not in 1..{most}: {why}")
