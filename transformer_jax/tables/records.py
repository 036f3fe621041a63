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
from typing import Any

from transformer_jax.config.checks import LARGEST_INT
from transformer_jax.errors import DataError, RunError
from transformer_jax.files import is_there, parsed_json, read_utf8, write_atomically
from transformer_jax.kinds import fits, wrong_field
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import Line, Record, text_sums, trained_on

FILE = "records.jsonl"


def write_record(folder: Path, record: Record) -> None:
    """Keeps a run's record in a folder of results, in place of an earlier one."""
    known = {**read_records(folder), (record.row, record.seed): record}
    lines = (json.dumps(_content(known[key]), ensure_ascii=False) + "\n" for key in sorted(known))
    write_atomically(folder / FILE, "".join(lines).encode())


def _content(record: Record) -> dict[str, Any]:
    fields = record._asdict().items()
    return {name: value for name, value in fields if value or name not in Record._field_defaults}


def read_records(folder: Path) -> dict[tuple[str, int], Record]:
    """The records of a folder by row and seed. Raises DataError if one is damaged."""
    path = folder / FILE
    if not is_there(path):
        return {}
    lines = read_utf8(path).removesuffix("\n").split("\n")
    parsed = [parsed_json(line, path, number) for number, line in enumerate(lines, start=1)]
    found = dict[tuple[str, int], Record]()
    for number, one in enumerate(parsed, start=1):
        if (record := _record(one)) is None:
            raise DataError(
                f"{path}, line {number}: not the record of a run: row, seed, curve, samples and "
                "sets. Restore the file, or remove the line."
            )
        key = record.row, record.seed
        if found.setdefault(key, record) is not record:
            first = [*found].index(key) + 1
            raise DataError(
                f"{path}, lines {first} and {number}: both are of row {key[0]!r} and seed "
                f"{key[1]}. Remove one of them."
            )
    return found


def _record(content: Mapping[str, Any]) -> Record | None:
    """The record with this content; None if it is none."""
    try:
        record = Record(**content)
        is_whole = not wrong_field(record) and all(len(sample) == 3 for sample in record.samples)
        points = record.validations() if is_whole else []
    except (TypeError, KeyError):
        return None
    are_numbers = all(
        fits(step, int) and 0 <= step <= LARGEST_INT and isinstance(value, float) and not value < 0
        for step, value in points
    )
    return record if is_whole and are_numbers else None


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
    known, recorded = read_records(folder), {(line.row, line.seed) for line in lines}
    to_read = {job.config().data for job in missing}
    for job in [job for job in jobs if (job.row, job.seed) in recorded]:
        data = job.config().data
        record = known.get((job.row, job.seed))
        own = {**trained_on(job), **(record.text_sha256 if record else {})}
        for name, now in sums(data, job.scale.split).items() if own and data in to_read else ():
            if own.get(name, now) not in ("", now):
                raise RunError(
                    f"{job.label} was recorded with other text: the SHA-256 sum of its {name} is "
                    f"{own[name]:.12}, and that of data.path={data.path} is {now:.12}. Restore "
                    "that text, or give another folder with --out."
                )
