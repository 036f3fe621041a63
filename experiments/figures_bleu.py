"""BLEU by the length of the source, with bootstrap intervals: a part of figures.py."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transformer_jax.reporting.plots import BLUE, VERMILION, finish_axes, new_figure
from transformer_jax.tables.statistics import tokens_of
from transformer_jax.text.vocabulary import LANGUAGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAST_WORDS = (0, 5, 10, 15, 20, 30)  # most words of each bucket; one more bucket has longer sources
RESAMPLES, SEED = 1_000, 0


class Bucket(NamedTuple):
    """Sentences whose sources have similar numbers of words, and their BLEU."""

    words: str  # range of the number of words in a source
    sentences: int
    bleu: float  # 0 to 100
    low: float  # of the 95 % bootstrap interval
    high: float


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    signature: str = "",
) -> list[Bucket]:
    """sacreBLEU (cased, with the tokens that the signature names) of each bucket with sentences.

    Codes of languages, and what follows a sentence after a tab, do not count as words. The interval
    has the middle 95 % of the BLEU of 1,000 resamples of the bucket's sentences.
    """
    from sacrebleu.metrics.bleu import BLEU

    # It counts the n-grams of each sentence.
    metric = BLEU(tokenize=tokens_of(signature), effective_order=True)
    rows = [
        [*found.counts, *found.totals, found.sys_len, found.ref_len]
        for found in map(metric.sentence_score, hypotheses, [[line] for line in references])
    ]
    counts_S = np.array(rows)
    draw = np.random.default_rng(SEED)
    bucket_of = np.searchsorted(LAST_WORDS, [*map(_length, sources)])
    buckets = []
    for number in np.unique(bucket_of):
        own_S = counts_S[bucket_of == number]
        size = len(own_S)
        # A resample draws `size` sentences with replacement: how often it draws each one.
        times_RS = draw.multinomial(size, np.full(size, 1 / size), RESAMPLES)
        resampled = [_bleu(total) for total in times_RS @ own_S]
        interval = np.percentile(resampled, [2.5, 97.5]).tolist()
        buckets.append(Bucket(_words(number), size, _bleu(own_S.sum(0)), *interval))
    return buckets


def _bleu(counts: np.ndarray) -> float:
    """Corpus BLEU of summed counts: matching n-grams, n-grams, length, the references' length."""
    from sacrebleu.metrics.bleu import BLEU

    *ngrams, length, of_references = counts.tolist()
    sizes = {"sys_len": length, "ref_len": of_references}
    return BLEU.compute_bleu(ngrams[:4], ngrams[4:], **sizes, smooth_method="exp").score


def _length(line: str) -> int:
    words = line.partition("\t")[0].split()
    return sum(not LANGUAGE.fullmatch(word) for word in words)


def _words(bucket: int) -> str:
    if bucket == len(LAST_WORDS):
        return f"{LAST_WORDS[-1] + 1}+"
    return f"{LAST_WORDS[bucket - 1] + 1}–{LAST_WORDS[bucket]}" if bucket else "0"


def bleu_figure(buckets: Sequence[Bucket], of_all: float) -> "Figure":
    """One point with its interval for each bucket, and the whole split's BLEU as a line."""
    # The label of a bucket needs at most 1.2 inches.
    figure = new_figure(max(7.5, 1.2 * len(buckets) + 1), 3.8)
    axes = figure.add_subplot()
    bleu, low, high = (np.array(values) for values in list(zip(*buckets, strict=True))[2:])
    at = np.arange(len(buckets))
    # A bootstrap interval need not contain the point itself.
    errors = np.maximum([bleu - low, high - bleu], 0)
    look = {"fmt": "o", "color": BLUE, "capsize": 4, "clip_on": False}  # a 0 is on the axis
    axes.errorbar(at, bleu, errors, label="95 % interval", zorder=3, **look)
    axes.axhline(of_all, color=VERMILION, linestyle="--", linewidth=1.2, label="all sentences")
    counts = [f"{b.sentences:,} sentence{'s' if b.sentences > 1 else ''}" for b in buckets]
    labels = [f"{bucket.words}\n{count}" for bucket, count in zip(buckets, counts, strict=True)]
    axes.set_xticks(at, labels, fontsize=8)
    axes.set_xlim(-0.5, len(buckets) - 0.5)
    finish_axes(axes, "words of the source", "BLEU")
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))  # not magnified if all are 0
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure
