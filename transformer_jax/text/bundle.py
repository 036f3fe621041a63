"""One file for two SentencePiece models and the tables of their pieces: an uncompressed zip."""

import io
import json
import zipfile
from typing import NamedTuple

from transformer_jax.errors import DataError

MAGIC = b"PK\x03\x04"  # the first bytes of a zip; no SentencePiece model begins with them
SOURCE, TARGET, TABLE = "source.spm", "target.spm", "table.json"
MODIFIED = (1980, 1, 1, 0, 0, 0)  # date of every member: the same content gives the same bytes


class Bundle(NamedTuple):
    """The vocabulary of a Marian model, or of two SentencePiece models trained here."""

    source: bytes  # a SentencePiece model
    target: bytes  # a SentencePiece model, or the same one
    pieces: tuple[str, ...]  # by id; PAD, EOS, BOS and UNK come first
    languages: tuple[str, str]  # for the Moses normalizer of punctuation; "": do not normalize
    target_pieces: tuple[str, ...] | None = None  # None: `pieces` serves both sides

    @property
    def tables(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The pieces of source and target by id."""
        return self.pieces, self.pieces if self.target_pieces is None else self.target_pieces


def packed(bundle: Bundle) -> bytes:
    """The bytes of the file."""
    values = {"languages": bundle.languages, "pieces": bundle.pieces}
    if bundle.target_pieces is not None:
        values["target_pieces"] = bundle.target_pieces
    table = json.dumps(values, indent=0)
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
                raise ValueError("compressed")  # it could expand to any size
            table = json.loads(file.read(TABLE))
            pieces = tuple(map(str, table["pieces"]))
            src, tgt = table["languages"]
            own = table.get("target_pieces")
            target_pieces = None if own is None else tuple(map(str, own))
            models = file.read(SOURCE), file.read(TARGET)
            return Bundle(*models, pieces, (str(src), str(tgt)), target_pieces)
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError, RuntimeError):
        raise DataError(
            f"{name} is not a vocabulary of this project, which is an uncompressed zip of "
            f"{SOURCE}, {TARGET} and {TABLE}. Copy it again, or import the model again."
        ) from None
