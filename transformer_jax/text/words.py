"""Which word a subword belongs to."""

import re
from collections.abc import Sequence

import numpy as np

from transformer_jax.errors import RunError
from transformer_jax.text.vocabulary import LANGUAGE, SPACE

NONE = -1  # the word of a subword that belongs to no word, and the link of an unlinked word
END = "</s>"  # EOS as a piece; text that spells it has other pieces
BYTE = re.compile("<0x([0-9A-F]{2})>")


def words_of(line: str) -> list[str]:
    """The words of a line, split at ASCII white space, as word alignment tools count them."""
    return [word.decode() for word in line.encode().split()]


def subword_words(pieces: Sequence[str], words: Sequence[str]) -> np.ndarray:
    """The 0-based word in which each subword begins, int `[subwords]`; -1 for EOS and a lone space.

    Args:
      pieces: the subwords of a pair's side as SentencePiece writes them, EOS last.
      words: the sentence's words. Joined, they are its text without spaces.

    Raises:
      RunError: the subwords do not spell the words.
    """
    spelled = [_octets(piece).replace(SPACE.encode(), b"") for piece in pieces[:-1]]
    if b"".join(spelled) != "".join(words).encode():
        raise RunError(
            f"The subwords {' '.join(pieces)} do not spell {' '.join(words)}: links between words "
            "need a vocabulary that keeps the text, such as vocabulary.normalization=identity."
        )
    lengths = np.array([*map(len, spelled), 0])  # in bytes; EOS has none
    word_of_byte = np.repeat(np.arange(len(words) + 1), [*(len(w.encode()) for w in words), 1])
    return np.where(lengths > 0, word_of_byte[np.cumsum(lengths) - lengths], NONE)


def places_in_words(pieces: Sequence[str], words: Sequence[str]) -> np.ndarray | None:
    """Like `subword_words`, but the vocabulary may have changed spellings, such as capitals.

    If the subwords spell as many words between spaces as are given, word n of them counts as given
    word n. Otherwise they must spell the given words exactly; if they do not, this returns None.
    """
    if len(spelled := spelled_words(pieces)) == len(words):
        return subword_words(pieces, spelled)
    try:
        return subword_words(pieces, words)
    except RunError:
        return None


def spelled_words(pieces: Sequence[str]) -> list[str]:
    """The words that a sentence's subwords spell, between spaces; the last subword is EOS."""
    spelled = b"".join(map(_octets, pieces[:-1])).split(SPACE.encode())
    return [word.decode(errors="replace") for word in spelled if word]


def _octets(piece: str) -> bytes:
    """UTF-8 of a subword; a byte piece can be part of a character, and EOS is like a space.

    A code of a language or a tag, such as >>de<<, belongs to no word.
    """
    if LANGUAGE.fullmatch(piece):
        return b""
    if piece == END:  # between two source sentences (sources.py)
        return SPACE.encode()
    found = BYTE.fullmatch(piece)
    return bytes.fromhex(found[1]) if found else piece.encode()
