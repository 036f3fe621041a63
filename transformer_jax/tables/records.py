"""What is kept of each run beside its line of results: records.jsonl, one line a run.

A line is a JSON object with row, seed, the lines of metrics.jsonl that make a curve, samples of
translations and, if there are several test sets, the scores of each. The base row's has its
translations too, so that other rows can be tested against them on any machine.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.errors import DataError
from transformer_jax.files import parsed_json, read_utf8, write_atomically
from transformer_jax.kinds import fits
from transformer_jax.tables.results import Line

FILE = "records.jsonl"
TRANSLATIONS = "translations"


class Record(NamedTuple):
    """What is kept of a run beside its line of results."""

    row: str
    seed: int
    curve: list[tuple[int, float]]  # step and perplexity of each validation
    samples: list[tuple[str, str, str]]  # source, reference and translation
    sets: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # scores of each test set
    translations: list[str] | None = None  # those of the scored text, if they are kept


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Keeps a run's record in a folder of results, in place of an earlier one."""
    known = {**raw_records(folder), (record["row"], record["seed"]): record}
    lines = (json.dumps(known[key], ensure_ascii=False) + "\n" for key in sorted(known))
    write_atomically(folder / FILE, "".join(lines).encode())


def raw_records(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The objects of a folder's records by row and seed. Raises DataError if one is damaged."""
    path = folder / FILE
    if not path.exists():
        return {}
    lines = read_utf8(path).removesuffix("\n").split("\n")
    parsed = [parsed_json(line, path, number) for number, line in enumerate(lines, start=1)]
    found = dict[tuple[str, int], dict[str, Any]]()
    for number, one in enumerate(parsed, start=1):
        key: Any = one.get("row"), one.get("seed")
        if not (fits(key[0], str) and fits(key[1], int)):
            raise _damaged(path, number)
        if found.setdefault(key, one) is not one:
            first = [*found].index(key) + 1
            raise DataError(
                f"{path}, lines {first} and {number}: both are of row {key[0]!r} and seed "
                f"{key[1]}. Remove one of them."
            )
    return found


def read_records(folder: Path, lines: Sequence[Line]) -> list[Record]:
    """The records of these lines, as far as they are kept. Raises DataError: one is damaged."""
    known = raw_records(folder)
    wanted = {(line.row, line.seed) for line in lines}
    read = {
        key: _record(raw, folder / FILE, number)
        for number, (key, raw) in enumerate(known.items(), start=1)
        if key in wanted
    }
    return [read[line.row, line.seed] for line in lines if (line.row, line.seed) in read]


def _record(raw: Mapping[str, Any], path: Path, number: int) -> Record:
    try:
        valid = [m for m in raw["curve"] if m["kind"] == "valid"]
        curve = [(int(m["step"]), float(m["perplexity"])) for m in valid]
        samples = [(src, wanted, found) for src, wanted, found in raw["samples"]]
        kept = raw.get(TRANSLATIONS)
        found = Record(raw["row"], raw["seed"], curve, samples, raw.get("sets", {}), kept)
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, number) from None
    if any(step < 0 or value < 0 for step, value in curve):
        raise _damaged(path, number)
    if not (fits(found.sets, Mapping[str, Mapping[str, Any]]) and fits(kept, list[str] | None)):
        raise _damaged(path, number)
    return found


def _damaged(path: Path, number: int) -> DataError:
    return DataError(
        f"{path}, line {number}: not the record of a run: row, seed, curve, samples and sets. "
        "Restore the file, or remove the line."
    )
