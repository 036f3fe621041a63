"""What is kept of each run beside its line of results: records.jsonl, one line a run.

A line is a JSON object with row, seed, the lines of metrics.jsonl that make a curve, samples of
translations, SHA-256 sums of the run's texts and, if there are several test sets, the scores of
each. The base row's has its translations too, so that other rows can be tested against them on any
machine.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.config.checks import LARGEST_INT
from transformer_jax.errors import DataError, RunError
from transformer_jax.files import is_there, parsed_json, read_utf8, write_atomically
from transformer_jax.kinds import fits
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import TEXTS, Line, text_sums, trained_on

FILE = "records.jsonl"
TRANSLATIONS = "translations"
KINDS = {
    "row": str,
    "seed": int,
    "curve": list[dict[str, Any]],
    "samples": list[list[str]],
    "sets": dict[str, dict[str, Any]],
    TRANSLATIONS: list[str] | None,
    TEXTS: dict[str, str],
}
LATER: dict[str, Any] = {"sets": {}, TRANSLATIONS: None, TEXTS: {}}  # not in every record


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
    if not is_there(path):
        return {}
    lines = read_utf8(path).removesuffix("\n").split("\n")
    parsed = [parsed_json(line, path, number) for number, line in enumerate(lines, start=1)]
    found = dict[tuple[str, int], dict[str, Any]]()
    for number, one in enumerate(parsed, start=1):
        if not _is_record({**LATER, **one}):
            raise DataError(
                f"{path}, line {number}: not the record of a run: row, seed, curve, samples and "
                "sets. Restore the file, or remove the line."
            )
        key = one["row"], one["seed"]
        if found.setdefault(key, one) is not one:
            first = [*found].index(key) + 1
            raise DataError(
                f"{path}, lines {first} and {number}: both are of row {key[0]!r} and seed "
                f"{key[1]}. Remove one of them."
            )
    return found


def _is_record(one: Mapping[str, Any]) -> bool:
    if not all(fits(one.get(name), kind) for name, kind in KINDS.items()):
        return False
    valid = [m for m in one["curve"] if m.get("kind") == "valid"]
    steps, values = ([m.get(name) for m in valid] for name in ("step", "perplexity"))
    return (
        all(fits(step, int) and 0 <= step <= LARGEST_INT for step in steps)
        and all(isinstance(value, float) and not value < 0 for value in values)
        and all(len(sample) == 3 for sample in one["samples"])
    )


def read_records(folder: Path, lines: Sequence[Line]) -> list[Record]:
    """The records of these lines, as far as they are kept. Raises DataError: one is damaged."""
    known = raw_records(folder)
    return [_record(known[key]) for line in lines if (key := (line.row, line.seed)) in known]


def _record(raw: Mapping[str, Any]) -> Record:
    curve = [(m["step"], m["perplexity"]) for m in raw["curve"] if m.get("kind") == "valid"]
    samples = [(src, wanted, found) for src, wanted, found in raw["samples"]]
    kept = raw.get(TRANSLATIONS)
    return Record(raw["row"], raw["seed"], curve, samples, raw.get("sets", {}), kept)


def check_texts(
    folder: Path, lines: Sequence[Line], jobs: Sequence[Job], missing: Sequence[Job]
) -> None:
    """Checks that recorded runs had the text that missing ones will have.

    Rows may differ in their data: a run is compared with the missing ones of its own.

    Args:
      folder: the folder of results.
      lines: its recorded runs.
      jobs: those of the whole table.
      missing: runs that are to be trained.

    Raises:
      RunError: a recorded run had other text.
    """

    sums = functools.cache(text_sums)
    known, recorded = raw_records(folder), {(line.row, line.seed) for line in lines}
    to_read = {job.config().data for job in missing}
    for job in [job for job in jobs if (job.row, job.seed) in recorded]:
        data = job.config().data
        own = trained_on(job) | known.get((job.row, job.seed), {}).get(TEXTS, {})
        for name, now in sums(data, job.scale.split).items() if own and data in to_read else ():
            if own.get(name, now) not in ("", now):
                raise RunError(
                    f"{job.label} was recorded with other text: the SHA-256 sum of its {name} is "
                    f"{own[name]:.12}, and that of data.path={data.path} is {now:.12}. Restore "
                    "that text, or give another folder with --out."
                )
