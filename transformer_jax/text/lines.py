"""Files of lines: read by position, checked for UTF-8, plain or .gz."""

import codecs
import contextlib
import gzip
import hashlib
import io
import mmap
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.text.by_position import ByPosition

BLOCK_BYTES = 1 << 24  # bytes read, or searched for line ends, at a time
MAPPED_BYTES = 1 << 24  # size from which a file is mapped: until then others may change it
GZIP = b"\x1f\x8b"  # the first bytes of a compressed file; no UTF-8 begins so
POINTER = b"version https://git-lfs.github.com/spec/"  # what git leaves without Git LFS
CHECK_LINES = 1 << 16  # lines decoded at a time by the check for UTF-8


class TextLines(ByPosition[str]):
    """The lines of a UTF-8 file: only "\\n" and "\\r\\n" end a line; the last needs no line end.

    A large plain file is memory-mapped; any other is kept in memory, a .gz file decompressed. The
    index takes 8 bytes per line.
    """

    def __init__(self, path: Path):
        self.path = path
        self.buffer = _read_only(path)
        if self.buffer[:2] == GZIP:
            fix = " twice: gunzip it" if path.suffix == ".gz" else f": call it {path.name}.gz"
            raise DataError(f"{path} is compressed by gzip{fix}.")
        if self.buffer[: len(POINTER)] == POINTER:
            raise DataError(f"{path} is a pointer of Git LFS, not the text: git lfs pull.")
        self.starts = index_lines(self.buffer)
        if len(self) == 0:
            raise DataError(f"{path} is empty. Give a text file with one sentence per line.")
        if len(self) == 1 and 0 <= self.buffer.find(b"\r") < len(self.buffer) - 2:
            raise DataError(
                f"{path} is one line with carriage returns, which once ended lines. Convert it: "
                f"tr '\\r' '\\n' < {path.name} > NEW"
            )
        check_utf8(self.buffer, self.starts, str(path))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def items(self, indices: Sequence[int]) -> list[str]:
        """The lines at these indices, without their line ends."""
        starts, buffer = self.starts, self.buffer
        return [decode_line(buffer, int(starts[i]), int(starts[i + 1])) for i in indices]


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
                f"iconv -f LATIN1 -t UTF-8, or UTF-16 in place of LATIN1; only .gz is decompressed."
            ) from None


def is_text(line: str) -> bool:
    """Whether a line has no half of a surrogate pair, so that it can be written as UTF-8."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


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
        if path.is_file() and path.stat().st_size >= MAPPED_BYTES:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return stream.read()


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file's bytes, decompressed."""
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
