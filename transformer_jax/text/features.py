"""Sources that are not text: recordings and pictures, as rows of numbers in place of subwords.

A source line names a file. The file's numbers are float32 [positions, features]; a blank line has
no positions.
"""

import concurrent.futures
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError, UserError
from transformer_jax.text.lines import file_digest
from transformer_jax.text.pictures import read_picture
from transformer_jax.text.speech import STEP, read_recording

FEWEST = 2  # positions of a source; with fewer, training takes it for an empty one


class Kind(NamedTuple):
    """A kind of source."""

    features: Callable[[DataConfig], int]  # numbers at each position
    # Raises UserError, which says what is wrong with the file, but not its name.
    read: Callable[[Path, DataConfig], np.ndarray]  # float32 [positions, features]
    place: Callable[[int, DataConfig], str]  # what a position is called, for plots


# data.src_kind -> how it is read; None: as subwords
KINDS: dict[str, Kind | None] = {
    "text": None,
    "speech": Kind(
        lambda data: data.mel_bands * data.stacked_frames,
        read_recording,
        lambda position, data: f"{position * data.stacked_frames * STEP:.2f} s",
    ),
    "pictures": Kind(
        lambda data: data.patch_height * data.patch_width,
        read_picture,
        lambda position, data: f"patch {position + 1}",
    ),
}


def feature_count(data: DataConfig) -> int:
    """Numbers at each source position; 0 if the source is text."""
    kind = KINDS[data.src_kind]
    return kind.features(data) if kind else 0


def how_read(data: DataConfig) -> tuple[str | int, ...]:
    """The keys on which a file's numbers depend."""
    speech = data.sample_rate, data.mel_bands, data.stacked_frames
    return data.src_kind, *speech, data.patch_height, data.patch_width


class FeatureReader:
    """Reads the files that source lines name."""

    def __init__(self, data: DataConfig, folder: str | Path | None = None):
        """Takes the config's data, whose src_kind is not text, and where the files are.

        Args:
          data: says how files are read.
          folder: lines name files in it, or in folders inside; None: any files.
        """
        kind = KINDS[data.src_kind]
        assert kind is not None
        self.kind, self.data = kind, data
        self.folder = None if folder is None else Path(os.path.expanduser(folder))

    def __call__(self, lines: Sequence[str], first: int | None = None) -> list[np.ndarray]:
        """The numbers of each line's file: float32 `[positions, features]`.

        Args:
          lines: names of files.
          first: the number of the first line, from 0, for messages; None: it is not known.

        Raises:
          DataError: a file cannot be read, or is not what the config says.
        """
        numbers = [None] * len(lines) if first is None else range(first, first + len(lines))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            return list(threads.map(self._read, numbers, lines))

    def places(self, count: int) -> list[str]:
        """What that many positions are called."""
        return [self.kind.place(position, self.data) for position in range(count)]

    def digests(self, lines: Iterable[str]) -> Iterator[bytes]:
        """A SHA-256 sum for each line's file, of its content and the keys by which it is read."""
        keys = repr(how_read(self.data)).encode()
        for number, line in enumerate(lines):
            if line.strip():
                path = self._path(number, line)
                stat = path.stat()
                content = _digest(path, stat.st_size, stat.st_mtime_ns)
                yield hashlib.sha256(keys + content).digest()

    def _read(self, number: int | None, line: str) -> np.ndarray:
        if not line.strip():
            return np.zeros((0, self.kind.features(self.data)), np.float32)
        path = self._path(number, line)
        try:
            found = self.kind.read(path, self.data)
        except UserError as error:
            raise DataError(f"{_where(number)}{path}: {error}") from None
        if len(found) < FEWEST:
            raise DataError(
                f"{_where(number)}{path}: too small, it has one source position "
                "(data.stacked_frames, data.patch_width). Leave it out."
            )
        return found

    def _path(self, number: int | None, line: str) -> Path:
        path = Path(line.strip())
        try:
            if self.folder is not None:
                path = self.folder / path
                if not path.resolve().is_relative_to(self.folder.resolve()):
                    inside = Path(os.path.normpath(path)).is_relative_to(self.folder)
                    link = f": a link leads to {path.resolve()}" if inside else ""
                    raise DataError(
                        f"{_where(number)}{line.strip()!r:.80}: not in the folder {self.folder}"
                        f"{link}. Lines name files there, or in folders inside."
                    )
            if path.is_file():
                return path
        except (OSError, ValueError):  # too long for a name, or it has a NUL
            pass
        raise DataError(f"{_where(number)}{str(path)!r:.200}: no such file.")


def _where(number: int | None) -> str:
    return "" if number is None else f"Source line {number + 1} of the split, "


@functools.lru_cache(maxsize=1 << 20)  # every start asks several times
def _digest(path: Path, size: int, modified_ns: int) -> bytes:
    """SHA-256 of a file; another size or time of its last change is another file."""
    return file_digest(path)


def contents(lines: Iterable[str], read: FeatureReader | None) -> Iterator[str]:
    """What source lines are known by: themselves, or what the files have that they name."""
    return iter(lines) if read is None else (digest.hex() for digest in read.digests(lines))
