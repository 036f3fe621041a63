"""Atomic writes of files, reading with errors that name the line, and the user's cache folder."""

import contextlib
import csv
import errno
import gzip
import hashlib
import io
import json
import math
import os
import stat
import sys
import tarfile
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformer_jax.errors import ConfigError, DataError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CONFLICT = ("<<<<<<<", "=======", ">>>>>>>")  # lines that git writes where it cannot merge


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file, or the one that a link leads to, whole or not at all.

    The folders above it are created.
    """
    if path.is_symlink() and path.exists():
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno == errno.ENOENT and path.parent.is_dir():  # in /proc, for example
            words = "No file can be created there"
            raise PermissionError(errno.EACCES, words, str(path)) from None
        error.filename = str(path)  # not the temporary file; a failed write names none
        raise
    finally:
        with contextlib.suppress(OSError):  # it is gone, or could not be made
            temporary.unlink()


def write_csv(path: Path, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a table as comma-separated values, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def in_the_way(folder: Path) -> str:
    """Why a folder, which may not exist yet, cannot be written: "PATH is a file"; "" if it can."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if leads_nowhere(there):
        return f"{there} is a link that leads nowhere"
    if not there.is_dir():
        return f"{there} is a file"
    return "" if os.access(there, os.W_OK) else f"{there} is not writable"


def make_folder(flag: str, folder: Path) -> None:
    """Makes the folder that a flag names. Raises ConfigError if it cannot be written."""
    wrong = in_the_way(folder)
    if not wrong:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # such as /proc, which only seems writable
            wrong = str(error.strerror)
    if wrong:
        raise ConfigError(f"{flag}: cannot write into {folder}: {wrong}. Name another.")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A path to write a folder at, which appears as `folder` when it is whole.

    Raises:
      OSError: it cannot be written, or something is there by then.
    """
    if folder.is_symlink():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if not folder.parent.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        whole = Path(scratch, folder.name)
        yield whole
        whole.rename(folder)


def inode(folder: Path) -> tuple[int, int] | None:
    """What tells a folder from another one of its name; None: it does not exist."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_stream(path: Path) -> bool:
    """Whether the path is a named pipe, a socket or a device: opening one may wait for ever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def leads_nowhere(path: Path) -> bool:
    """Whether it is a link to what is not there, as if its disk were not mounted."""
    return path.is_symlink() and not path.exists()


def is_there(path: Path) -> bool:
    """Whether there is a file. Raises DataError: it is a link that leads nowhere."""
    if leads_nowhere(path):
        raise DataError(f"{path} is a link that leads nowhere. Mount its disk, or remove the link.")
    return path.exists()


def read_utf8(path: Path) -> str:
    """The text of a file, without a byte order mark, which Excel writes.

    Raises:
      DataError: the file cannot be read, or a line is not UTF-8.
    """
    if is_stream(path):
        raise DataError(f"{path} is a pipe or a device, not a file.")
    try:
        content = path.read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8 ({error.reason}). Restore the file, or save it as "
            "UTF-8."
        ) from None


def read_csv(path: Path, head: Sequence[str], newer: int = 0) -> list[tuple[int, list[str]]]:
    """The rows below the head of a table that `write_csv` wrote, with their line numbers.

    Args:
      path: the file.
      head: the names of the columns.
      newer: how many of the last columns an older file may lack.

    Raises:
      DataError: the file cannot be read, has other columns, or a line has not one cell for each.
    """
    reader = csv.reader(io.StringIO(read_utf8(path), newline=""))
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}. Correct that line.") from None
    columns = len(lines[0][1]) if lines else 0
    if columns < len(head) - newer or lines[0][1] != list(head[:columns]):
        raise DataError(f"{path}, line 1: its columns are not {', '.join(head)}.")
    for number, cells in lines:
        if len(cells) != columns:
            raise DataError(
                f"{path}, line {number}: it has {len(cells)} cells, but the table has {columns} "
                "columns. Correct that line; a cell with a comma is put in quotation marks."
            )
    return lines[1:]


def read_table(
    path: Path, kind: type[Any], ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})
) -> list[Any]:
    """The rows of a table that `write_csv` wrote; none if there is no file.

    Args:
      kind: the NamedTuple of a row. The first two columns name a row, so no two rows share both.
        An older file may lack columns that have a default.
      ranges: the least and the largest number in a column, which is then not NaN; in other columns
        numbers are finite and not below 0, or NaN.

    Raises:
      DataError: the file is damaged, a cell is not of its column's type or range, or a row is
        there twice.
    """
    if not is_there(path):
        return []
    rows = list[Any]()
    first_numbers = dict[tuple[Any, ...], int]()
    for number, cells in read_csv(path, kind._fields, len(kind._field_defaults)):
        values = list[Any]()
        for (name, convert), text in zip(kind.__annotations__.items(), cells, strict=False):
            wrong = f"{path}, line {number}: {name}={text[:40]!r} is not of"
            try:
                values.append(convert(text))
            except ValueError:
                raise DataError(
                    f"{wrong} type {convert.__name__}. Correct or remove that line."
                ) from None
            least, most = ranges.get(name, (0, sys.float_info.max))
            if convert is not str and not (
                least <= values[-1] <= most or (math.isnan(values[-1]) and name not in ranges)
            ):
                raise DataError(f"{wrong} its range. Correct or remove that line.")
        first = first_numbers.setdefault(tuple(values[:2]), number)
        if first != number:
            both = " and ".join(
                f"{x} {y!r}" for x, y in zip(kind._fields[:2], values, strict=False)
            )
            raise DataError(
                f"{path}, lines {first} and {number}: both are of {both}. Remove one of them."
            )
        rows.append(kind(*values))
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises DataError, naming the line, if there is none."""
    return parsed_json(read_utf8(path), path)


def parsed_json(text: str, path: Path | str, line: int = 1) -> dict[str, Any]:
    """The JSON object that begins at this line of a file.

    Raises:
      DataError: it is none, or names a key twice.
    """
    try:
        content = json.loads(text, object_pairs_hook=each_once)
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        is_conflict = error.doc.startswith(CONFLICT, error.pos)
        why = "a conflict of two versions, which git left there" if is_conflict else error.msg
        raise DataError(f"{path}, line {at}: not JSON ({why}).") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, brackets 10,000 deep
        raise DataError(f"{path}, line {line}: cannot be read ({error}).") from None
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise DataError(f"{path}, line {line}: a JSON {kind}; expected an object.")
    return content


def each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """What a JSON object is read as. Raises ValueError if two of its keys are the same."""
    content = dict[str, Any]()
    for name, value in pairs:
        if name in content:
            raise ValueError(f"{name[:60]!r} is there twice")
        content[name] = value
    return content


def open_whole(path: Path) -> tarfile.TarFile:
    """An archive .tar.gz whose checksum is right: tarfile alone stops reading before it.

    Raises:
      DataError: it is damaged or cut off, or none.
    """
    try:
        tar = tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes())), mode="r:")
        tar.getmembers()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path} is not a whole .tar.gz ({error}).") from None
    return tar


@contextlib.contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Makes an error in what is made of a file a DataError, which names the place in the code."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise DataError(
            f"{path}: what it says cannot be reported ({type(error).__name__}: {error}, at "
            f"{Path(at.filename).name}, line {at.lineno}). Restore the file, or correct that code."
        ) from error


def is_temporary(path: Path) -> bool:
    """Whether the file is one that `write_atomically` left when it was killed."""
    return path.name.startswith(".") and path.suffix == ".tmp"


def cache_folder() -> Path:
    """TRANSFORMER_JAX_CACHE, or transformer_jax in XDG_CACHE_HOME, or in ~/.cache."""
    own = os.environ.get("TRANSFORMER_JAX_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(own) if own else Path(shared, "transformer_jax")
    try:
        return folder.expanduser()
    except RuntimeError:
        raise DataError(
            f"the cache folder {folder} is in the home of no known user. Set TRANSFORMER_JAX_CACHE "
            "to a folder."
        ) from None


def kept(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """The content for this name from the user's cache folder, or else from `make`.

    Args:
      kind: a folder of the cache.
      name: everything that the content depends on.
      make: called if the cache has no undamaged content; the result is cached if possible.
    """
    path = cache_folder() / kind / hashlib.sha256(name.encode()).hexdigest()[:32]
    stored = b""
    with contextlib.suppress(OSError):
        stored = path.read_bytes()
    size = hashlib.sha256().digest_size
    digest = stored[:size]
    content = stored[size:]
    if digest == hashlib.sha256(content).digest():
        return content
    content = make()
    with contextlib.suppress(OSError):  # without the cache, it is made again next time
        write_atomically(path, hashlib.sha256(content).digest() + content)
    return content
