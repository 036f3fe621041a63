"""What translations get right: words, sentences and BLEU; those of a run's test split."""

import contextlib
import functools
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.text.built_in_corpus import AlignedPair, built_in_pairs


@functools.cache
def pairs_of_test(count: int, invented_names: int = 0) -> tuple[AlignedPair, ...]:
    """The first pairs of the test split."""
    return tuple(built_in_pairs("test", count, invented_names=invented_names))


def words_of(line: str) -> list[str]:
    """The words of a line, without punctuation marks."""
    return re.findall(r"[\w'-]+", line)


def share_written(outputs: Sequence[str], wanted: Sequence[Sequence[str]]) -> float:
    """The share of the wanted words that the translations have, each as often as it is wanted.

    Args:
      outputs: one translation for each sentence.
      wanted: words of each sentence, at least one in all.
    """
    pairs = zip(outputs, wanted, strict=True)
    hits = sum((Counter(words_of(output)) & Counter(words)).total() for output, words in pairs)
    return hits / sum(map(len, wanted))


def bleu(outputs: Sequence[str], references: Sequence[str]) -> float:
    """sacreBLEU; NaN if there are no sentences."""
    import sacrebleu

    if not outputs:
        return math.nan
    return float(sacrebleu.corpus_bleu(list(outputs), [list(references)]).score)


def scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU, and the shares of words written and of translations that are the reference."""
    exact = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    return {
        "sentences": len(outputs),
        "bleu": bleu(outputs, references),
        "exact": exact / len(outputs),
        "words": share_written(outputs, [words_of(line) for line in references]),
    }


def evaluated(folder: Path, split: str = "test") -> Any:
    """What `evaluate` gives of a run; its text goes to standard error."""
    from transformer_jax.commands.evaluate import evaluate

    with contextlib.redirect_stdout(sys.stderr):
        return evaluate(str(folder), split=split)
