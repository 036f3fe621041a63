"""Word alignments as text: "0-0 1-2 2-1" for each pair, source word and target word from 0."""

import re
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.errors import DataError
from transformer_jax.text.corpora import TextLines
from transformer_jax.text.folder_corpus import Pair

LINK = re.compile(r"(\d{1,6})-(\d{1,6})", re.ASCII)

Links = tuple[tuple[int, int], ...]  # (source word, target word), each once, sorted


def words_of(line: str) -> list[str]:
    """What ASCII spaces separate, as tools for word alignment count words."""
    return [word.decode() for word in line.encode().split()]


def read_alignments(path: str | Path, pairs: Sequence[Pair]) -> list[Links]:
    """The links of each pair.

    Args:
      path: a file with a line for each pair; plain or .gz.
      pairs: the sentences, whose words are separated by spaces.

    Raises:
      DataError: the file cannot be read, has another number of lines, or a link is not of the form
        i-j or names a word that is not there; the message has the line's number.
    """
    lines = TextLines(Path(path))
    if len(lines) != len(pairs):
        raise DataError(
            f"{path} has {len(lines)} lines for {len(pairs)} pairs; give one line a pair, an empty "
            "one for a pair without links."
        )
    return [
        _links(line, pair, f"{path}, line {number}")
        for number, (line, pair) in enumerate(zip(lines, pairs, strict=True), start=1)
    ]


def _links(line: str, pair: Pair, where: str) -> Links:
    sizes = [len(words_of(side)) for side in pair]
    found = set()
    for text in words_of(line):
        link = LINK.fullmatch(text)
        if link is None:
            raise DataError(f"{where}: {text!r:.40} is no link; write source-target, such as 0-2.")
        numbers = int(link[1]), int(link[2])
        for number, size, side in zip(numbers, sizes, ("source", "target"), strict=True):
            if number >= size:
                raise DataError(
                    f"{where}: the link {text} names {side} word {number}, and the sentence has "
                    f"{size}, from 0."
                )
        found.add(numbers)
    return tuple(sorted(found))
