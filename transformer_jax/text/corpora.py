"""Sentence pairs by position: text files, Parquet files, TensorFlow Datasets, the built-in corpus.

This module drops and changes no pair; it also keeps pairs with an empty side.
"""

import difflib
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.files import kept
from transformer_jax.text import tfds_corpus
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.folder_corpus import (
    NO_ALIGNMENTS,
    AlignedWords,
    FolderCorpus,
    Pair,
    parts_of,
)
from transformer_jax.text.lines import TextLines, file_digest
from transformer_jax.text.parquet_corpus import ParquetCorpus
from transformer_jax.text.pharaoh import AlignedLines

if TYPE_CHECKING:
    from transformer_jax.grammar.pairs import AlignedPair

GRAMMAR_PAIRS = {"valid": 500, "test": 1_000}  # of the built-in corpus; "train" has data.pairs
OTHER_STEMS = (
    "Name other stems with --config.data.train, --config.data.valid or --config.data.test."
)


class Corpus(Protocol):
    """Splits of sentence pairs; each is a sequence that is read by position and can be pickled.

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
    return SOURCES[data.source](data)


# Pairs ---------------------------------------------------------------------------------------


class TextPairs(ByPosition[Pair]):
    """Two text files side by side. Raises DataError if their numbers of lines differ."""

    def __init__(self, src: TextLines, tgt: TextLines):
        if len(src) != len(tgt):
            raise DataError(
                f"{src.path} has {len(src)} lines and {tgt.path} has {len(tgt)}. Line n of one "
                f"must be the translation of line n of the other."
            )
        self.src, self.tgt = src, tgt

    def __len__(self) -> int:
        return len(self.src)

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at some indices."""
        return list(map(Pair, self.src.items(indices), self.tgt.items(indices)))


class TfdsPairs(ByPosition[Pair]):
    """Serialized examples of TFDS and the two languages to take from them."""

    def __init__(self, records: Any, src: str, tgt: str):
        self.records, self.src, self.tgt = records, src, tgt

    def __len__(self) -> int:
        return len(self.records)

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at these indices, read together."""
        records = self.records.__getitems__(indices)
        return [Pair(*texts) for texts in tfds_corpus.parse(records, self.src, self.tgt)]


# Corpora -------------------------------------------------------------------------------------


class TextCorpus(FolderCorpus):
    """Files STEM.{data.src} and STEM.{data.tgt} in one folder, each plain or .gz."""

    FILES, VALID = "text files", "valid.{data.src}, valid.{data.tgt}"

    def has_valid(self) -> bool:
        """Whether there is a file of the stem `valid` in either language."""
        return any(
            (self.folder / f"valid.{language}{ending}").exists()
            for language in (self.data.src, self.data.tgt)
            for ending in ("", ".gz")
        )

    def parts(self, stem: str) -> list[Sequence[Pair]]:
        """The pairs of the two files of a stem."""
        return [TextPairs(*map(TextLines, self.files(stem)))]

    def aligned_parts(self, stem: str) -> list[Sequence[AlignedWords]]:
        """Words and links of the pairs, from STEM.align."""
        [pairs] = self.parts(stem)
        return [AlignedLines(TextLines(self._links_file(stem)), pairs)]

    def digests(self, stem: str) -> Iterator[bytes]:
        """The SHA-256 sums of the two files' decompressed bytes."""
        return map(file_digest, self.files(stem))

    def aligned_digests(self, stem: str) -> Iterator[bytes]:
        """The SHA-256 sum of STEM.align's decompressed bytes."""
        return map(file_digest, [self._links_file(stem)])

    def files(self, stem: str) -> tuple[Path, Path]:
        """The two files of a stem, each plain or .gz."""
        src, tgt = (self._file(f"{stem}.{language}") for language in (self.data.src, self.data.tgt))
        return src, tgt

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
        raise DataError(
            f"{self.folder / name}: no such file, nor {name}.gz; {self._there(name)}. {fix}"
        )

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


class TfdsCorpus:
    """A `Translation` data set of TFDS, prepared on this machine."""

    def __init__(self, data: DataConfig):
        self.data = data
        self.builder = tfds_corpus.open_builder(data)

    def split(self, name: str) -> Sequence[Pair]:
        """The pairs of the TFDS splits, in the order of the shards."""
        records = tfds_corpus.open_records(self.builder, parts_of(self.data, name))
        return TfdsPairs(records, self.data.src, self.data.tgt)

    def alignments(self, name: str) -> Sequence[AlignedWords]:
        """Raises DataError: a TFDS data set has no word links."""
        raise DataError(NO_ALIGNMENTS.format("tfds"))

    def fingerprint(self, name: str) -> str:
        """SHA-256 of name, version, sizes, a sample of the examples, and the direction."""
        content = tfds_corpus.fingerprint(self.builder, parts_of(self.data, name))
        return hashlib.sha256(f"{content} {self.data.src} {self.data.tgt}".encode()).hexdigest()

    def describe(self) -> str:
        """The data set, its version, its folder and the direction."""
        name, folder = self.builder.info.full_name, self.builder.data_path
        return f"TFDS {name} in {folder}, {self.data.src}→{self.data.tgt}"


class GeneratedPairs(ByPosition[Pair]):
    """A split of the built-in corpus, which is generated when one of its pairs is first read."""

    def __init__(self, name: str, size: int, data: DataConfig):
        self.name, self.size = name, size
        self.invented_names = data.invented_names
        self.is_swapped = data.src == "de"

    def __len__(self) -> int:
        return self.size

    @functools.cached_property
    def generated(self) -> "list[AlignedPair]":
        """The pairs from English to German, with their words and links."""
        from transformer_jax.grammar.pairs import generate  # most runs have other text

        return generate(self.name, self.size, invented_names=self.invented_names)

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at these indices."""
        pairs = [(self.generated[i].src, self.generated[i].tgt) for i in indices]
        return [Pair(*(pair[::-1] if self.is_swapped else pair)) for pair in pairs]


class GeneratedAlignments(ByPosition[AlignedWords]):
    """Words and gold links of generated pairs; a punctuation mark is a word."""

    def __init__(self, pairs: GeneratedPairs):
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def items(self, indices: Sequence[int]) -> list[AlignedWords]:
        """The words and links of the pairs at these indices."""
        pairs = [self.pairs.generated[i] for i in indices]
        found = [AlignedWords(pair.src_words, pair.tgt_words, pair.alignment) for pair in pairs]
        return list(map(_swapped, found)) if self.pairs.is_swapped else found


class BuiltInCorpus:
    """The generated corpus: data.pairs pairs for training, 500 to validate and 1,000 to test.

    With data.src='de' its sides are swapped.
    """

    def __init__(self, data: DataConfig):
        self.data = data
        sizes = {"train": data.pairs} | GRAMMAR_PAIRS
        self.splits = {name: GeneratedPairs(name, size, data) for name, size in sizes.items()}

    def split(self, name: str) -> GeneratedPairs:
        """The pairs of "train", "valid" or "test"."""
        if name not in self.splits:
            raise DataError(
                f"the built-in corpus has no split {name!r}, only {', '.join(self.splits)}."
            )
        return self.splits[name]

    def alignments(self, name: str) -> Sequence[AlignedWords]:
        """Words and gold links of each pair; a punctuation mark is a word."""
        return GeneratedAlignments(self.split(name))

    def fingerprint(self, name: str) -> str:
        """SHA-256 of the lines of the split.

        It is kept in the user's cache, because generating the lines takes seconds.
        """
        from transformer_jax.grammar.pairs import GRAMMAR

        pairs = self.split(name)

        def digest() -> bytes:
            lines = itertools.chain.from_iterable(pairs)
            return hashlib.sha256("\n".join(lines).encode()).hexdigest().encode()

        drawn = f"{name} {len(pairs)} {pairs.invented_names} {pairs.is_swapped}"
        return kept("grammar", f"fingerprint {GRAMMAR} {drawn}", digest).decode()

    def describe(self) -> str:
        """The number of training pairs, and how many names are invented."""
        invented = self.data.invented_names
        names = f", {invented} % invented names" if invented else ""
        return f"the built-in corpus, {self.data.pairs:,} training pairs{names}"


def _swapped(one: AlignedWords) -> AlignedWords:
    """The same words and links for the other direction of translation."""
    return AlignedWords(one.tgt, one.src, tuple(sorted((j, i) for i, j in one.links)))


# the config's data -> the corpus
SOURCES: dict[str, Callable[[DataConfig], Corpus]] = {
    "files": TextCorpus,
    "parquet": ParquetCorpus,
    "tfds": TfdsCorpus,
    "grammar": BuiltInCorpus,
}
