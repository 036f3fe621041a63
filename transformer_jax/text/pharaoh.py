"""Word alignments as text: "0-0 1-2 2-1" for each pair, source word and target word from 0."""

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.folder_corpus import AlignedWords, Links, Pair
from transformer_jax.text.lines import TextLines
from transformer_jax.text.words import words_of

log = logging.getLogger(__name__)
# If words are counted from 0, at least one of this many pairs with links has a link of word 0.
MANY_PAIRS = 100
LINK = re.compile(r"(\d{1,6})-(\d{1,6})", re.ASCII)


class AlignedLines(ByPosition[AlignedWords]):
    """The words of each pair, split at ASCII white space, and their links from a file."""

    def __init__(self, lines: TextLines, pairs: Sequence[Pair]):
        """Takes one line of links per pair; an empty line means no links.

        Raises:
          DataError: the numbers of lines and pairs differ.
        """
        if len(lines) != len(pairs):
            raise DataError(
                f"{lines.path} has {len(lines)} lines for {len(pairs)} pairs; give one line a "
                "pair, an empty one for a pair without links."
            )
        self.lines, self.pairs = lines, pairs

    def __len__(self) -> int:
        return len(self.lines)

    def items(self, indices: Sequence[int]) -> list[AlignedWords]:
        """The words and links of the pairs at these indices.

        Raises:
          DataError: a link is not of the form i-j, or names a word that the sentence does not
            have; the message gives the line's number.
        """
        return [
            _aligned(line, self.pairs[index], f"{self.lines.path}, line {index + 1}")
            for index, line in zip(indices, self.lines.items(indices), strict=True)
        ]


def read_alignments(path: str | Path, pairs: Sequence[Pair]) -> list[Links]:
    """The links of each pair; see `AlignedLines`. The file is plain or .gz."""
    found = [aligned.links for aligned in AlignedLines(TextLines(Path(path)), pairs)]
    warn_of_numbers(found)
    return found


def warn_of_numbers(pairs: Iterable[Links]) -> None:
    """Logs a warning if the links of many pairs name no word 0: they may be counted from 1."""
    linked = list(filter(None, pairs))
    firsts = np.min([np.min(links, axis=0) for links in linked], axis=0) if linked else [0, 0]
    if len(linked) >= MANY_PAIRS and min(firsts) > 0:
        log.warning(
            "the links of %d pairs name neither source word 0 nor target word 0: are words counted "
            "from 1?",
            len(linked),
        )


def _aligned(line: str, pair: Pair, where: str) -> AlignedWords:
    words = words_of(pair.src), words_of(pair.tgt)
    found = set()
    for text in words_of(line):
        link = LINK.fullmatch(text)
        if link is None:
            raise DataError(
                f"{where}: {text!r:.40} is not a link; write source-target, such as 0-2."
            )
        numbers = int(link[1]), int(link[2])
        for number, own, side in zip(numbers, words, ("source", "target"), strict=True):
            if number >= len(own):
                raise DataError(
                    f"{where}: the link {text} names {side} word {number}, and the sentence has "
                    f"{len(own)}, from 0."
                )
        found.add(numbers)
    return AlignedWords(*words, tuple(sorted(found)))
