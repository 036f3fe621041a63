"""Sentences in their documents: the sentences before a sentence, as further source sentences.

A source line has the sentence, then the one before it in its document, the one before that, and so
on, with tabs between them (sources.py): "it sleeps .\\tthe cat is old ." Where a document begins,
there is nothing before. So a source that is cut loses the oldest sentence.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.sources import TAB, in_one_line
from transformer_jax.text.vocabulary import split_codes


class InDocuments(ByPosition[Pair]):
    """Pairs whose source lines have the sentences before them; see the module."""

    def __init__(self, pairs: Any, starts: np.ndarray, context: int):
        """Takes a ByPosition of pairs, where each one's document starts, and how many to add."""
        self.pairs, self.starts, self.context = pairs, starts, context

    def __len__(self) -> int:
        return len(self.pairs)

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at these indices."""
        before = {
            i: range(i - 1, max(int(self.starts[i]), i - self.context) - 1, -1) for i in indices
        }
        needed = sorted({one for i, others in before.items() for one in (i, *others)})
        pairs = dict(zip(needed, self.pairs.items(needed), strict=True))
        found = []
        for i in indices:
            others = [pairs[one].src for one in before[i]]
            found.append(Pair(with_context(pairs[i].src, others, self.context), pairs[i].tgt))
        return found


def with_context(sentence: str, before: Sequence[str], context: int) -> str:
    """A source line of a sentence and those before it, the nearest first; a blank one is blank."""
    if not sentence.strip():
        return sentence
    missing = [""] * (context - len(before))
    return in_one_line([sentence, *before, *missing])


class InContext:
    """Adds the sentences before to the source lines of a text, one line after the other."""

    def __init__(self, context: int, codes: Container[str] = ()):
        """Takes the number of sentences to add, which may be 0, and codes, which are not added."""
        self.context, self.codes = context, codes
        self.before: list[str] = []

    def __call__(self, line: str) -> str:
        """The line with its context; a blank line ends a document.

        A line that has a tab has its context already.
        """
        _, sentence = split_codes(line.partition(TAB)[0], self.codes)
        found = line if TAB in line else with_context(line, self.before, self.context)
        self.before = [sentence, *self.before][: self.context] if sentence.strip() else []
        return found


def starts_by_name(names: Sequence[str], pairs: Sequence[Pair], path: str) -> np.ndarray:
    """Where each pair's document starts, int64 [pairs], by the names of documents, a line a pair.

    Raises:
      DataError: there is not a name for each pair.
    """
    if "" in (stripped := [name.strip() for name in names]):
        number = stripped.index("") + 1
        raise DataError(f"{path}, line {number} is blank: line n names the document of pair n.")
    if len(names) != len(pairs):
        raise DataError(
            f"{path} has {len(names)} lines, and the text has {len(pairs)}: line n names the "
            "document of pair n."
        )
    return _starts(before != name for before, name in zip([None, *names], names, strict=False))


def starts_by_blanks(pairs: Sequence[Pair]) -> np.ndarray:
    """The same, where pairs that are blank on both sides end documents."""
    blank = np.array([not src.strip() and not tgt.strip() for src, tgt in pairs], bool)
    return _starts(blank | np.append(True, blank[:-1]))


def _starts(begins: Iterable[bool]) -> np.ndarray:
    """For each pair, the newest one at which a document begins."""
    places = np.fromiter((i if one else 0 for i, one in enumerate(begins)), np.int64)
    return np.maximum.accumulate(places)
