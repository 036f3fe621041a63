"""The finished runs of a results.tgz of another machine (pack.py), added to the results here."""

import filecmp
import functools
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError, RunError, UserError
from transformer_jax.files import new_folder, open_whole
from transformer_jax.tables.collect import Evaluation, read_evaluation
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.pace import Pace, check_devices, keep_pace, read_paces, with_pace
from transformer_jax.tables.pack import PLAN, SMALL_FILES, Plan, extract, read_plan, run_files
from transformer_jax.tables.report import Output
from transformer_jax.tables.results import (
    Line,
    finished,
    read_answers,
    read_results,
    write_answers,
    write_results,
)
from transformer_jax.tables.texts import REFERENCES, SOURCES, TRAIN, VALID, text_sums, trained_on

log = logging.getLogger(__name__)
TextSums = Callable[[DataConfig, str], Mapping[str, str]]
KINDS = {TRAIN: "training", VALID: "validation", SOURCES: "source", REFERENCES: "reference"}


class Found(NamedTuple):
    """A finished run of an archive."""

    job: Job  # with its number of updates
    files: Path  # its folder in the extracted archive
    line: Line
    pace: Pace | None


def merge(
    file: Path, jobs: Sequence[Job], output: Output, minutes: float | None, asked: str
) -> None:
    """Adds the finished runs of a results.tgz, and their answers, to the recorded results.

    If anything does not fit, nothing is written.

    Args:
      file: the results.tgz.
      jobs: those before `with_pace`.
      output: the recorded results.
      minutes: the time of each row here.
      asked: the flags that chose the jobs among those of the table; empty: all of them.

    Raises:
      DataError: the file is no results.tgz.
      RunError: a run is of another config, of another text, or recorded already.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            plan = extract_results(file, folder)
            if plan.minutes != minutes:
                raise RunError(
                    f"--merge={file}: each row trained for {_time(plan.minutes)} there, and gets "
                    f"{_time(minutes)} here. Give that number with --minutes, or another --out."
                )
            runs = [*_checked(folder, plan, jobs, output, asked)]
            answers = read_answers(folder)
        except UserError as error:
            # The folder is gone when the message is read.
            raise type(error)(str(error).replace(f"{folder}/", f"--merge={file}: ")) from None
        for run in runs:
            if not run.job.folder.exists():
                with new_folder(run.job.folder) as whole:
                    _copy(run.files, whole)
            if run.pace is not None:
                keep_pace(output.paces, run.pace)
        named = [run.line._replace(revision=plan.revision, p={}) for run in runs]
        write_results(output.folder, [*read_results(output.folder), *named])
        digests = {line.config_digest for line in named}
        theirs = {name: one for name, one in answers.items() if digests.issuperset(one.configs)}
        if theirs:
            write_answers(output.folder, {**read_answers(output.folder), **theirs}.values())
        log.info("%s: %d finished runs", file, len(runs))


def _copy(files: Path, to: Path) -> None:
    try:
        shutil.copytree(files, to)
    except shutil.Error as error:  # it has no number of the system's error
        raise RunError(f"--merge: cannot write {to.parent.parent}: {error.args[0][0][2]}") from None


def extract_results(file: Path, to: Path) -> Plan:
    """Extracts a results.tgz and returns its plan. Raises DataError: it is none."""
    try:
        with open_whole(file) as tar:
            extract(tar, to, file)
    except DataError as error:
        raise DataError(f"--merge={error}") from None
    if not (to / PLAN).is_file():
        raise DataError(f"--merge={file} is not a results.tgz: it has no {PLAN}.")
    return read_plan(to)


def _checked(
    folder: Path, plan: Plan, jobs: Sequence[Job], output: Output, asked: str
) -> Iterator[Found]:
    """The finished runs of an extracted archive. Raises UserError: one does not fit."""
    paces = read_paces(folder / output.paces.name, plan.minutes)
    own = {(job.row, job.seed): with_pace(job, paces.get(job.row)) for job in jobs}
    known = {(line.row, line.seed) for line in read_results(output.folder)}
    here = read_paces(output.paces, plan.minutes)
    texts = functools.cache(text_sums)
    for line in read_results(folder):
        key, pace = (line.row, line.seed), paces.get(line.row)
        if (job := own.get(key)) is None:
            absent = f"{asked} leaves out" if asked else "this table does not have"
            raise RunError(
                f"{folder}/{output.results.name} has {line.row!r}, seed {line.seed}, which "
                f"{absent}. Give the --scale, --rows and --seeds of its --pack."
            )
        finished([line], [job])
        if key in known:
            raise RunError(
                f"{job.label} is in {output.results} already. Remove that line; if it is of this "
                "archive, write the page instead: --report in place of --merge."
            )
        if pace != here.get(line.row, pace):
            raise RunError(f"{job.label}: {output.paces} has another number of updates.")
        if pace is not None:
            others = [one for row, one in here.items() if row != line.row]
            check_devices(output.paces, pace, others)
        files = run_files(folder, job)
        _check_files(files, job)
        scores = read_evaluation(job._replace(folder=files))
        if scores is None or str(scores.bleu) != str(line.bleu):  # as text: NaN is not NaN
            raise DataError(
                f"{files} has not the evaluation of {job.scale.split} with {line.bleu} BLEU that "
                f"{output.results.name} tells of: damaged. Copy the archive again."
            )
        _check_texts(files, job, scores, texts)
        yield Found(job, files, line, pace)


def _check_files(files: Path, job: Job) -> None:
    """Raises UserError if a run lacks files, or if its folder here has other ones."""
    needed = [files / name for name in SMALL_FILES]
    needed += [path.with_suffix(".txt") for path in files.glob("evaluations/*.json")]
    if lacking := [path for path in needed if not path.exists()]:
        raise DataError(f"{lacking[0]} is not there: damaged. Copy the archive again.")
    names = [str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()]
    _, other, lost = filecmp.cmpfiles(files, job.folder, names, shallow=False)
    if job.folder.exists() and (other or lost):
        raise RunError(
            f"{job.folder} is there already, and its {min(other + lost)} is not that of "
            f"{files}. Move that folder away, or give another one with --runs."
        )


def _check_texts(files: Path, job: Job, scores: Evaluation, texts: TextSums) -> None:
    """Raises RunError if the run had other text than there is here."""
    data = job.config().data
    used: dict[str, str | None] = {**trained_on(job._replace(folder=files))}
    used |= {SOURCES: scores.src_sha256, REFERENCES: scores.ref_sha256}
    for name, digest in texts(data, job.scale.split).items():
        if used.get(name) not in (None, digest):  # older runs did not record all of them
            raise RunError(
                f"{files} had other {KINDS[name]} text than data.path={data.path!r} has now. "
                "Restore that text, or name it with --config.data.path=FOLDER."
            )


def _time(minutes: float | None) -> str:
    return "no fixed time" if minutes is None else f"{minutes:g} minutes"
