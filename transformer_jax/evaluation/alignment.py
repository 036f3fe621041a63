"""Word alignments from encoder-decoder attention, and their error rates against gold alignments.

Dimension key
  B batch   N layers   H heads   L target subwords   M source subwords   J target words
  I source words   G gold links
"""

import functools
import itertools
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from transformer_jax.errors import DataError
from transformer_jax.evaluation.attention import padded_length
from transformer_jax.evaluation.explanations import explained
from transformer_jax.model.attention.maps import attention_maps
from transformer_jax.model.attention.traces import in_rows
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params
from transformer_jax.model.sides.transformer import watched_layer
from transformer_jax.text.batches import Packed
from transformer_jax.text.built_in_corpus import AlignedPair
from transformer_jax.text.sources import encode_sources
from transformer_jax.text.vocabulary import EOS, Vocabulary
from transformer_jax.text.words import NONE, spelled_words, subword_words

# A call of the model has at most BATCH sentence pairs, and fewer if a head would have more weights
# than CELLS, which is 64 pairs of 128 by 128 subwords.
BATCH, CELLS = 64, 2**20

Links = Sequence[tuple[int, int]]  # (source word, target word), 0-based, each once


class WordAlignment(NamedTuple):
    """For each target word of a sentence pair, the number of a source word; -1: none."""

    src_words: list[str]  # as the vocabulary normalizes them
    tgt_words: list[str]
    heads_NHJ: np.ndarray  # int, by each layer's and head's weights
    # By the mean of a layer's heads, int; in model.watched_layer, of its model.watched_heads.
    mean_NJ: np.ndarray


class LinkScores(NamedTuple):
    """How good links are over a corpus (Och and Ney 2003); best if there is nothing to count."""

    error_rate: float  # 0 if all sure links are found, and no others but possible ones
    precision: float  # share of the links found that are possible
    recall: float  # share of the sure links that are found


class AlignmentErrors(NamedTuple):
    """Alignment error rates over a corpus, each from 0 (the gold alignment) to 1."""

    heads_NH: np.ndarray  # float64, for each layer and head
    mean_N: np.ndarray  # float64, for the mean of the weights of a layer's heads
    diagonal: float  # for the baseline, which uses only the numbers of words
    pairs: int
    links: int  # number of gold links


def links(weights_NHLM: np.ndarray, src_words_M: np.ndarray, tgt_words_L: np.ndarray) -> np.ndarray:
    """The source word with the largest weight for each target word, int `[layers, heads, J]`.

    A target word's weights are the mean of its subwords' weights; a source word's weight is the sum
    of its subwords' weights. Subwords that belong to no word, such as EOS, are ignored.

    Args:
      weights_NHLM: `[layers, heads, tgt_len, src_len]`; row l is used to predict subword l.
      src_words_M: the word of each source subword, or -1 `[src_len]`.
      tgt_words_L: the word of each target subword, or -1 `[tgt_len]`.

    Returns:
      0-based words, of equal weights the first; -1 for a target word in which no subword begins. J
      is the number of target words up to the last one in which a subword begins.
    """
    src_MI = src_words_M[:, None] == np.arange(src_words_M.max() + 1)
    tgt_LJ = tgt_words_L[:, None] == np.arange(tgt_words_L.max() + 1)
    # Sums over a target word's subwords are enough: they have the same maximum as the means.
    sums_NHJI = np.einsum("NHLM,LJ,MI->NHJI", weights_NHLM, tgt_LJ, src_MI, optimize=True)
    if not sums_NHJI.shape[-1]:  # a blank source
        return np.full(sums_NHJI.shape[:-1], NONE)
    return np.where(tgt_LJ.any(0), sums_NHJI.argmax(-1), NONE)


def shifted(words_L: np.ndarray, shift: int) -> np.ndarray:
    """The word that each position's weights are taken for: that of the position `shift` later.

    Args:
      words_L: the word of each position's own subword, or -1.
      shift: -1: the subword just read; 0: the one that is predicted; 1: the one after it.
    """
    padded = np.pad(words_L, 1, constant_values=NONE)
    return padded[1 + shift : 1 + shift + len(words_L)]


def diagonal(src_words: int, tgt_words: int) -> np.ndarray:
    """For each target word, the source word at the same relative position, int `[tgt_words]`."""
    steps = max(1, tgt_words - 1)
    return (2 * np.arange(tgt_words) * (src_words - 1) + steps) // (2 * steps)


def error_rate(found: Sequence[np.ndarray], gold: Sequence[Links]) -> np.ndarray:
    """Alignment error rate over a corpus, float64 `[...]`: 0 if all links are right, 1 if none is.

    1 - (|A & S| + |A & P|) / (|A| + |S|), where A are the links found and S and P the sure and
    possible gold links. Here S = P.

    Args:
      found: for each sentence pair, a source word per target word, int `[..., J]`; -1: no link.
      gold: for each sentence pair, its links.

    Source: Och and Ney 2003.
    """
    right: Any = 0
    counted: Any = 0
    for found_J, pair_links in zip(found, gold, strict=True):
        # From word J on no subword begins, so no link of these words is found.
        links = set(pair_links)
        inside = [(i, j) for i, j in links if j < found_J.shape[-1]]
        src_G, tgt_G = np.array(inside, int).reshape(-1, 2).T
        right = right + (found_J[..., tgt_G] == src_G).sum(-1)
        counted = counted + (found_J != NONE).sum(-1) + len(links)
    return np.where(np.equal(counted, 0), 0.0, 1 - 2 * right / np.maximum(counted, 1))[()]


LinkSet = Set[tuple[int, int]]  # (source word, target word)


def link_scores(
    found: Sequence[LinkSet], sure: Sequence[LinkSet], possible: Sequence[LinkSet] | None = None
) -> LinkScores:
    """Error rate, precision and recall over a corpus; each argument has a set for each pair.

    Args:
      found: links A.
      sure: gold links S.
      possible: gold links P, which contain S; None: S.
    """
    allowed = sure if possible is None else possible
    hits = sum(len(own & right) for own, right in zip(found, sure, strict=True))
    valid = sum(len(own & right) for own, right in zip(found, allowed, strict=True))
    links, wanted = sum(map(len, found)), sum(map(len, sure))
    return LinkScores(
        1 - (hits + valid) / (links + wanted) if links + wanted else 0.0,
        valid / links if links else 1.0,
        hits / wanted if wanted else 1.0,
    )


def grow_diagonal(forward: LinkSet, backward: LinkSet) -> set[tuple[int, int]]:
    """The links that both directions have, grown by those of one direction beside them.

    Of the eight neighbors of a link, those that one direction has are added if one of their two
    words has no link yet. Each added link grows in turn.

    Args:
      forward, backward: (source word, target word), in this order for both directions.

    Source: Koehn, Och and Marcu 2003, "grow-diag"; the order is that of the words.
    """
    grown, either = set(forward & backward), forward | backward
    src_words, tgt_words = ({link[side] for link in grown} for side in (0, 1))
    waiting = sorted(grown)
    for i, j in waiting:
        for link in itertools.product((i - 1, i, i + 1), (j - 1, j, j + 1)):
            is_free = link[0] not in src_words or link[1] not in tgt_words
            if is_free and link in either:
                grown.add(link)
                src_words.add(link[0])
                tgt_words.add(link[1])
                waiting.append(link)
    return grown


class Aligner(NamedTuple):
    """The part of encoder-decoder attention that aligns words best."""

    layer: int  # from 0
    head: int | None  # from 0; None: the mean of the layer's heads
    error_rate: float


def best_aligner(found: Sequence[WordAlignment], gold: Sequence[Links]) -> Aligner:
    """The layer's mean, or the head, with the lowest alignment error rate; a mean if equal.

    Raises:
      DataError: there are no sentence pairs.
    """
    if not found:
        raise DataError("There are no sentence pairs to align by.")
    means_N = error_rate([one.mean_NJ for one in found], gold)
    heads_NH = error_rate([one.heads_NHJ for one in found], gold)
    if means_N.min() <= heads_NH.min():
        layer = int(means_N.argmin())
        return Aligner(layer, None, float(means_N[layer]))
    layer, head = map(int, np.unravel_index(heads_NH.argmin(), heads_NH.shape))
    return Aligner(layer, head, float(heads_NH[layer, head]))


def alignment_error_rates(
    model: EncoderDecoder, params: Params, vocabulary: Vocabulary, pairs: Sequence[AlignedPair]
) -> AlignmentErrors:
    """How well each head of the encoder-decoder attention aligns the words of given translations.

    Args:
      model: a model with a Transformer decoder.
      params: its parameters.
      vocabulary: its vocabulary.
      pairs: at least one; all are padded to the longest, so that one compiled program suffices.

    Raises:
      RunError: the vocabulary normalizes the text, so that subwords do not spell the words.
    """
    sides = (
        encode_sources(vocabulary, [pair.src for pair in pairs], model.config.sources),
        vocabulary.target.encode_lines([pair.tgt for pair in pairs]),
    )
    src, tgt = ([np.append(ids, EOS) for ids in side] for side in sides)
    words = [(pair.src_words, pair.tgt_words) for pair in pairs]
    found = list(align_words(model, params, vocabulary, src, tgt, words))
    gold = [pair.alignment for pair in pairs]
    straight = [diagonal(len(pair.src_words), len(pair.tgt_words)) for pair in pairs]
    return AlignmentErrors(
        error_rate([one.heads_NHJ for one in found], gold),
        error_rate([one.mean_NJ for one in found], gold),
        float(error_rate(straight, gold)),
        len(pairs),
        sum(map(len, gold)),
    )


def align_words(
    model: EncoderDecoder,
    params: Params,
    vocabulary: Vocabulary,
    src: Sequence[np.ndarray],
    tgt: Sequence[np.ndarray],
    words: Sequence[tuple[Sequence[str], Sequence[str]]] | None = None,
    full_context: bool = False,
    explain: str | None = None,
    shift: int = 0,
) -> Iterator[WordAlignment]:
    """Yields the word alignment of each given translation, by encoder-decoder attention.

    Args:
      model: a model with a Transformer decoder.
      params: its parameters.
      vocabulary: its vocabulary.
      src: subwords of each source, EOS included, int `[src_len]`.
      tgt: subwords of each translation, EOS included, int `[tgt_len]`.
      words: source and target words of each pair; None: the parts between spaces.
      full_context: whether the decoder sees the whole target (train.alignment_context).
      explain: a name in EXPLANATIONS, for one layer of one head in place of the weights.
      shift: see `shifted`.

    Raises:
      RunError: the subwords do not spell the words.
    """
    watched, heads = watched_layer(model.config), model.config.watched_heads
    given = full_context, explain
    weights = cross_weights(model, params, src, tgt, *given) if len(src) else iter(())
    for number, (src_ids, tgt_ids, weights_NHLM) in enumerate(zip(src, tgt, weights, strict=True)):
        pieces = vocabulary.pieces(src_ids), vocabulary.target.pieces(tgt_ids)
        src_words, tgt_words = words[number] if words else map(spelled_words, pieces)
        tgt_words_L = shifted(subword_words(pieces[1], tgt_words), shift)
        word_numbers = subword_words(pieces[0], src_words), tgt_words_L
        heads_NHJ = links(weights_NHLM, *word_numbers)
        means_NLM = weights_NHLM.mean(1)
        if explain is None and watched < len(means_NLM):
            means_NLM[watched] = weights_NHLM[watched, :heads].mean(0)
        mean_NJ = links(means_NLM[:, None], *word_numbers)[:, 0]
        yield WordAlignment(list(src_words), list(tgt_words), heads_NHJ, mean_NJ)


def cross_weights(
    model: EncoderDecoder,
    params: Params,
    src: Sequence[np.ndarray],
    tgt: Sequence[np.ndarray],
    full_context: bool = False,
    explain: str | None = None,
) -> Iterator[np.ndarray]:
    """Yields the "cross" weights of `pair_attention` for each pair, computed in batches.

    Args:
      model, params, src, tgt, full_context, explain: as in `align_words`; at least one source.

    Yields:
      For each pair, float32 `[layers, heads, tgt_len, src_len]`.
    """
    src_length, tgt_length = (padded_length(max(map(len, side)), model) for side in (src, tgt))
    rows = max(1, min(BATCH, len(src), CELLS // (src_length * tgt_length)))
    for first in range(0, len(src), rows):
        src_part, tgt_part = src[first : first + rows], tgt[first : first + rows]
        pairs = in_rows(src_part, tgt_part, rows, (src_length, tgt_length))
        if explain is None:
            found = _cross_attention(model, params, *pairs[:2], full_context)
        else:
            found = explained(model, params, pairs, explain)["cross"]
        weights_BNHLM = np.asarray(found)
        for row, (src_ids, tgt_ids) in enumerate(zip(src_part, tgt_part, strict=True)):
            yield weights_BNHLM[row, :, :, : len(tgt_ids), : len(src_ids)]


@functools.partial(jax.jit, static_argnames=("model", "full_context"))
def _cross_attention(
    model: Any, params: Any, source: Packed, target: Packed, full_context: bool
) -> Array:
    """Weights `[batch, layers, heads, tgt_len, src_len]`; the target's ids are shifted right."""
    return attention_maps(model, params, source, target, full_context)["cross"]
