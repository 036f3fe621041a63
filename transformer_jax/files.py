"""Atomic writes of files, and the user's cache folder."""

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; creates the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a failed write does not name its file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_csv(path: Path, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a table as comma-separated values, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def is_temporary(path: Path) -> bool:
    """Whether the file is one that `write_atomically` left when it was killed."""
    return path.name.startswith(".") and path.suffix == ".tmp"


def cache_folder() -> Path:
    """TRANSFORMER_JAX_CACHE, or transformer_jax in XDG_CACHE_HOME, or in ~/.cache."""
    if own := os.environ.get("TRANSFORMER_JAX_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "transformer_jax"


def kept(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """The content for this name from the user's cache folder, or else from `make`.

    Args:
      kind: a folder of the cache.
      name: everything that the content depends on.
      make: called if the cache has no undamaged content; the result is cached if possible.
    """
    path = cache_folder() / kind / hashlib.sha256(name.encode()).hexdigest()[:32]
    try:
        stored = path.read_bytes()
    except OSError:
        stored = b""
    size = hashlib.sha256().digest_size
    digest, content = stored[:size], stored[size:]
    if digest == hashlib.sha256(content).digest():
        return content
    content = make()
    try:
        write_atomically(path, hashlib.sha256(content).digest() + content)
    except OSError:
        pass  # without the cache, it is made again next time
    return content
