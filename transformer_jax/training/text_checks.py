"""Warnings about the text of a run, before it trains."""

import collections
import contextlib
import itertools
import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config.data import DataConfig, Text, directed, overlap, slice_of
from transformer_jax.config.schema import Config
from transformer_jax.errors import DataError
from transformer_jax.model.outputs.back_translation import BACK_TRANSLATION
from transformer_jax.text.built_in_corpus import BuiltInPairs
from transformer_jax.text.by_position import Joined, Selected
from transformer_jax.text.corpora import Corpus, TextPairs
from transformer_jax.text.encoded import EncodedPairs
from transformer_jax.text.folder_corpus import FolderCorpus, Pair
from transformer_jax.text.mixture import MixedCorpus, plain_parts, without_additions
from transformer_jax.text.sources import TAB
from transformer_jax.text.vocabulary import Vocabulary, split_codes

log = logging.getLogger(__name__)
REFERENCES = 1_000  # validation references that are looked at
# Shares from which there is a warning: of references that cannot be written, of validation pairs
# that are training pairs, of training pairs whose sides are equal, and of those without a source.
LOST_SHARE, KNOWN_SHARE, COPIED_SHARE, MISSING_SHARE = 0.01, 0.1, 0.5, 0.1
CHUNK_PAIRS = 50_000
# Nats per subword. Swapped sides in two languages: 1.7 to 4.4 on captions, news, Europarl, manuals
# (also news after captions, and after 500 pairs); sides of one language: below 0.1 either way.
SWAPPED_GAP = 0.5
CODED_LINES = 1_000  # source lines of each text in which codes are looked for
# In blocks of 1,000 (100) lines of real text (Europarl, news, manuals, captions) the logarithms of
# numbers of characters correlate at 0.81 (0.62) and more, and at 0.26 (0.51) and less where the
# lines of one side are one off. At most so many blocks of a text are looked at, evenly spaced.
BLOCK_LINES, SMALLEST_BLOCK, MOST_BLOCKS, LEAST_CORRELATION = 1_000, 100, 100, 0.4
SHIFTS = (1, -1, 2, -2)


def warn_of_lost_characters(pairs: Sequence[Pair], vocabulary: Vocabulary) -> None:
    """Logs a warning if the model can never write many of the first references."""
    references = [pair.tgt for pair in itertools.islice(pairs, REFERENCES)]
    target = vocabulary.target
    written = [target.decode(ids) for ids in target.encode_lines(references)]
    lost = sum(x.split() != y.split() for x, y in zip(references, written, strict=True))
    if lost > LOST_SHARE * len(references):
        log.warning(
            "%d of %d validation references have characters that the vocabulary changes, so the "
            "model can never write them; one with vocabulary.normalization=identity keeps them",
            lost,
            len(references),
        )


def warn_of_splits(corpus: Corpus, data: DataConfig, of_valid: str) -> None:
    """Logs a warning if training has pairs twice, or `evaluate` no test text, or known text.

    `of_valid` is the fingerprint of the validation text.
    """
    texts = directed(map(Text.of, data.train), data.directions)
    folder = os.path.abspath(data.path or "")
    for one, other in itertools.combinations(texts, 2):
        is_same = (one.direction, one.tag) == (other.direction, other.tag)
        stems = (os.path.normpath(os.path.join(folder, text.stem)) for text in (one, other))
        if is_same and overlap(*stems):
            log.warning(
                "data.train has pairs twice, in %r and %r: leave one out, or give one *%g",
                one.name,
                other.name,
                one.weight + other.weight,
            )
    if shared := data.train_pairs_in(data.test):
        log.warning("data.train=%r and the test text %r share pairs", *shared)
    elif isinstance(corpus, FolderCorpus):
        with contextlib.suppress(DataError):  # the next lines name what is missing
            train, test = (_sums_of_files(corpus, stems) for stems in (data.train, data.test))
            if train & test:
                log.warning("data.test=%r has files of the training text", data.test)
    if data.test:
        try:
            corpus.split("test")
            if corpus.fingerprint("test") == of_valid:
                log.warning("data.test=%r is the validation text", data.test)
        except DataError as error:
            log.warning("there is no test split for a later `evaluate`: %s", error)


def check_states(train: EncodedPairs, valid: EncodedPairs, states: int) -> None:
    """Logs how many training targets are longer than the states of their source: CTC writes none.

    Raises:
      DataError: all of a split are.
    """
    longer = [one.tgt_lengths() > states * one.src_lengths() for one in (train, valid)]
    for kind, is_longer in zip(("training", "validation"), longer, strict=True):
        if is_longer.all():
            raise DataError(
                f"Every {kind} target has more than {states} subwords for each of its source, more "
                "than model.parallel=ctc can write: no pair counts. Are the sides swapped?"
            )
    if count := int(longer[0].sum()):
        log.warning(
            "%d targets (%.1f %%) have more than %d subwords for each of the source: they do not "
            "count in training",
            count,
            100 * count / len(train),
            states,
        )


def warn_of_texts(pairs: Sequence[Pair], config: Config) -> None:
    """Logs a warning for each text whose lines do not look like pairs.

    Each is read as it is in its files, without codes, and without the sentences before; blocks of
    its lines, not all of them.
    """
    seen = set[tuple[Any, ...]]()  # a text is read in several directions
    for text in plain_parts(pairs):
        files = _files(text)
        key = (frozenset(files), *(text.indices[[0, -1]] if isinstance(text, Selected) else ()))
        if isinstance(text, BuiltInPairs) or (files and key in seen) or not len(text):
            continue
        seen.add(key)
        name = " and ".join(dict.fromkeys(file.name for file in files)) or "the text"
        _warn_of_codes(name, text, config.data.codes)
        if config.model.features:
            _warn_of_one_file(name, text)
            continue
        lines = _Lines.of(text, config.data)
        _warn_of_unrelated_lines(name, lines, config.data)
        if config.train.objective != BACK_TRANSLATION:  # it learns from a text and itself
            _warn_of_equal_sides(name, lines, config.data)


class _Lines(NamedTuple):
    """Blocks of a text's lines, without white space around them."""

    sides: list[np.ndarray]  # of each source language, and the target's: object [blocks, size]
    numbers: np.ndarray  # of each block's first line in its file, from 1: int64 [blocks]

    @classmethod
    def of(cls, text: Sequence[Pair], data: DataConfig) -> "_Lines":
        """Takes a text with at least one line."""
        size = min(len(text), BLOCK_LINES, max(SMALLEST_BLOCK, len(text) // 10))
        firsts = np.unique([*range(0, len(text) - size + 1, size), len(text) - size])
        if len(firsts) > MOST_BLOCKS:
            firsts = firsts[np.linspace(0, len(firsts) - 1, MOST_BLOCKS).astype(int)]
        sources = 1 if data.context else max(1, len(data.sources))
        rows = []
        for src, tgt in (pair for first in firsts for pair in text[first : first + size]):
            own = src.split(TAB) if data.context or sources > 1 else [src]
            rows.append([side.strip() for side in (*own[:sources], tgt)])
        sides = [np.array(side, object) for side in zip(*rows, strict=True)]
        places = text.indices[firsts] if isinstance(text, Selected) else firsts
        return cls([side.reshape(-1, size) for side in sides], places + 1)


def _warn_of_unrelated_lines(name: str, lines: _Lines, data: DataConfig) -> None:
    """Logs a warning if the lengths of both sides do not correlate: a line of one may be missing.

    Each of several source languages is compared.
    """
    *sources, target = (np.vectorize(len, otypes=[int])(side) for side in lines.sides)
    blocks, size = target.shape
    if size < SMALLEST_BLOCK:
        return
    for language, source in zip(data.sources, sources, strict=False):
        found = np.array([_correlation(source[i], target[i], 0) for i in range(blocks)])
        wrong = np.flatnonzero(found < LEAST_CORRELATION)
        if not len(wrong):
            continue
        first = wrong[0]
        shifted = [_correlation(source[first], target[first], by) for by in SHIFTS]
        best, later = max(zip(np.nan_to_num(shifted), SHIFTS, strict=True))
        log.warning(
            "%s: the lengths of %s do not correlate in %d of %d blocks of %d lines, first in that "
            "from line %d%s: do these lines belong together?",
            name,
            f"the {language} text and the target" if len(sources) > 1 else "both sides",
            len(wrong),
            blocks,
            size,
            lines.numbers[first],
            f", but do with the target {later:+d} lines on" if best > 2 * LEAST_CORRELATION else "",
        )


def _correlation(src: np.ndarray, tgt: np.ndarray, later: int) -> float:
    """The correlation of the logarithms of lengths; lines with a blank side do not count.

    It is NaN where too few are left, or a side is constant.

    Args:
      src, tgt: lengths of lines: int [size].
      later: source line i is compared with target line i + later.
    """
    at = np.arange(max(0, -later), len(src) - max(0, later))
    one, other = src[at], tgt[at + later]
    counts = (one > 0) & (other > 0)
    if counts.sum() < SMALLEST_BLOCK // 2:
        return math.nan
    logs = np.log([one[counts], other[counts]])
    return math.nan if (np.ptp(logs, axis=1) == 0).any() else float(np.corrcoef(logs)[0, 1])


def _warn_of_equal_sides(name: str, lines: _Lines, data: DataConfig) -> None:
    """Logs a warning if a side is another one in most lines, or many lack a source sentence."""
    sides = [side.ravel() for side in lines.sides]
    *sources, target = sides
    count = len(target)
    is_one = len(sources) == 1
    names = ["source" if is_one else f"{own} text" for own in data.sources[: len(sources)]]
    if not is_one:
        has_text = np.any([side != "" for side in sources], axis=0)
        for own, side in zip(names, sources, strict=True):
            if (missing := int((side[has_text] == "").sum())) > MISSING_SHARE * has_text.sum():
                log.warning("%s: %d of %d pairs have no %s", name, missing, has_text.sum(), own)
    for (one, first), (other, second) in itertools.combinations(
        zip([*names, "target"], sides, strict=False), 2
    ):
        if (equal := int(((first == second) & (first != "")).sum())) > COPIED_SHARE * count:
            log.warning("%s: in %d of %d pairs the %s is the %s", name, equal, count, one, other)


def _warn_of_codes(name: str, text: Sequence[Pair], codes: Sequence[str]) -> None:
    """Logs a warning if source lines have codes of their own, beside those that they get."""
    lines = [src for src, _ in itertools.islice(text, CODED_LINES)] if codes else []
    if has := sum(bool(split_codes(line, codes)[0]) for line in lines):
        log.warning(
            "%s: %d of the first %d source lines have a code of their own, and get another one "
            "(data.directions, @TAG)",
            name,
            has,
            len(lines),
        )


def _warn_of_one_file(name: str, text: Sequence[Pair]) -> None:
    """Logs a warning if most of the first source lines name the same recording or picture."""
    lines = [src.strip() for src, _ in itertools.islice(text, CODED_LINES)]
    named = [line for line in lines if line]
    for file, count in collections.Counter(named).most_common(1):
        if len(named) > 1 and count > COPIED_SHARE * len(named):
            log.warning(
                "%s: %d of the first %d lines are the file %s", name, count, len(lines), file
            )


def _files(text: Any) -> list[Path]:
    """A text's files; of Parquet and TFDS none are known."""
    text = without_additions(text)
    if isinstance(text, Selected):
        return _files(text.elements)
    if isinstance(text, Joined):
        return [file for part in text.parts for file in _files(part)]
    return [file.path for file in text.files] if isinstance(text, TextPairs) else []


def warn_of_equal_targets(corpus: Corpus, by_tag: bool) -> None:
    """Logs a warning if texts of different target languages have the same targets.

    Args:
      corpus: of training; only a mixture has several languages.
      by_tag: whether tags name languages, as for back-translation without pairs.
    """
    seen = list[tuple[str, list[str]]]()
    for text, own, split in corpus.parts("train") if isinstance(corpus, MixedCorpus) else ():
        language = text.direction.partition("-")[2] or (text.tag if by_tag else "")
        lines = [pair.tgt for pair in itertools.islice(own.split(split), CODED_LINES)]
        for other, known in seen:
            equal = sum(a == b != "" for a, b in zip(lines, known, strict=False))
            if language != other and equal > COPIED_SHARE * len(lines):
                log.warning(
                    "%d of the first %d lines of a training text are the same in %s and in %s",
                    equal,
                    len(lines),
                    other,
                    language,
                )
        seen.append((language, lines))


def warn_of_known_pairs(train: EncodedPairs, valid: EncodedPairs, vocabulary: Vocabulary) -> None:
    """Logs a warning if training shows much of the validation text, with whatever codes."""
    numbers = np.random.default_rng(0).integers(2**63, size=max(vocabulary.sizes), dtype=np.uint64)
    numbers[list(vocabulary.codes.values())] = 0
    src, tgt = np.concatenate([*_sums(train, numbers)], 1)
    own_src, own_tgt = np.concatenate([*_sums(valid, numbers)], 1)
    known = int(np.isin(own_src + 3 * own_tgt, src + 3 * tgt).sum())
    if known > KNOWN_SHARE * len(valid):
        log.warning(
            "%d of %d validation pairs are training pairs too, so scores on them say little: see "
            "data.valid",
            known,
            len(valid),
        )


def warn_of_swapped_sides(train: EncodedPairs, valid: EncodedPairs, vocabulary: Vocabulary) -> None:
    """Logs a warning if a side of the validation text looks like the other side of training.

    Compared is how likely its subwords are by their frequencies. With a vocabulary for each side
    they cannot be compared.
    """
    if not vocabulary.is_shared:
        return
    size = max(vocabulary.sizes)
    counts = [np.bincount(ids, minlength=size) + 1 for ids in (train.src_ids, train.tgt_ids)]
    src, tgt = (np.log(own / own.sum()) for own in counts)
    gaps = (tgt - src)[valid.src_ids].mean(), (src - tgt)[valid.tgt_ids].mean()
    if any(wrong := [gap > SWAPPED_GAP for gap in gaps]):
        log.warning(
            "%s of the validation text looks like the other side of training: are files swapped?",
            "each side" if all(wrong) else f"the {('source', 'target')[wrong.index(True)]}",
        )


def _sums_of_files(corpus: FolderCorpus, stems: Sequence[str]) -> set[bytes]:
    return {one for stem in stems for one in corpus.text_digests(slice_of(stem)[0])}


def _sums(pairs: EncodedPairs, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """The sum of the numbers of each sentence's subwords, uint64 [2, pairs], in chunks of pairs.

    Sentences with the same sum have the same subwords, whose order may differ.
    """
    for first in range(0, len(pairs), CHUNK_PAIRS):
        chunk = slice(first, min(first + CHUNK_PAIRS, len(pairs)) + 1)
        sums = []
        for ids, offsets in (
            (pairs.src_ids, pairs.src_offsets[chunk]),
            (pairs.tgt_ids, pairs.tgt_offsets[chunk]),
        ):
            of_each = numbers[ids[offsets[0] : offsets[-1]]]
            sums.append(np.add.reduceat(of_each, offsets[:-1] - offsets[0]))
        yield np.stack(sums)
