"""Sentence pairs of Parquet files with a column `translation`, as public corpora are stored.

A row of the column holds one text per language: {"en": "A dog.", "de": "Ein Hund."}.
"""

import bisect
import contextlib
import glob
import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.files import is_stream
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.folder_corpus import FolderCorpus, Pair

COLUMN = "translation"
# A shard's number and the number of shards; some writers add a hash.
SHARD = re.compile(r"-(\d+)-of-(\d+)(-\w+)?\.parquet$")


class ParquetPairs(ByPosition[Pair]):
    """The pairs of a file; one row group at a time is in memory."""

    def __init__(self, path: Path, *languages: str):
        """Opens a file and checks every row.

        Raises:
          DataError: the file is damaged or empty, lacks a column, or a text is null.
        """
        self.path = path
        self.languages = languages
        if is_stream(path):
            raise DataError(
                f"{path} is a pipe or a device; give a regular file: it is read in parts."
            )
        with _as_data_error(path):
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

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at these indices; ascending ones read each row group once."""
        found = []
        for index in indices:
            start, end = self.starts[self._group : self._group + 2]
            if not start <= index < end:
                self._read(bisect.bisect_right(self.starts, index) - 1)
                start = self.starts[self._group]
            found.append(Pair.of([texts[index - start].as_py() for texts in self._texts]))
        return found

    def _read(self, group: int) -> None:
        """Makes a row group the one in memory."""
        import pyarrow.compute as pc

        with _as_data_error(self.path):
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


class ParquetCorpus(FolderCorpus):
    """Files STEM.parquet in one folder, or STEM-*-of-*.parquet; a stem may be a pattern: train-*.

    Without data.valid, the validation split is valid.parquet or validation.parquet, or a sample of
    the training pairs (FolderCorpus).
    """

    FILES, VALID = "Parquet files", "valid.parquet"

    def __init__(self, data: DataConfig):
        self._opened: dict[Path, ParquetPairs] = {}  # each file is checked once
        super().__init__(data)

    def has_valid(self) -> bool:
        """Whether there is a file of the stem `valid` or `validation`."""
        return bool(self._found("valid"))

    def parts(self, stem: str) -> list[Sequence[Pair]]:
        """The pairs of each file of a stem, in the order of the file names."""
        paths = self.files(stem)
        for path in paths:
            if path not in self._opened:
                self._opened[path] = ParquetPairs(path, *self.data.languages)
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
        """The files of a stem, or none.

        Raises:
          DataError: it is not clear which files are the stem's, or a shard is missing.
        """
        stems = ("valid", "validation") if stem == "valid" else (stem,)
        several = [paths for one in stems for paths in self._candidates(one) if paths]
        if len(several) > 1:
            names = " and ".join(paths[0].name for paths in several)
            raise DataError(
                f"{names} are all in {self.folder}, and only one can be the text of the stem "
                f"{stem!r}. Remove or rename the others."
            )
        return several[0] if several else []

    def _candidates(self, stem: str) -> tuple[list[Path], list[Path]]:
        """The stem's own file, or the files that a pattern matches; and the stem's shards."""
        file = self.folder / f"{stem}.parquet"
        whole = [file] if file.exists() else self._matches(f"{stem}.parquet")
        if whole and not file.exists():
            return whole, []  # a pattern may match any files, single shards too
        shards = self._matches(f"{stem}-*-of-*.parquet")
        if not whole:
            _check_shards(shards)
        return whole, shards

    def _matches(self, pattern: str) -> list[Path]:
        return sorted(map(Path, glob.glob(os.path.join(glob.escape(str(self.folder)), pattern))))


def _check_shards(paths: Sequence[Path]) -> None:
    """Raises DataError if shards are missing, or belong to different sets of shards."""
    found = [(match, path) for path in paths if (match := SHARD.search(path.name))]
    if not found:
        return
    first = found[0][1]
    counts = sorted({int(match[2]) for match, _ in found})
    numbers = sorted(int(match[1]) for match, _ in found)
    if len(counts) > 1 or len(set(numbers)) < len(numbers):
        raise DataError(
            f"{first} and {found[-1][1].name} belong to different sets of shards. Remove the "
            "files of one set."
        )
    if len(numbers) != counts[0]:
        raise DataError(
            f"{first}: {len(numbers)} of its {counts[0]} files are there (numbers "
            f"{', '.join(map(str, numbers[:10]))}). Add the others, or name those that you want by "
            "a pattern, such as train-*."
        )


def _check_columns(path: Path, schema: Any, languages: Sequence[str]) -> None:
    """Raises DataError if the column lacks a language or holds something other than strings."""
    import pyarrow as pa

    wanted = " and ".join(map(repr, languages))
    if COLUMN not in schema.names:
        raise DataError(
            f"{path} has no column {COLUMN!r}, only {', '.join(map(repr, schema.names))}. Write it "
            f"again with a column {COLUMN!r} whose rows have the texts {wanted}."
        )
    if schema.names.count(COLUMN) > 1:
        raise DataError(f"{path} has several columns {COLUMN!r}. Write it again with one.")
    kind = schema.field(COLUMN).type
    if not pa.types.is_struct(kind):
        raise DataError(
            f"{path}: the column {COLUMN!r} has values of type {kind}. Write it again with a text "
            f'for each language in a row, such as {{"en": "A dog.", "de": "Ein Hund."}}.'
        )
    fields = {field.name: field.type for field in kind}
    for language in languages:
        text = fields.get(language)
        if text is None:
            there = ", ".join(map(repr, fields))
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
def _as_data_error(path: Path) -> Iterator[None]:
    """Turns what pyarrow raises on a damaged or unreadable file into a DataError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise DataError(
            f"{path} cannot be read as a Parquet file: {reason}. Copy or download it again."
        ) from None
