"""Equal time for every row: how many updates fit into a number of minutes on this device.

    python -m transformer_jax.tables.pace CONFIG.py OUT.json [--config.KEY=VALUE ...]

The number is fixed before a row's first run, from steps, a validation and a checkpoint that are
timed in a process of their own. OUT/pace.csv keeps it. So all seeds of the row take as many
updates, a schedule ends at the last of them, a stopped run continues to the same step, and a run
remains a function of its config and seed.
"""

import datetime
import json
import logging
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import LARGEST_INT
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.files import read_json, read_table, write_atomically, write_csv
from transformer_jax.tables.digests import digest_of
from transformer_jax.tables.experiment import Job

if TYPE_CHECKING:
    from transformer_jax.training.state import TrainState
    from transformer_jax.training.timing import Timing

log = logging.getLogger(__name__)
AT_LEAST, SECONDS = 20, 5.0  # updates, and seconds, that are timed
RANGES: dict[str, tuple[float, float]] = {"steps": (1, LARGEST_INT)}
RANGES |= dict.fromkeys(("minutes", "seconds_per_step"), (0, math.inf))


class Pace(NamedTuple):
    """A line of pace.csv: a row's number of updates, and where it comes from."""

    row: str
    minutes: float
    steps: int
    seconds_per_step: float
    seconds_per_check: float
    seconds_of_first_check: float
    device: str  # with its number, or that of cores
    date: str
    config: str = ""  # digest of what was timed; "": an earlier version did not keep it


def check_lengths(keys: Mapping[str, Any], minutes: float | None) -> None:
    """Raises ConfigError if a key says how long rows train, which their minutes decide.

    train.decay_steps may be there, since only with it a schedule has an end.
    """
    if minutes is not None and keys.get("train.steps") is not None:
        raise ConfigError(
            f"--config.train.steps changes nothing: each row gets {minutes:g} minutes. Leave it "
            "out."
        )


def read_paces(path: Path, minutes: float | None) -> dict[str, Pace]:
    """The rows' paces in a pace.csv; empty if there is none yet.

    Raises:
      DataError: the file is damaged.
      ConfigError: a row got another number of minutes, or rows get no time (None) now.
    """
    paces = {pace.row: pace for pace in read_table(path, Pace, ranges=RANGES)}
    for pace in paces.values():
        if minutes is None:
            raise ConfigError(
                f"{path} gives each row {pace.minutes:g} minutes: add --minutes={pace.minutes:g}, "
                "or give another folder with --out."
            )
        if pace.minutes != minutes:
            raise ConfigError(
                f"--minutes={minutes:g}: {path} has {pace.minutes:g} minutes for {pace.row!r}, and "
                "rows of one table get the same time. Give another folder with --out."
            )
    return paces


def keep_pace(path: Path, pace: Pace) -> None:
    """Adds a row's pace to a pace.csv, or replaces it.

    Raises RunError if another row was timed on other devices: their times are not equal.
    """
    others = [one for one in read_table(path, Pace, ranges=RANGES) if one.row != pace.row]
    check_devices(path, pace, others)
    write_csv(path, Pace._fields, [*others, pace])


def check_devices(path: Path, pace: Pace, others: Iterable[Pace]) -> None:
    """Raises RunError if one of the other rows of a pace.csv was timed on other devices."""
    for one in others:
        if " x " in one.device and " x " in pace.device and one.device != pace.device:
            raise RunError(
                f"{path}: {pace.row!r} has {pace.device}, and {one.row!r} had {one.device}: rows "
                "of one table get equal devices. Give its --jobs, or another --out."
            )


def with_pace(job: Job, pace: Pace | None) -> Job:
    """The job with its row's number of updates, at which its schedule ends if it has an end."""
    if pace is None:
        return job
    steps: dict[str, Any] = {"train.steps": pace.steps}
    if job.config().train.decay_steps is not None:
        steps["train.decay_steps"] = pace.steps
    return job._replace(overrides={**job.overrides, **steps})


def with_paces(jobs: Sequence[Job], path: Path, minutes: float | None) -> list[Job]:
    """The jobs with the updates that a pace.csv has for their rows; others as they are."""
    paces = read_paces(path, minutes)
    for job in jobs:
        pace = paces.get(job.row)
        if pace is not None and pace.config not in ("", _timed(job)):
            raise ConfigError(
                f"{path}: the updates of {job.row!r} were measured for another config than it has "
                "now. Remove its line to measure them again, or give another folder with --out."
            )
    return [with_pace(job, paces.get(job.row)) for job in jobs]


def _timed(job: Job) -> str:
    """The digest of all that decides how many updates fit into a row's time."""
    own = with_values(job.config(), {"seed": 0, "train.steps": 1, "train.decay_steps": None})
    every = own.train.valid_every, own.train.checkpoint_every
    return "-".join(map(str, (digest_of(own, job.overrides), *every)))


def timing_file(job: Job) -> Path:
    """Where the process that times a job's row leaves what it measured."""
    return job.folder.with_name(f"{job.folder.name}.pace.json")


def timing_command(job: Job) -> list[str]:
    """The arguments of `python -m` that time a job's row."""
    train = job.commands()[0]
    keys = [argument for argument in train if argument.startswith("--config.")]
    return ["transformer_jax.tables.pace", job.config_file, str(timing_file(job)), *keys]


def pace_of(job: Job, minutes: float) -> Pace:
    """The pace that follows from what the process measured. Raises DataError: it left no file."""
    from transformer_jax.training.timing import Timing  # imports JAX

    timing = Timing(**read_json(timing_file(job)))
    steps = timing.updates(minutes, job.config().train.valid_every)
    log.info(
        "%s: %s updates in %g minutes, %.4g s each on %s",
        job.row,
        f"{steps:,}",
        minutes,
        timing.step,
        timing.device,
    )
    return Pace(
        row=job.row,
        minutes=minutes,
        steps=steps,
        seconds_per_step=float(f"{timing.step:.4g}"),
        seconds_per_check=float(f"{timing.check:.4g}"),
        seconds_of_first_check=float(f"{timing.first_check:.4g}"),
        device=timing.device,
        date=datetime.date.today().isoformat(),
        config=_timed(job),
    )


def measure_run(config: Config) -> "Timing":
    """Times updates, a validation and the start of a checkpoint of this config's run."""
    from transformer_jax.compilation import keep_compiled_programs
    from transformer_jax.parallel.mesh import make_mesh
    from transformer_jax.runs.checkpoints import Checkpoints
    from transformer_jax.runs.run_folder import RunFolder
    from transformer_jax.training.data import load_data
    from transformer_jax.training.program import compile_program
    from transformer_jax.training.timing import measure

    train = config.train
    for name, is_set in [("teacher", train.teacher is not None), ("valid_bleu", train.valid_bleu)]:
        if is_set:
            raise ConfigError(f"--minutes: a row with train.{name} cannot be timed. Leave it out.")
    if train.valid_every != train.checkpoint_every:
        raise ConfigError(
            f"--minutes times a validation and a checkpoint together: train.valid_every="
            f"{train.valid_every} must be train.checkpoint_every={train.checkpoint_every}."
        )
    keep_compiled_programs()
    mesh = make_mesh(config.mesh)
    with tempfile.TemporaryDirectory() as folder:
        data = load_data(config, RunFolder(folder))
        sizes = data.vocabulary.sizes
        program = compile_program(config.model, config.train, mesh, sizes, data.shape)
        checkpoints = Checkpoints(Path(folder) / "checkpoints", 1)

        def save(state: "TrainState", step: int) -> None:
            checkpoints.save(program.to_save(state), step, None)

        try:
            return measure(config, data, program, AT_LEAST, SECONDS, save)
        finally:
            checkpoints.close()


def main(arguments: Sequence[str]) -> None:
    """Times the config in the arguments, and writes the file that they name."""
    from transformer_jax.config.files import load_config, split_overrides

    left, overrides = split_overrides(arguments)
    config = load_config(left[0], overrides)
    timing: Mapping[str, Any] = measure_run(config)._asdict()
    write_atomically(Path(left[1]), (json.dumps(timing) + "\n").encode())


if __name__ == "__main__":
    from transformer_jax.use.command_line import run_main

    run_main(lambda: main(sys.argv[1:]))
