"""One file for two SentencePiece models and a table of pieces: a zip without compression."""

import io
import json
import zipfile
from typing import NamedTuple

from transformer_jax.errors import DataError

MAGIC = b"PK\x03\x04"  # how a zip begins, and no SentencePiece model does
SOURCE, TARGET, TABLE = "source.spm", "target.spm", "table.json"
MODIFIED = (1980, 1, 1, 0, 0, 0)  # of every member, so that the same content has the same bytes


class Bundle(NamedTuple):
    """The vocabulary of a Marian model."""

    source: bytes  # a SentencePiece model
    target: bytes  # a SentencePiece model, or the same one
    pieces: tuple[str, ...]  # by id; PAD, EOS, BOS and UNK come first
    languages: tuple[str, str]  # of the Moses normalizer of punctuation; "": do not normalize


def packed(bundle: Bundle) -> bytes:
    """The bytes of the file."""
    table = json.dumps({"languages": bundle.languages, "pieces": bundle.pieces}, indent=0)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as file:
        for name, content in (
            (SOURCE, bundle.source),
            (TARGET, bundle.target),
            (TABLE, table.encode()),
        ):
            file.writestr(zipfile.ZipInfo(name, MODIFIED), content)
    return written.getvalue()


def unpacked(content: bytes, name: str) -> Bundle:
    """The bundle in a file's bytes. Raises DataError, naming `name`, if there is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if any(one.compress_type != zipfile.ZIP_STORED for one in file.infolist()):
                raise ValueError("compressed")  # such a member may be of any size
            table = json.loads(file.read(TABLE))
            pieces, (src, tgt) = tuple(map(str, table["pieces"])), table["languages"]
            return Bundle(file.read(SOURCE), file.read(TARGET), pieces, (str(src), str(tgt)))
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, RecursionError):
        raise DataError(
            f"{name} is no vocabulary that `import` wrote: an uncompressed zip of {SOURCE}, "
            f"{TARGET} and {TABLE}. Import the model again."
        ) from None
