"""The vocabulary of a CTranslate2 folder, which is a list of tokens for each side.

If the folder has SentencePiece models, tokens are their pieces. Otherwise a line is tokens with
spaces between, as the engine itself takes them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import DataError, UserError
from transformer_jax.files import read_utf8
from transformer_jax.interop.huggingface import SIDES
from transformer_jax.interop.imported import Special, only_file, read_sentencepiece
from transformer_jax.text.bundle import Bundle
from transformer_jax.text.vocabulary import SPACE
from transformer_jax.text.vocabulary_training import word_splitter

PADS = ("<blank>", "<pad>")


def read_tokens(folder: Path, side: str, unknown: Any, rows: int) -> list[str]:
    """The tokens of a side by id. The engine adds the unknown one if the file lacks it."""
    files = [f"{name}_vocabulary.{kind}" for name in ("shared", side) for kind in ("json", "txt")]
    path = only_file(folder, f"vocabulary of the {side}", *files)
    text = read_utf8(path)
    if path.suffix == ".txt" and text.count("\r\n") == text.count("\n"):  # a checkout's line ends
        text = text.replace("\r\n", "\n")
    try:
        tokens = json.loads(text) if path.suffix == ".json" else text.removesuffix("\n").split("\n")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a vocabulary: {error}.") from None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise DataError(f"{path} is not a list of tokens.")
    if len(tokens) == rows - 1 and unknown not in tokens:
        tokens = [*tokens, str(unknown)]
    if len(set(tokens)) < len(tokens):
        raise DataError(f"{path} has a token twice.")
    return tokens


def special_ids(
    folder: Path, tokens: Sequence[str], unknown: Any, end: Any, start: str | None
) -> Special:
    """The ids of the special tokens; `start` is the decoder's first input, None: a zero vector.

    Raises DataError if there is no token that ends a sentence.
    """

    def id_of(*names: Any) -> int | None:
        return next((tokens.index(name) for name in names if name in tokens), None)

    if (eos := id_of(end)) is None:
        raise DataError(f"{folder}: its eos_token, {end!r}, is not in its vocabulary.")
    return Special(id_of(*PADS), eos, id_of(unknown), id_of(start))


def bundle_of(
    folder: Path,
    tokens: Sequence[Sequence[str]],
    special: Sequence[Special],
    languages: tuple[str, str],
) -> Bundle:
    """The tokens as pieces of the folder's SentencePiece models, or as words."""
    if any(path.suffix in (".spm", ".model") for path in folder.iterdir()):
        source, target = (
            read_sentencepiece(
                only_file(folder, f"SentencePiece model of the {side}", f"{side}.spm", "*.model")
            )
            for side in SIDES
        )
        pieces = [tuple(own) for own in tokens]
    elif any(SPACE in token for own in tokens for token in own):
        raise UserError(
            f"{folder} has pieces of SentencePiece models, but not the models, which split text "
            "into them. Copy them there as source.spm and target.spm."
        )
    else:
        source, target = (
            word_splitter(token for i, token in enumerate(own) if i not in ids)
            for own, ids in zip(tokens, special, strict=True)
        )
        pieces = [
            tuple(token if i in ids else SPACE + token for i, token in enumerate(own))
            for own, ids in zip(tokens, special, strict=True)
        ]
    return Bundle(
        source, target, pieces[0], languages, None if len(set(pieces)) == 1 else pieces[1]
    )
