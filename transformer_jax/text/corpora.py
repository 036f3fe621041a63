"""Sentence pairs by position: text files, Parquet files, TensorFlow Datasets, the built-in corpus.

This module drops and changes no pair; it also keeps pairs with an empty side.
"""

import codecs
import contextlib
import difflib
import gzip
import hashlib
import io
import itertools
import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from transformer_jax.config.schema import DataConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text import tfds_corpus
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.folder_corpus import FolderCorpus, Pair, parts_of
from transformer_jax.text.parquet_corpus import ParquetCorpus

GRAMMAR_PAIRS = {"valid": 500, "test": 1_000}  # of the built-in corpus; "train" has data.pairs
BLOCK_BYTES = 1 << 24  # bytes read, or searched for line ends, at a time
CHECK_LINES = 1 << 16  # lines decoded at a time by the check for UTF-8


class Corpus(Protocol):
    """Splits of sentence pairs; each is a sequence that is read by position and can be pickled.

    A split's name is "train", "valid" or "test" (the files or TFDS splits of data.train,
    data.valid or data.test, joined), or the name of one file stem or TFDS split.
    """

    def split(self, name: str) -> Sequence[Pair]:
        """The pairs of a split, in order. Raises DataError if it is missing or malformed."""

    def fingerprint(self, name: str) -> str:
        """A hex digest of the split's content; folder and compression do not change it."""

    def describe(self) -> str:
        """One line for the log: the corpus and where it is stored."""


def open_corpus(data: DataConfig, seed: int = 0) -> Corpus:
    """The corpus that the config's `data` asks for.

    Args:
      data: the section of the config.
      seed: the config's seed, which chooses the pairs of a validation split that is cut off.

    Raises:
      ConfigError: data.source is no such source.
      DataError: the corpus is not where the config says.
    """
    if data.source not in SOURCES:
        sources = ", ".join(map(repr, SOURCES))
        raise ConfigError(f"data.source={data.source!r} is not one of {sources}.")
    return SOURCES[data.source](data, seed)


def read_lines(path: str | Path) -> list[str]:
    """The lines of a file, plain or .gz. Raises DataError if it is missing, empty or not UTF-8."""
    return list(TextLines(Path(path)))


def read_lines_from(stream: BinaryIO, name: str) -> list[str]:
    """The lines of a byte stream such as sys.stdin.buffer; an empty stream has no lines.

    Raises:
      DataError: a line is not UTF-8; the message calls the stream `name`.
    """
    buffer = stream.read()
    starts = index_lines(buffer)
    check_utf8(buffer, starts, name)
    return [decode_line(buffer, start, end) for start, end in itertools.pairwise(starts.tolist())]


# Lines ---------------------------------------------------------------------------------------


class TextLines(ByPosition[str]):
    """The lines of a UTF-8 file: only "\\n" and "\\r\\n" end a line; the last needs no line end.

    A plain file is memory-mapped, and a .gz file is kept decompressed in memory. The index takes 8
    bytes per line. A pickle contains only the path.
    """

    def __init__(self, path: Path):
        self.path = path
        self.buffer = _read_only(path)
        self.starts = index_lines(self.buffer)
        if len(self) == 0:
            raise DataError(f"{path} is empty. Give a text file with one sentence per line.")
        check_utf8(self.buffer, self.starts, str(path))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def items(self, places: Sequence[int]) -> list[str]:
        """The lines at these places, without their line ends."""
        starts, buffer = self.starts, self.buffer
        return [decode_line(buffer, int(starts[i]), int(starts[i + 1])) for i in places]

    def __reduce__(self) -> tuple[type["TextLines"], tuple[Path]]:
        return TextLines, (self.path,)


Buffer = bytes | bytearray | mmap.mmap


def index_lines(buffer: Buffer) -> np.ndarray:
    """The byte offset of each line's start, and of the last line's end: int64 [lines + 1]."""
    if len(buffer) == 0:
        return np.zeros(1, np.int64)
    octets = np.frombuffer(buffer, np.uint8)
    first = len(codecs.BOM_UTF8) if buffer[:3] == codecs.BOM_UTF8 else 0
    starts = [np.array([first])]
    for begin in range(0, len(octets), BLOCK_BYTES):
        ends = np.flatnonzero(octets[begin : begin + BLOCK_BYTES] == ord("\n"))
        starts.append(ends + (begin + 1))
    if octets[-1] != ord("\n") and len(octets) > first:
        starts.append(np.array([len(octets)]))
    return np.concatenate(starts)


def check_utf8(buffer: Buffer, starts: np.ndarray, name: str) -> None:
    """Raises DataError if a line is not UTF-8; the message gives the line's number."""
    for first in range(0, len(starts) - 1, CHECK_LINES):
        last = min(first + CHECK_LINES, len(starts) - 1)
        try:
            buffer[starts[first] : starts[last]].decode()
        except UnicodeDecodeError as error:
            line = np.searchsorted(starts, starts[first] + error.start, side="right")
            raise DataError(
                f"{name}, line {line}: not UTF-8 ({error.reason}). Convert it, for example with "
                f"iconv -t UTF-8."
            ) from None


def decode_line(buffer: Buffer, start: int, end: int) -> str:
    """The line in buffer[start:end], without its "\\n" or "\\r\\n"."""
    line = buffer[start:end]
    if line.endswith(b"\n"):
        line = line[: -2 if line.endswith(b"\r\n") else -1]
    return line.decode()


def _read_only(path: Path) -> Buffer:
    with _open(path) as stream:
        if path.suffix == ".gz":
            content = bytearray()
            while block := stream.read(BLOCK_BYTES):
                content += block
            return content
        if path.is_file() and path.stat().st_size > 0:  # empty files and pipes cannot be mapped
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return stream.read()


def _digest(path: Path) -> bytes:
    with _open(path) as stream:
        return hashlib.file_digest(stream, "sha256").digest()


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.BufferedIOBase]:
    """Opens a file for reading, decompressed. Raises DataError if it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


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

    def items(self, places: Sequence[int]) -> list[Pair]:
        """The pairs at some places."""
        return list(map(Pair, self.src.items(places), self.tgt.items(places)))


class TfdsPairs(ByPosition[Pair]):
    """Serialized examples of TFDS and the two languages to take from them."""

    def __init__(self, records: Any, src: str, tgt: str):
        self.records, self.src, self.tgt = records, src, tgt

    def __len__(self) -> int:
        return len(self.records)

    def items(self, places: Sequence[int]) -> list[Pair]:
        """The pairs at these places, read together."""
        records = self.records.__getitems__(places)
        return [Pair(*texts) for texts in tfds_corpus.parse(records, self.src, self.tgt)]


# Corpora -------------------------------------------------------------------------------------


class TextCorpus(FolderCorpus):
    """Files STEM.src and STEM.tgt in one folder, each plain or .gz."""

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

    def digests(self, stem: str) -> Iterator[bytes]:
        """The SHA-256 sums of the two files' decompressed bytes."""
        return map(_digest, self.files(stem))

    def files(self, stem: str) -> tuple[Path, Path]:
        """The two files of a stem, each plain or .gz."""
        src, tgt = (self._file(f"{stem}.{language}") for language in (self.data.src, self.data.tgt))
        return src, tgt

    def _file(self, name: str) -> Path:
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
                raise DataError(f"{path} is {kind}; give a file, which is read several times.")
        raise DataError(
            f"{self.folder / name}: no such file, nor {name}.gz; {self._there(name)}. Stems are "
            f"named in data.train, data.valid and data.test."
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
        close = difflib.get_close_matches(stem, stems, n=5, cutoff=0.4) or stems[:10]
        return f"stems there with .{suffix}: {', '.join(close)}"


class TfdsCorpus:
    """A `Translation` data set of TFDS, prepared on this machine."""

    def __init__(self, data: DataConfig):
        self.data = data
        self.builder = tfds_corpus.open_builder(data)

    def split(self, name: str) -> Sequence[Pair]:
        """The pairs of the TFDS splits, in the order of the shards."""
        records = tfds_corpus.open_records(self.builder, parts_of(self.data, name))
        return TfdsPairs(records, self.data.src, self.data.tgt)

    def fingerprint(self, name: str) -> str:
        """SHA-256 of name, version, sizes, a sample of the examples, and the direction."""
        content = tfds_corpus.fingerprint(self.builder, parts_of(self.data, name))
        return hashlib.sha256(f"{content} {self.data.src} {self.data.tgt}".encode()).hexdigest()

    def describe(self) -> str:
        """The data set, its version, its folder and the direction."""
        name, folder = self.builder.info.full_name, self.builder.data_path
        return f"TFDS {name} in {folder}, {self.data.src}→{self.data.tgt}"


class BuiltInCorpus:
    """The generated corpus: data.pairs pairs for training, 500 to validate and 1,000 to test."""

    def __init__(self, data: DataConfig):
        self.sizes = {"train": data.pairs} | GRAMMAR_PAIRS
        self._generated: dict[str, list[Pair]] = {}

    def split(self, name: str) -> Sequence[Pair]:
        """The pairs of "train", "valid" or "test"."""
        if name not in self.sizes:
            raise DataError(
                f"the built-in corpus has no split {name!r}, only {', '.join(self.sizes)}."
            )
        from transformer_jax import grammar

        if name not in self._generated:  # a run asks for each split three times
            drawn = grammar.generate(name, self.sizes[name])
            self._generated[name] = [Pair(pair.src, pair.tgt) for pair in drawn]
        return self._generated[name]

    def fingerprint(self, name: str) -> str:
        """SHA-256 of the lines of the split."""
        lines = itertools.chain.from_iterable(self.split(name))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def describe(self) -> str:
        """The number of training pairs."""
        return f"the built-in corpus, {self.sizes['train']:,} training pairs"


# (the config's data, its seed) -> the corpus
SOURCES: dict[str, Callable[[DataConfig, int], Corpus]] = {
    "files": TextCorpus,
    "parquet": ParquetCorpus,
    "tfds": lambda data, seed: TfdsCorpus(data),
    "grammar": lambda data, seed: BuiltInCorpus(data),
}
