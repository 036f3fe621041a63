"""Sentence pairs of Parquet files with a column `translation`, as public corpora are stored.

A row of the column holds one text per language: {"en": "A dog.", "de": "Ein Hund."}.
"""

import bisect
import contextlib
import glob
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config.schema import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.folder_corpus import FolderCorpus, Pair

COLUMN = "translation"


class ParquetPairs(ByPosition[Pair]):
    """The pairs of a file; one row group at a time is in memory. A pickle has only the names."""

    def __init__(self, path: Path, src: str, tgt: str):
        """Opens a file and checks every row.

        Raises:
          DataError: the file is damaged or empty, has no such columns, or a text is null.
        """
        self.path, self.languages = path, (src, tgt)
        with _one_line(path):
            import pyarrow.parquet as pq

            self.file = pq.ParquetFile(path, page_checksum_verification=True)
            _check_columns(path, self.file.schema_arrow, self.languages)
            groups = self.file.metadata
            rows = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
        self.starts = [0, *itertools.accumulate(rows)]  # the first row of each group, and the end
        if len(self) == 0:
            raise DataError(f"{path} is empty. Give a file with one sentence pair per row.")
        for group in range(len(rows)):
            self._read(group)

    def __len__(self) -> int:
        return self.starts[-1]

    def items(self, places: Sequence[int]) -> list[Pair]:
        """The pairs at these places; ascending ones read each row group once."""
        found = []
        for place in places:
            start, end = self.starts[self._group : self._group + 2]
            if not start <= place < end:
                self._read(bisect.bisect_right(self.starts, place) - 1)
                start = self.starts[self._group]
            found.append(Pair(*(texts[place - start].as_py() for texts in self._texts)))
        return found

    def _read(self, group: int) -> None:
        """Makes a row group the one in memory."""
        import pyarrow.compute as pc

        with _one_line(self.path):
            names = [f"{COLUMN}.{language}" for language in self.languages]
            column = self.file.read_row_group(group, columns=names)[COLUMN].combine_chunks()
            self._texts: list[Any] = [pc.struct_field(column, one) for one in self.languages]
            for texts in self._texts:
                texts.validate(full=True)  # the texts are UTF-8
        self._group = group
        for language, texts in zip(self.languages, self._texts, strict=True):
            if texts.null_count:
                row = self.starts[group] + texts.is_null().to_numpy(zero_copy_only=False).argmax()
                raise DataError(
                    f"{self.path}, row {row} (from 0): {COLUMN}.{language} is null. Write the file "
                    "again without such rows."
                )

    def __reduce__(self) -> tuple[type["ParquetPairs"], tuple[Path, str, str]]:
        return ParquetPairs, (self.path, *self.languages)


class ParquetCorpus(FolderCorpus):
    """Files STEM.parquet in one folder, or STEM-*-of-*.parquet; a stem may be a pattern: train-*.

    Without data.valid, the validation split is valid.parquet or validation.parquet, or a sample of
    the training pairs (FolderCorpus).
    """

    FILES, VALID = "Parquet files", "valid.parquet"

    def __init__(self, data: DataConfig, seed: int = 0):
        self._opened: dict[Path, ParquetPairs] = {}  # each file is checked once
        super().__init__(data, seed)

    def has_valid(self) -> bool:
        """Whether there is a file of the stem `valid` or `validation`."""
        return bool(self._found("valid"))

    def parts(self, stem: str) -> list[Sequence[Pair]]:
        """The pairs of each file of a stem, by their names."""
        paths = self.files(stem)
        for path in paths:
            if path not in self._opened:
                self._opened[path] = ParquetPairs(path, self.data.src, self.data.tgt)
        return [self._opened[path] for path in paths]

    def digests(self, stem: str) -> Iterator[bytes]:
        """One digest of the stem's texts, however they are divided into files and compressed."""
        digest = hashlib.sha256()
        for part in self.parts(stem):
            for src, tgt in part:
                digest.update(f"{len(src)} {len(tgt)} {src}{tgt}".encode())
        yield digest.digest()

    def files(self, stem: str) -> list[Path]:
        """The files of a stem. Raises DataError if there are none."""
        if found := self._found(stem):
            return found
        there = sorted(path.name for path in self.folder.glob("*.parquet"))[:10]
        raise DataError(
            f"{self.folder / stem}.parquet: no such file, nor {stem}-*-of-*.parquet; Parquet files "
            f"there: {', '.join(there) or 'none'}. Stems, or patterns such as train-*, are named "
            "in data.train, data.valid and data.test."
        )

    def _found(self, stem: str) -> list[Path]:
        stems = ("valid", "validation") if stem == "valid" else (stem,)
        for name in (name for one in stems for name in (one, f"{one}-*-of-*")):
            file = self.folder / f"{name}.parquet"
            if file.is_file():
                return [file]
            pattern = os.path.join(glob.escape(str(self.folder)), f"{name}.parquet")
            if found := sorted(glob.glob(pattern)):
                return list(map(Path, found))
        return []


def _check_columns(path: Path, schema: Any, languages: Sequence[str]) -> None:
    """Raises DataError if the column or a language of it is missing, or is no text."""
    import pyarrow as pa

    wanted = " and ".join(map(repr, languages))
    if COLUMN not in schema.names:
        raise DataError(
            f"{path} has no column {COLUMN!r}, only {', '.join(map(repr, schema.names))}. Write it "
            f"again with a column {COLUMN!r} whose rows have the texts {wanted}."
        )
    kind = schema.field(COLUMN).type
    fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
    for language in languages:
        text = fields.get(language)
        if text is None:
            there = ", ".join(map(repr, fields)) or f"values of type {kind}"
            raise DataError(
                f"{path}: the column {COLUMN!r} has {there}, and not {language!r}. Set data.src "
                "and data.tgt to two of its languages."
            )
        if not (pa.types.is_string(text) or pa.types.is_large_string(text)):
            raise DataError(
                f"{path}: {COLUMN}.{language} holds {text}, not strings. Write the file again with "
                "texts."
            )


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turns what pyarrow raises on a damaged or unreadable file into a DataError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} cannot be read as a Parquet file: {reason}. Copy or download it again."
        ) from None
