"""results.jsonl, the one file of a table's results, and what it keeps of a finished run.

A line is a JSON object: a finished run (`Line`), or an answer to a question about trained models
(`Answer`), which the experiment asks. What a run does not have is left out.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.config.checks import LARGEST_INT
from transformer_jax.errors import DataError, RunError
from transformer_jax.files import is_there, parsed_json, read_utf8, write_atomically
from transformer_jax.kinds import wrong_field
from transformer_jax.tables.experiment import Job

FILE = "results.jsonl"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Line(NamedTuple):
    """The results of a finished row and seed. NaN: there is no such value."""

    row: str
    seed: int
    perplexity: float  # per subword, of the validation split, at the last step; NaN: it diverged
    parameters: int
    training_flops: float  # counted from the matrix products of all steps with nominal batches
    train_seconds: float  # time of the training steps, without start, validation and checkpoints
    steps: int
    config_digest: str
    revision: str
    device: str
    date: str
    bleu: float = math.nan  # sacreBLEU; a language model has no scores of translations
    paper_bleu: float = math.nan  # NaN if the target language has none
    chrf: float = math.nan
    signature: str = ""  # sacreBLEU's signature of `bleu`
    device_rate: float = math.nan  # peak FLOP/s of all devices as the vendor gives it
    p: Mapping[str, float] = NOTHING  # p-values against the base row (statistics.py)
    against: str = ""  # that base row; earlier versions did not write it, nor `scored`
    scored: str = ""  # the split that `bleu` is of, and how many checkpoints were averaged
    sets: Mapping[str, Mapping[str, Any]] = NOTHING  # scores of several test sets
    curve: Sequence[Mapping[str, Any]] = ()  # the lines of metrics.jsonl that make a curve
    samples: Sequence[Sequence[str]] = ()  # source, reference and translation
    translations: Sequence[str] = ()  # of the base row, to test other rows against
    text_sha256: Mapping[str, str] = NOTHING  # SHA-256 sums of its texts (texts.py)

    def validations(self) -> list[tuple[int, float]]:
        """Step and perplexity of each validation."""
        return [(m["step"], m["perplexity"]) for m in self.curve if m.get("kind") == "valid"]


class Answer(NamedTuple):
    """What trained models answered to a question of the experiment."""

    question: str
    configs: list[str]  # digests of the models' configs
    found: dict[str, Any]


MAY_BE_NAN = (*Line._field_defaults, "perplexity", "train_seconds")
RANGES: dict[str, tuple[float, float]] = {"seed": (0, 2**32 - 1), "steps": (1, LARGEST_INT)}
SCORES = ("bleu", "paper_bleu", "chrf")
RANGES |= dict.fromkeys(SCORES, (0, 100.0001))


def read_results(folder: Path) -> list[Line]:
    """The finished runs in a folder of results; none if there is no file yet.

    Raises:
      DataError: the file is damaged, or a row and seed is there twice.
    """
    return [one for one in _read(folder) if isinstance(one, Line)]


def read_answers(folder: Path) -> dict[str, Answer]:
    """The answers in a folder of results, by their questions. Raises DataError as above."""
    return {one.question: one for one in _read(folder) if isinstance(one, Answer)}


def write_results(folder: Path, lines: Iterable[Line]) -> None:
    """Writes the finished runs in the given order, in place of those that are there."""
    _write(folder, [*lines, *read_answers(folder).values()])


def write_answers(folder: Path, answers: Iterable[Answer]) -> None:
    """Writes the answers, in place of those that are there."""
    _write(folder, [*read_results(folder), *answers])


def keep(folder: Path, line: Line, base: str) -> None:
    """Adds a finished run in place of an earlier one, whose p-values and answers go.

    Args:
      base: the base row; the p-values of other rows of its seed go with it.
    """
    known = [one for one in read_results(folder) if one[:2] != line[:2]]
    if line.row == base:
        known = [without_p(one) if one.seed == line.seed else one for one in known]
    answers = read_answers(folder).values()
    _write(folder, [*known, line, *(x for x in answers if line.config_digest not in x.configs)])


def without_p(line: Line) -> Line:
    """The line without a comparison with the base row."""
    return line._replace(p=NOTHING, against="")


def _read(folder: Path) -> list[Line | Answer]:
    path = folder / FILE
    if not is_there(path):
        if (earlier := folder / "results.csv").exists():
            raise DataError(
                f"{earlier} is of an earlier version. Move it away: what the runs' folders still "
                "have is recorded again without training."
            )
        return []
    found, first = list[Line | Answer](), dict[Any, int]()
    whole = read_utf8(path).rstrip("\n")
    for number, text in enumerate(whole.split("\n") if whole else [], 1):
        content, at = parsed_json(text, path, number), f"{path}, line {number}"
        one = _parsed(content, Answer if "question" in content else Line, at)
        key = one.question if isinstance(one, Answer) else (one.row, one.seed)
        if first.setdefault(key, number) != number:
            raise DataError(
                f"{path}, lines {first[key]} and {number}: both are of {key}. Remove one of them."
            )
        found.append(one)
    return found


def _parsed(content: Mapping[str, Any], kind: type[Line | Answer], at: str) -> Line | Answer:
    unknown = content.keys() - {*kind._fields}
    lacking = {*kind._fields} - {*kind._field_defaults} - content.keys()
    wrong = f"{min(unknown)} is unknown" if unknown else ""
    wrong = wrong or (f"{min(lacking)} is missing" if lacking else "")
    if not wrong:
        nan = {name: math.nan for name in MAY_BE_NAN if content.get(name, 0) is None}
        one = kind(**{**content, **nan})
        wrong = wrong_field(one) or (_wrong_value(one) if isinstance(one, Line) else "")
    if wrong:
        raise DataError(f"{at}: {wrong}. Restore the file, or remove that line.")
    return one


def _wrong_value(line: Line) -> str:
    for name, value in line._asdict().items():
        least, most = RANGES.get(name, (0, sys.float_info.max))
        is_nan = isinstance(value, float) and math.isnan(value) and name in MAY_BE_NAN
        if isinstance(value, int | float) and not is_nan and not least <= value <= most:
            return f"{name}={value!r} is not of its range"
    if bool(line.signature) != math.isfinite(line.bleu + line.chrf):
        return "one of bleu, chrf and signature is missing"
    if not all(0 <= p <= 1 for p in line.p.values()):
        return f"p={line.p} is not of its range"
    scores = [x for own in line.sets.values() for name, x in own.items() if name in SCORES]
    least, most = RANGES["bleu"]
    if not all(x is None or isinstance(x, int | float) and least <= x <= most for x in scores):
        return "a score of its test sets is not a number from 0 to 100"
    if not all(len(sample) == 3 for sample in line.samples):
        return "a sample is not source, reference and translation"
    points = [(m.get("step"), m.get("perplexity")) for m in line.curve if m.get("kind") == "valid"]
    is_curve = all(
        isinstance(step, int) and 0 <= step <= LARGEST_INT and isinstance(y, float) and not y < 0
        for step, y in points
    )
    return "" if is_curve else "a validation of its curve is not step and perplexity"


def _write(folder: Path, found: Iterable[Line | Answer]) -> None:
    text = (json.dumps(_content(one), ensure_ascii=False, default=dict) for one in found)
    write_atomically(folder / FILE, "".join(f"{line}\n" for line in text).encode())


def _content(one: Line | Answer) -> dict[str, Any]:
    """What a line says: not what has its default value; None: NaN."""
    content = {}
    for name, value in one._asdict().items():
        is_nan = isinstance(value, float) and math.isnan(value)
        if name not in one._field_defaults or not (is_nan or value in (NOTHING, "", (), [])):
            content[name] = None if is_nan else value
    return content


def finished(lines: Sequence[Line], jobs: Sequence[Job]) -> dict[tuple[str, int], Line]:
    """The recorded lines of these jobs, by row and seed.

    Raises:
      RunError: a line was recorded with another config than its row has now, or scored otherwise.
    """
    found = {(line.row, line.seed): line for line in lines}
    for job in jobs:
        line = found.get((job.row, job.seed))
        if line and line.config_digest != job.digest():
            steps, hint = job.config().train.steps, ""
            if line.steps != steps:
                hint = f"It took {line.steps} updates, not {steps}: if pace.csv has the number, "
                hint += "restore it. Otherwise: "
            raise RunError(
                f"{job.label} was recorded with another config (digest {line.config_digest}) than "
                f"the experiment has now. {hint}Remove that line of results.jsonl to run it again, "
                "or give another folder with --out."
            )
        if line and line.scored not in ("", job.scored):
            raise RunError(
                f"{job.label} was scored on {line.scored}, and now {job.scored} is asked for. "
                "Remove that line of results.jsonl, or give another folder with --out."
            )
    wanted = {(job.row, job.seed) for job in jobs}
    return {key: line for key, line in found.items() if key in wanted}
