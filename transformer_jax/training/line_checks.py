"""Warnings about texts whose lines do not look like pairs, from blocks of their lines."""

import collections
import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config.data import DataConfig
from transformer_jax.config.schema import Config
from transformer_jax.model.outputs.back_translation import BACK_TRANSLATION
from transformer_jax.text.built_in_corpus import BuiltInPairs
from transformer_jax.text.by_position import Joined, Selected
from transformer_jax.text.corpora import TextPairs
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.mixture import Coded, plain_parts, without_additions
from transformer_jax.text.sources import TAB
from transformer_jax.text.vocabulary import split_codes

log = logging.getLogger(__name__)
# Shares from which there is a warning: of lines that are equal, and of pairs without a source.
EQUAL_SHARE, MISSING_SHARE = 0.5, 0.1
LABEL_SHARE = 0.05  # of different lines of a block; texts have more, and labels fewer
# Real text (Europarl, news, manuals, captions) was cut into blocks of 1,000 (100) lines. The
# logarithms of the lengths of both sides, in characters, correlate at 0.81 (0.62) or more in each
# block. If one side is a line late, they correlate at 0.26 (0.51) or less. Of a long text only
# MOST_BLOCKS blocks are read, evenly spaced.
BLOCK_LINES, SMALLEST_BLOCK, MOST_BLOCKS, LEAST_CORRELATION = 1_000, 100, 100, 0.4
SHIFTS = (1, -1, 2, -2)
# LANGUAGE_LINES lines of each block are compared with the first text in each language. There is a
# warning if another language's trigrams are likelier by LANGUAGE_GAP nats a trigram. In real text
# (captions, news, Europarl, law, manuals) the right language is likelier by 1.0 to 2.0; two texts
# in one language differ by at most 0.03.
LANGUAGE_LINES, LANGUAGE_GAP = 20, 0.5
CODED_LINES = 1_000  # source lines of each text in which codes are looked for
INSIDE = 10  # characters; a shorter line may stand inside another one by chance
SHOWN = 40  # characters of a line in a message
LETTER = re.compile(r"[^\W\d_]")


def warn_of_texts(pairs: Sequence[Pair], config: Config) -> None:
    """Logs a warning for each text whose lines do not look like pairs.

    Each is read as it is in its files, without codes, and without the sentences before; blocks of
    its lines, not all of them.
    """
    seen = set[tuple[Any, ...]]()  # a text is read in several directions
    known = dict[str, tuple[Language, str]]()  # each one as in the first text, which is named
    for codes, text in _coded_parts(pairs):
        files = _files(text)
        key = (frozenset(files), *(text.indices[[0, -1]] if isinstance(text, Selected) else ()))
        if isinstance(text, BuiltInPairs) or (files and key in seen) or not len(text):
            continue
        seen.add(key)
        name = " and ".join(dict.fromkeys(file.name for file in files)) or "the text"
        _warn_of_codes(name, text, config.data.codes)
        lines = _Lines.of(text, config.data)
        _warn_of_odd_sides(name, lines, config.data)
        if config.model.features:  # the source lines are names of files
            continue
        _warn_of_unrelated_lines(name, lines, config.data)
        languages = _languages(codes, files, lines, config)
        if config.train.objective != BACK_TRANSLATION:  # which learns from a text and itself
            _warn_of_equal_sides(name, lines, config.data)
        for language, blocks in languages.values():
            texts = filter(None, map(Language, blocks))
            if language not in known and (with_letters := next(texts, None)):
                known[language] = with_letters, name
        _warn_of_other_languages(name, languages, lines.numbers, known)


class _Lines(NamedTuple):
    """Blocks of a text's lines, without white space around them."""

    sides: list[np.ndarray]  # of each source language, and the target's: object [blocks, size]
    numbers: np.ndarray  # of each block's first line in its file, from 1: int64 [blocks]
    once: np.ndarray  # indices into all blocks end to end, of each line once: the last two overlap

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
            own += [""] * (sources - len(own))  # what reads such a line refuses it
            rows.append([side.strip() for side in (*own[:sources], tgt)])
        sides = [np.array(side, object) for side in zip(*rows, strict=True)]
        places = text.indices[firsts] if isinstance(text, Selected) else firsts
        once = np.unique(np.add.outer(firsts, np.arange(size)), return_index=True)[1]
        return cls([side.reshape(-1, size) for side in sides], places + 1, once)

    def named(self, data: DataConfig) -> dict[str, np.ndarray]:
        """The sides by what a message calls them."""
        *sources, _ = self.sides
        one = ["source"] if len(sources) == 1 else [f"{own} text" for own in data.sources]
        return dict(zip([*one, "target"], self.sides, strict=True))


def _warn_of_unrelated_lines(name: str, lines: _Lines, data: DataConfig) -> None:
    """Logs a warning if the lengths of both sides do not correlate: a line of one may be missing.

    Each of several source languages is compared.
    """
    *sources, target = (np.vectorize(len, otypes=[int])(side) for side in lines.sides)
    blocks, size = target.shape
    labels = len(set(lines.sides[-1][0])) < LABEL_SHARE * size
    if size < SMALLEST_BLOCK or labels:
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
    """Logs a warning if a side is in another one in most lines, or many lack a source sentence."""
    sides = {own: side.ravel()[lines.once] for own, side in lines.named(data).items()}
    *sources, target = sides
    if len(sources) > 1:
        has_text = np.any([sides[own] != "" for own in sources], axis=0)
        for own in sources:
            missing, count = int((sides[own][has_text] == "").sum()), int(has_text.sum())
            if missing > MISSING_SHARE * count:
                log.warning("%s: %d of %d pairs have no %s", name, missing, count, own)
    for one, other in itertools.combinations(sides, 2):
        equal = int(((sides[one] == sides[other]) & (sides[one] != "")).sum())
        if equal > EQUAL_SHARE * (count := len(sides[target])):
            log.warning("%s: in %d of %d pairs the %s is the %s", name, equal, count, one, other)
            continue
        for inner, outer in ((one, other), (other, one)):
            both = zip(sides[inner], sides[outer], strict=True)
            inside = sum(len(text) >= INSIDE and text in whole for text, whole in both)
            if inside > EQUAL_SHARE * count:
                what = f"the {inner} stands inside the {outer}"
                log.warning("%s: in %d of %d pairs %s", name, inside, count, what)


def _warn_of_odd_sides(name: str, lines: _Lines, data: DataConfig) -> None:
    """Logs a warning if most lines of a side have a tab, or are one: nan, a picture's name."""
    for own, side in lines.named(data).items():
        all_lines = side.ravel()[lines.once]
        texts = all_lines[all_lines != ""]
        for text, count in collections.Counter(texts).most_common(1):
            if len(texts) > 1 and count > EQUAL_SHARE * len(texts):
                what = f"the {own} is {text[:SHOWN]!r}"
                log.warning("%s: in %d of %d pairs %s", name, count, len(all_lines), what)
        if (count := sum(TAB in text for text in texts)) > EQUAL_SHARE * len(all_lines):
            what = f"the {own} has a tab: is it a table of both sides?"
            log.warning("%s: in %d of %d pairs %s", name, count, len(all_lines), what)


class Language:
    """How likely texts are by the frequencies of trigrams of characters in some lines.

    A text of another language is less likely by more than LANGUAGE_GAP nats a trigram.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.counts = collections.Counter(_trigrams(lines))
        self.total = 2 * self.counts.total() + 1  # each trigram's count has one more

    def __bool__(self) -> bool:
        """Whether there was text."""
        return bool(self.counts)

    def nats(self, lines: Sequence[str]) -> float:
        """The mean negative logarithm of a trigram's probability; infinite without text."""
        found = [self.counts[trigram] + 1 for trigram in _trigrams(lines)]
        if not (found and self):
            return math.inf
        return math.log(self.total) - float(np.log(found).mean())


def _trigrams(lines: Sequence[str]) -> Iterator[str]:
    for line in filter(LETTER.search, lines):
        text = f" {line.lower()} "
        yield from map("".join, zip(text, text[1:], text[2:], strict=False))


def _coded_parts(pairs: Sequence[Pair], codes: str = "") -> Iterator[tuple[str, Sequence[Pair]]]:
    """As `plain_parts`, each with the codes that its source lines get."""
    if isinstance(pairs, Coded):
        yield from _coded_parts(pairs.pairs, codes + pairs.codes)
    elif isinstance(pairs, Joined):
        for part in pairs.parts:
            yield from _coded_parts(part, codes)
    else:
        yield from ((codes, part) for part in plain_parts(pairs))


def _languages(
    codes: str, files: Sequence[Path], lines: _Lines, config: Config
) -> dict[str, tuple[str, np.ndarray]]:
    """What the language of each side is called, and its blocks of lines, by the side's name.

    Of several directions, files name it; without pairs, codes name that of the target.
    """
    sides = lines.named(config.data)
    if config.train.objective == BACK_TRANSLATION:
        return {"target": (f"{codes.strip()} text", sides["target"])}
    if not config.data.directions:
        return {own: (own, blocks) for own, blocks in sides.items()}
    if len(files) != len(sides):  # of Parquet and TFDS none are known
        return {}
    names = [f"{Path(file.name.removesuffix('.gz')).suffix[1:]} text" for file in files]
    return {own: (name, sides[own]) for own, name in zip(sides, names, strict=True)}


def _warn_of_other_languages(
    name: str,
    sides: Mapping[str, tuple[str, np.ndarray]],
    numbers: np.ndarray,
    known: Mapping[str, tuple[Language, str]],
) -> None:
    """Logs a warning if a side looks like text of another language: files may be swapped.

    Args:
      name: of the text.
      sides: see `_languages`.
      numbers: of each block's first line.
      known: each language as it is in the first text, and that text's name.
    """
    for own, (language, blocks) in sides.items():
        wrong = dict[str, list[int]]()  # numbers of lines where blocks of another language begin
        for block, number in zip(blocks, numbers, strict=True):
            some = block[:: max(1, len(block) // LANGUAGE_LINES)]
            nats = {other: first.nats(some) for other, (first, _) in known.items()}
            best = min(nats, key=nats.__getitem__, default=language)
            if nats.get(best, math.inf) < nats.get(language, -math.inf) - LANGUAGE_GAP:
                wrong.setdefault(best, []).append(number)
        for other, firsts in wrong.items():
            log.warning(
                "%s: in %d of %d blocks of lines, first from line %d, the %s looks like the %s of "
                "%s: are sides swapped?",
                name,
                len(firsts),
                len(numbers),
                firsts[0],
                own,
                other,
                known[other][1],
            )


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


def _files(text: Any) -> list[Path]:
    """A text's files; of Parquet and TFDS none are known."""
    text = without_additions(text)
    if isinstance(text, Selected):
        return _files(text.elements)
    if isinstance(text, Joined):
        return [file for part in text.parts for file in _files(part)]
    return [file.path for file in text.files] if isinstance(text, TextPairs) else []
