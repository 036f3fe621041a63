"""Segments a line that arrives in parts: a word's subwords come as soon as the word is complete.

A word is complete at white space, or where its line ends. Each time, all complete words of the line
are segmented together, so a word gets the subwords that it has in the whole line: if no piece
crosses white space, SentencePiece splits each word by itself, and later words do not change the
subwords of earlier ones.
"""

import numpy as np

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text.vocabulary import LANGUAGE, SPACE, Vocabulary, reads_code

WHITE_SPACE = tuple(c for c in map(chr, range(0x3001)) if c.isspace())


def word_ends(vocabulary: Vocabulary) -> tuple[str, ...]:
    """The characters that end a word: white space that the vocabulary turns into a space.

    Raises:
      ConfigError: text after white space may change the subwords before it.
    """
    crossing = [one for one in vocabulary.pieces(range(vocabulary.size)) if SPACE in one[1:]]
    reasons = {
        f"it has pieces that cross white space, such as {crossing[:1]}": bool(crossing),
        "it keeps white space that is repeated": vocabulary.normalize(" a  b ") != "a b",
        "it normalizes punctuation across words": vocabulary.normalizes_punctuation,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise ConfigError(
                f"The run's vocabulary cannot be used word by word, because {reason}. Translate "
                "whole lines: leave out --simultaneous."
            )
    return tuple(c for c in WHITE_SPACE if vocabulary.normalize(f"a{c}b") == "a b")


class ArrivingLine:
    """The part of a line that has arrived, and the subwords returned so far."""

    def __init__(self, vocabulary: Vocabulary, ends: tuple[str, ...], begun: str = "") -> None:
        """Begins a line; `ends` is the result of `word_ends`, and `begun` is before its text."""
        self.vocabulary, self.ends, self.begun = vocabulary, ends, begun
        self.text = begun
        self.complete = 0
        self.given = np.array([], np.int32)

    def add(self, text: str, is_end: bool) -> np.ndarray:
        """The subwords of the words that `text` completes, without EOS: int32 [subwords].

        Args:
          text: the next part of the line, without a line feed.
          is_end: whether the line ends after it.

        Raises:
          DataError: in the longer line, subwords that were already returned would be different; or
            it begins with the code of a language that the run does not know, or after `begun`.
        """
        self.text += text
        if is_end:
            self.text = self.text.removesuffix("\r")
        complete = len(self.text)
        if not is_end:
            complete = max(self.text.rfind(one) for one in self.ends) + 1
        if complete == self.complete and not is_end:
            return self.given[:0]
        self.complete = complete
        first = LANGUAGE.match(self.text[len(self.begun) : complete])
        if first and (self.begun or not reads_code(self.vocabulary, first[1])):
            raise DataError(
                f"A line begins with {first[1]}, and --simultaneous knows "
                f"{', '.join(self.vocabulary.codes)}; --to is for all lines. Leave one out."
            )
        (found,) = self.vocabulary.encode_lines([self.text[:complete]])
        new = found[len(self.given) :]
        if not np.array_equal(found[: len(self.given)], self.given):
            raise DataError(
                f"The subwords of {self.text!r} are not those of its words read one by one. "
                "Translate whole lines: leave out --simultaneous."
            )
        self.given = found
        return new
