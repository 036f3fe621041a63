"""Evaluations in a run's folder: each is a file of translations and one of scores and settings.

Different evaluations have different names: the name ends in a hash of everything that determines
the result.
"""

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.files import read_json, write_atomically

SCHEME = 1  # version of the naming scheme; it is hashed too
LONGEST_NAME = 150  # bytes of a readable part, since file systems allow 255 for a name
DIGITS = 8  # hex digits of the hash
PART = "is_part"  # in a record: of one of several texts of a split


def text_digest(lines: Iterable[str]) -> str:
    """SHA-256 of a text, each line with a line feed, as `sha256sum` prints it for such a file."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def evaluation_path(folder: Path, name: str, settings: Mapping[str, Any]) -> Path:
    """FOLDER/NAME.CHECKPOINT.HOW.HASH.txt, the file of translations; HOW is beamK, sample or mbr.

    Args:
      folder: the run's folder of evaluations.
      name: the readable part, such as the split or the name of the source file.
      settings: all that decides the result, among them "checkpoint" and "beam_size".
    """
    whole = json.dumps([SCHEME, dict(settings)], sort_keys=True)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGITS]
    stem = _stem(name, settings["checkpoint"], settings)
    return folder / f"{stem}.{digest}.txt"


def _stem(name: str, checkpoint: str, decode: Mapping[str, Any]) -> str:
    method = decode.get("method", "beam")
    how = f"beam{decode['beam_size']}" if method == "beam" else method
    # A file's name may have any bytes.
    name = os.fsencode(name)[:LONGEST_NAME].decode(errors="ignore")
    return re.sub(r"[^\w.-]", "_", f"{name}.{checkpoint}.{how}")


def write_evaluation(path: Path, hypotheses: Iterable[str], record: Mapping[str, Any]) -> None:
    """Writes one hypothesis per line, and the record as a .json file beside it."""
    write_atomically(path, "".join(f"{line}\n" for line in hypotheses).encode())
    content = json.dumps(dict(record), indent=2, ensure_ascii=False) + "\n"
    write_atomically(path.with_suffix(".json"), content.encode(errors="backslashreplace"))


def find_evaluation(
    folder: Path, split: str, checkpoint: str, decode: Mapping[str, Any]
) -> Path | None:
    """The newest file of scores of a split of the run's corpus; None if there is none.

    Earlier versions wrote names without the hash, and records without the split and some settings.

    Args:
      folder: the run's folder of evaluations.
      split: as it was given to `evaluate`; files that were given with --src are not found.
      checkpoint: its name, such as "40" or "40-last5".
      decode: settings of search, among them "beam_size", that the record must not contradict.

    Raises:
      DataError: a file of scores is damaged.
    """
    stem = _stem(split, checkpoint, decode)
    name = re.compile(re.escape(stem) + rf"(\.[0-9a-f]{{{DIGITS}}})?\.json")
    # Compare values as JSON stores them: a tuple becomes a list.
    wanted = json.loads(json.dumps({"split": split, "checkpoint": checkpoint, **decode}))
    found = []
    for path in folder.glob(f"{glob.escape(stem)}.*json"):
        if not name.fullmatch(path.name):
            continue
        record = read_json(path)
        if all(record.get(key, value) == value for key, value in wanted.items()):
            # A text of a split may have the split's name, which is that of all of them first of
            # all. Then the date: copying the folder changes the times of modification.
            is_whole = not record.get(PART, False)
            found.append((is_whole, str(record.get("date", "")), path.stat().st_mtime, path))
    return max(found)[-1] if found else None
