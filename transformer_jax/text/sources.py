"""Several source sentences of a pair in one source: a sentence in two languages, for instance.

As text they are one line with a tab between the sentences. As subwords each of them ends in EOS,
and positions begin again after it, so a batch needs no further array: where a position is 0, a
sentence begins.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.text.vocabulary import EOS, MergeDropout, Vocabulary

TAB = "\t"
SHOWN = 40  # characters of a line in a message


def in_one_line(sentences: Sequence[str]) -> str:
    """The source sentences of a pair as one line; with several, their own tabs become spaces.

    Without a sentence the line is blank, as for a language model; its subwords are one EOS.
    """
    if len(sentences) == 1:
        return sentences[0]
    return TAB.join(sentence.replace(TAB, " ") for sentence in sentences)


def encode_sources(
    vocabulary: Vocabulary, lines: Sequence[str], count: int, dropout: MergeDropout | None = None
) -> list[np.ndarray]:
    """Subword ids of each source line: `count` sentences with EOS between them, not at the end.

    A line without text has no ids, and a sentence without text in another line only its EOS.

    Args:
      vocabulary: that of the source.
      lines: the lines. With `count` 1 a tab is white space.
      count: the model's source sentences; 0: a language model.
      dropout: of the subwords; see `Vocabulary.encode_lines`.

    Raises:
      DataError: a line does not have `count` sentences.
    """
    if count == 0:
        if any(line.strip() for line in lines):
            raise DataError(
                "The model reads no source (model.encoder='none'), and there is text. Leave the "
                "source out, or give a blank line for each text (`attention '' --target=TEXT "
                "--kind=decoder`)."
            )
        return [np.zeros(0, np.int32)] * len(lines)
    if count == 1:
        return vocabulary.encode_lines(lines, dropout)
    columns = [line.split(TAB) if line.strip() else [""] * count for line in lines]
    for line, sentences in zip(lines, columns, strict=True):
        if len(sentences) != count:
            shown = line if len(line) <= SHOWN else line[:SHOWN] + "..."
            raise DataError(
                f"The source line {shown!r} has {len(sentences) - 1} tabs. The model reads "
                f"model.sources={count} sentences: a tab between them (`paste FILE FILE`; "
                "data.context: the one before it second)."
            )
    flat = [sentence for sentences in columns for sentence in sentences]
    encoded = vocabulary.encode_lines(flat, dropout)
    starts = range(0, len(flat), count)
    return [_with_ends(encoded[start : start + count]) for start in starts]


def _with_ends(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """The sentences as one array, with EOS after each but the last; empty if all are."""
    if not any(map(len, sentences)):
        return np.zeros(0, np.int32)
    first, *others = sentences
    ended = [part for ids in others for part in ([EOS], ids)]
    return np.concatenate([first, *ended], dtype=np.int32)


def positions_of(ids: Any, array: Any = np, cummax: Any = np.maximum.accumulate) -> Any:
    """The position of each subword in its own source sentence, from 0: int32 `[rows, length]`.

    Args:
      ids: int32 `[rows, length]`, the source of one pair a row; its sentences end in EOS.
      array: numpy, or jax.numpy in a compiled program.
      cummax: the cumulative maximum along axis 1, there jax.lax.cummax.
    """
    places = array.broadcast_to(array.arange(ids.shape[1], dtype=np.int32), ids.shape)
    after_end = array.roll(ids == EOS, 1, axis=1) & (places > 0)
    return places - cummax(array.where(after_end, places, 0), axis=1)
