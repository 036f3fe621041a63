"""Random text for benchmarks, with the lengths and frequencies of real text."""

import numpy as np

from transformer_jax.text.encoded import EncodedPairs
from transformer_jax.text.vocabulary import EOS, UNK

NEWSTEST = 3_003  # sentences of newstest2014


def wmt_pairs(tgt_tokens: int, longest: int, vocabulary_size: int) -> EncodedPairs:
    """Pairs like those of WMT, mean length 28, that have `tgt_tokens` target tokens in total."""
    draw, most = np.random.default_rng(0), tgt_tokens // 4
    src = draw.lognormal(np.log(28) - 0.18, 0.6, most)
    tgt = src * draw.lognormal(0, 0.25, most)
    src, tgt = (np.clip(side.round(), 2, longest).astype(np.int64) for side in (src, tgt))
    pairs = int(np.searchsorted(np.cumsum(tgt), tgt_tokens))
    draw = np.random.default_rng(1)
    sides = [random_sentences(draw, lengths[:pairs], vocabulary_size) for lengths in (src, tgt)]
    return EncodedPairs(*sides[0], *sides[1])


def random_sentences(
    draw: np.random.Generator, lengths: np.ndarray, vocabulary_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, offsets) of sentences of these lengths, each ending in EOS.

    As in real text, the share of the k-th most frequent id is proportional to 1/k. Frequent ids
    matter for speed: many threads add to one row of the embedding's gradient.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ranks = np.exp(draw.random(offsets[-1]) * np.log(vocabulary_size - UNK)).astype(np.int32)
    ids = np.minimum(UNK + ranks, vocabulary_size - 1)
    ids[offsets[1:] - 1] = EOS
    return ids.astype(np.int32), offsets


def newstest_sentences(count: int, longest: int, vocabulary_size: int) -> list[np.ndarray]:
    """Sentences with the lengths of newstest2014: mean 32, at most 200."""
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.lognormal(np.log(32) - 0.125, 0.5, count), 2, min(longest, 200))
    ids, offsets = random_sentences(draw, lengths.round().astype(int), vocabulary_size)
    return np.split(ids, offsets[1:-1])
