"""Word links as links between subwords: encoded with a corpus, and as bits of a packed batch.

Dimension key
  R rows of a batch   L target positions   M source positions   W numbers of 32 bits, ceil(M / 32)
"""

import itertools
import logging
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.text.encoded import EncodedLinks, EncodedPairs
from transformer_jax.text.folder_corpus import AlignedWords, Links
from transformer_jax.text.pharaoh import MANY_PAIRS, warn_of_numbers
from transformer_jax.text.vocabulary import Vocabulary
from transformer_jax.text.words import places_in_words

log = logging.getLogger(__name__)

BITS = 32  # source positions in one number


def encode_links(
    aligned: Iterable[AlignedWords],
    encoded: EncodedPairs,
    vocabulary: Vocabulary,
    first: int | None = None,
) -> EncodedLinks:
    """Links every subword of a word to every subword of the words that it is linked to.

    Args:
      aligned: words and links of each pair.
      encoded: the same pairs as subwords.
      vocabulary: the vocabulary of these subwords. A pair that it spells with a different number of
        words keeps no links; the number of such pairs is logged.
      first: only the first `first` pairs keep their links; None: all pairs do.

    Raises:
      DataError: no pair has links.
    """
    sides: tuple[list, list] = ([], [])
    counts = [0]
    misfits = 0
    some = list[Links]()
    for number, words in enumerate(itertools.islice(aligned, first)):
        src_words = places_in_words(vocabulary.pieces(encoded.src(number)), words.src)
        tgt_words = places_in_words(vocabulary.target.pieces(encoded.tgt(number)), words.tgt)
        misfits += src_words is None or tgt_words is None
        src, tgt = _subword_links(src_words, tgt_words, words.links)
        sides[0].append(src)
        sides[1].append(tgt)
        counts.append(len(src))
        if words.links and len(some) < MANY_PAIRS:
            some.append(words.links)
    warn_of_numbers(some)
    if not sum(counts):
        raise DataError(
            "data.alignments=True, but no pair has a link, or the vocabulary spells a different "
            "number of words than the links count: see vocabulary.normalization."
        )
    linked = sum(map(bool, counts))
    log.info("%d links between subwords of %d pairs", sum(counts), linked)
    if misfits:
        log.warning("no links in %d pairs: the vocabulary spells another number of words", misfits)
    counts += [0] * (len(encoded) + 1 - len(counts))
    src, tgt = (np.concatenate(side).astype(np.int32) for side in sides)
    return EncodedLinks(src, tgt, np.cumsum(counts, dtype=np.int64))


def _subword_links(
    src_words: np.ndarray | None,
    tgt_words: np.ndarray | None,
    links: Sequence[tuple[int, int]],
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of linked subwords on both sides, int `[links]` each."""
    if src_words is None or tgt_words is None or not links:
        return np.zeros(0, int), np.zeros(0, int)
    is_linked = np.zeros((int(src_words.max()) + 2, int(tgt_words.max()) + 2), bool)
    for i, j in links:
        if i < len(is_linked) - 1 and j < is_linked.shape[1] - 1:  # else no subword begins in it
            is_linked[i, j] = True
    # EOS has word number -1, which indexes the last row and column; these have no links.
    found = is_linked[src_words[:, None], tgt_words[None]]
    src, tgt = np.nonzero(found)
    return src, tgt


def link_bits(
    links: EncodedLinks,
    pairs: np.ndarray,
    rows: np.ndarray,
    begins: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, int, int],
) -> np.ndarray:
    """Which source positions of its row each target position is linked to, uint32 `[R, L, W]`.

    Bit m % 32 of number m // 32 is set if the position is linked to source position m.

    Args:
      links: the links of the whole corpus.
      pairs: numbers of the pairs in the batch `[sentences]`.
      rows: the row of each pair `[sentences]`.
      begins: the position in its row at which each pair begins, in the source and in the target,
        `[sentences]` each.
      shape: R, L and M.
    """
    firsts = links.offsets[pairs]
    counts = links.offsets[pairs + 1] - links.offsets[pairs]
    sentences = np.repeat(np.arange(len(pairs)), counts)
    before = np.cumsum(counts) - counts
    numbers = firsts[sentences] + np.arange(len(sentences)) - before[sentences]
    src, tgt = (
        own[numbers] + begin[sentences]
        for own, begin in zip((links.src, links.tgt), begins, strict=True)
    )
    bits = np.zeros((shape[0], shape[1], -(-shape[2] // BITS)), np.uint32)
    values = np.left_shift(np.uint32(1), (src % BITS).astype(np.uint32))
    np.bitwise_or.at(bits, (rows[sentences], tgt, src // BITS), values)
    return bits
