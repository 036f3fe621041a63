"""Reads Marian's vocabularies, vocab.yml."""

import re
from pathlib import Path

from transformer_jax.errors import DataError
from transformer_jax.files import read_utf8


def read_vocabulary_yml(path: Path) -> list[str]:
    """The pieces of a vocabulary by id.

    A line is `PIECE: ID` with a plain, 'single' or "double" quoted piece, or it is two lines,
    `? PIECE` and `: ID`. This is not a YAML parser: PyYAML refuses characters that YAML 1.1 forbids
    or takes for line ends, and its C parser dies of nested brackets.

    Raises:
      DataError: a line is none of these, or the ids are not 0, 1, 2, ...
    """
    pieces: dict[int, str] = {}
    waiting: str | None = None
    for number, line in enumerate(read_utf8(path).split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line in ("---", "..."):
            continue
        if waiting is None and line.startswith("? "):
            waiting = line[2:]
            continue
        piece, _, i = line.rpartition(":")
        piece = piece if waiting is None else waiting
        waiting = None
        if not i.strip().isdecimal():
            raise DataError(f"{path}, line {number}: {line!r} is not PIECE: ID.")
        if int(i) in pieces:
            raise DataError(f"{path}, line {number}: an earlier line has the id {int(i)} too.")
        pieces[int(i)] = unquoted(piece)
    if sorted(pieces) != list(range(len(pieces))):
        raise DataError(f"{path}: the ids of its {len(pieces)} pieces are not 0, 1, 2, ...")
    return [pieces[i] for i in range(len(pieces))]


# YAML 1.1, section 5.7; a backslash before any other character is dropped.
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b"}
ESCAPES |= {"v": "\v", "f": "\f", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}
ESCAPED = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")


def unquoted(piece: str) -> str:
    """A YAML scalar without its quotation marks and escapes."""
    if len(piece) > 1 and piece[0] == piece[-1] == "'":
        return piece[1:-1].replace("''", "'")
    if not (len(piece) > 1 and piece[0] == piece[-1] == '"'):
        return piece

    def plain(match: re.Match) -> str:
        code = match[1] or match[2] or match[3]
        return chr(int(code, 16)) if code else ESCAPES.get(match[4], match[4])

    return ESCAPED.sub(plain, piece[1:-1])
