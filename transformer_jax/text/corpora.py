"""Sentence pairs by position: text files, Parquet files, TensorFlow Datasets, the built-in corpus.

This module drops and changes no pair; it also keeps pairs with an empty side.
"""

import difflib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.files import is_there
from transformer_jax.text.built_in_corpus import BuiltInCorpus
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.documents import InDocuments, starts_by_blanks, starts_by_name
from transformer_jax.text.features import FeatureReader
from transformer_jax.text.folder_corpus import AlignedWords, FolderCorpus, Pair
from transformer_jax.text.lines import TextLines, file_digest
from transformer_jax.text.mixture import MixedCorpus
from transformer_jax.text.parquet_corpus import ParquetCorpus
from transformer_jax.text.pharaoh import AlignedLines
from transformer_jax.text.tfds_corpus import TfdsCorpus

log = logging.getLogger(__name__)
OTHER_STEMS = "Name other stems: data.train, data.valid or data.test, or --split of `evaluate`."
OTHER_ARCHIVES = (".xz", ".bz2", ".zst", ".zip")
FORMS = (
    "A text is called STEM:SRC-TGT@TAG*WEIGHT, or less of it in this order: a TAG has letters, "
    "digits and _, and a WEIGHT is a number such as 2 or 0.5. Some pairs: STEM[100:200]."
)


class Corpus(Protocol):
    """Splits of sentence pairs; each is a sequence that is read by position.

    A split's name is "train", "valid" or "test" (the files or TFDS splits of data.train,
    data.valid or data.test, joined), or the name of one file stem or TFDS split.
    """

    def split(self, name: str) -> Sequence[Pair]:
        """The pairs of a split, in order. Raises DataError if it is missing or malformed."""

    def alignments(self, name: str) -> Sequence[AlignedWords]:
        """Words and links of each pair of `split`. Raises DataError if there are none."""

    def fingerprint(self, name: str) -> str:
        """A hex digest of the split's content; folder and compression do not change it."""

    def describe(self) -> str:
        """One line for the log: the corpus and where it is stored."""


def open_corpus(data: DataConfig) -> Corpus:
    """The corpus that the config's `data` asks for.

    Raises:
      ConfigError: data.source is not a known source.
      DataError: the corpus is not where the config says.
    """
    if data.source not in SOURCES:
        sources = ", ".join(map(repr, SOURCES))
        raise ConfigError(f"data.source={data.source!r} is not one of {sources}.")
    if data.is_mixed:
        return MixedCorpus(data, SOURCES[data.source])
    return SOURCES[data.source](data)


# Pairs ---------------------------------------------------------------------------------------


class TextPairs(ByPosition[Pair]):
    """Text files side by side. Raises DataError if their numbers of lines differ."""

    def __init__(self, *files: TextLines):
        """Takes the file of each source language, usually one, and that of the target language."""
        self.files, tgt = files, files[-1]
        for src in files[:-1]:
            if len(src) != len(tgt):
                raise DataError(
                    f"{src.path} has {len(src)} lines and {tgt.path} has {len(tgt)}. Line n of one "
                    f"must be the translation of line n of the other."
                )

    def __len__(self) -> int:
        return len(self.files[-1])

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at some indices."""
        return list(map(Pair.of, zip(*(file.items(indices) for file in self.files), strict=True)))


# Corpora -------------------------------------------------------------------------------------


class TextCorpus(FolderCorpus):
    """Files STEM.{data.src} and STEM.{data.tgt} in one folder, each plain or .gz."""

    FILES, VALID = "text files", "valid.{}"

    def has_valid(self) -> bool:
        """Whether there is a file of the stem `valid` in either language."""
        return any(
            is_there(self.folder / f"valid.{language}{ending}")
            for language in self.data.languages
            for ending in ("", ".gz")
        )

    def parts(self, stem: str) -> list[Sequence[Pair]]:
        """The pairs of the files of a stem, with data.context in their documents."""
        pairs = TextPairs(*map(TextLines, self.files(stem)))
        if not self.data.context:
            return [pairs]
        names = self._documents_file(stem)
        if names is None:
            starts = starts_by_blanks(pairs)
            if not starts.any():
                log.warning(
                    "%s has neither %s.doc nor lines blank on both sides: it is one document",
                    self.folder,
                    stem,
                )
        else:
            starts = starts_by_name(TextLines(names), pairs, str(names))
            if len(pairs) > 1 and (np.diff(starts) > 0).all():
                log.warning("%s names another document in each line: none has context", names)
        return [InDocuments(pairs, starts, self.data.context)]

    def aligned_parts(self, stem: str) -> list[Sequence[AlignedWords]]:
        """Words and links of the pairs, from STEM.align."""
        [pairs] = self.parts(stem)
        return [AlignedLines(TextLines(self._links_file(stem)), pairs)]

    def digests(self, stem: str) -> Iterator[bytes]:
        """The SHA-256 sums of the text's files, and with data.context of what names documents."""
        yield from self.text_digests(stem)
        if self.data.context:
            yield self.data.context.to_bytes(1)
            if (names := self._documents_file(stem)) is not None:
                yield file_digest(names)

    def text_digests(self, stem: str) -> Iterator[bytes]:
        """The SHA-256 sums of the files' decompressed bytes, and of files that they name.

        Lines name recordings and pictures (data.src_kind).
        """
        yield from map(file_digest, files := self.files(stem))
        if self.data.src_kind != "text":
            yield from FeatureReader(self.data, self.folder).digests(TextLines(files[0]))

    def aligned_digests(self, stem: str) -> Iterator[bytes]:
        """The SHA-256 sum of STEM.align's decompressed bytes."""
        return map(file_digest, [self._links_file(stem)])

    def files(self, stem: str) -> tuple[Path, ...]:
        """The file of a stem in each language, the target's last, each plain or .gz."""
        return tuple(self._file(f"{stem}.{language}") for language in self.data.languages)

    def files_beside(self, stem: str, with_links: bool) -> Iterator[Path]:
        """The files of a stem other than its text: those of data.context and data.alignments."""
        if self.data.context and (names := self._documents_file(stem)) is not None:
            yield names
        if self.data.alignments and with_links:
            yield self._links_file(stem)

    def _documents_file(self, stem: str) -> Path | None:
        """STEM.doc, which names the document of each pair; None: there is none."""
        paths = (self.folder / f"{stem}.doc", self.folder / f"{stem}.doc.gz")
        return self._file(f"{stem}.doc") if any(map(is_there, paths)) else None

    def _links_file(self, stem: str) -> Path:
        src, tgt = self.files(stem)
        command = f"transformer-jax align --src={src} --tgt={tgt} > {self.folder / stem}.align"
        return self._file(f"{stem}.align", fix=f"To make it: {command}")

    def _file(self, name: str, fix: str = OTHER_STEMS) -> Path:
        paths = (self.folder / name, self.folder / f"{name}.gz")
        found = [path for path in paths if path.is_file()]
        if len(found) == 2:
            raise DataError(
                f"{found[0]} and {found[1].name} are both there, and only one can be the text of "
                "this stem. Remove or rename one of them."
            )
        if found:
            return found[0]
        for path in paths:
            if path.exists():
                kind = "a folder" if path.is_dir() else "a pipe or a device"
                raise DataError(f"{path} is {kind}; give a regular file: it is read several times.")
        there = self._there(name)
        packed = [f"{name}{x}" for x in OTHER_ARCHIVES if (self.folder / f"{name}{x}").is_file()]
        if packed:
            fix = f"Decompress {packed[0]}: of compressed text only .gz is read."
        elif set(":@*[") & set(Path(name).stem):
            fix = FORMS
        elif there.startswith("suffixes there: .") and fix == OTHER_STEMS:
            fix = "Rename the files, or train with other suffixes (data.src, data.tgt, directions)."
        raise DataError(f"{self.folder / name}: no such file, nor {name}.gz; {there}. {fix}")

    def _there(self, missing: str) -> str:
        """Describes the files in the folder of a missing file, for the error message."""
        folder = (self.folder / missing).parent
        files = folder.iterdir() if folder.is_dir() else ()
        names = {path.name.removesuffix(".gz") for path in files if path.is_file()}
        stem, _, suffix = Path(missing).name.rpartition(".")
        stems = sorted(n.removesuffix(f".{suffix}") for n in names if n.endswith(f".{suffix}"))
        if not stems:
            others = sorted({Path(name).suffix for name in names} - {""})
            return f"suffixes there: {' '.join(others) or 'none'}"
        close = difflib.get_close_matches(stem, stems, n=5, cutoff=0.4)
        shown = [*close, *(other for other in stems if other not in close)][:10]
        more = ", ..." if len(stems) > len(shown) else ""
        return f"stems there with .{suffix}: {', '.join(shown)}{more}"


# the config's data -> the corpus
SOURCES: dict[str, Callable[[DataConfig], Corpus]] = {
    "files": TextCorpus,
    "parquet": ParquetCorpus,
    "tfds": TfdsCorpus,
    "grammar": BuiltInCorpus,
}
