"""Definition of an experiment: rows that differ in config keys, seeds, scales, paper's figures."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.config.changes import with_absolute_paths
from transformer_jax.config.data import DataConfig
from transformer_jax.config.files import load_config
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.kinds import wrong_field
from transformer_jax.reporting.page import Part
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.digests import digest_of
from transformer_jax.text.corpora import open_corpus
from transformer_jax.use.environment import check_docstrings

Overrides = Mapping[str, Any]  # dotted config keys and their values
Seeds = Sequence[int]
NONE: Overrides = MappingProxyType({})


def for_row(value: Any, row: str) -> Any:
    """A scale's setting for a row: `value` itself, or its entry if it is a mapping by row."""
    return value.get(row) if isinstance(value, Mapping) else value


class Scale(NamedTuple):
    """The size at which an experiment is run."""

    config: str | Mapping[str, str]  # "FILE.py" or "FILE.py:ARGUMENT"; or one for each row
    overrides: Overrides = NONE  # for every row, applied before the row's own
    seeds: Seeds | Mapping[str, Seeds] = (0,)  # seeds of every row, or by row
    split: str = "test"  # the split that is translated and scored
    # Number of last checkpoints to average, or this number by row; 0: the last one, not averaged.
    average: int | Mapping[str, int] = 0
    own: Mapping[str, Overrides] = MappingProxyType({})  # by row, applied after the row's own
    label: Callable[[str], str] = str  # a row's name in tables and plots of this scale
    # Rows of the table, which may be rows that only the paper has; empty: the experiment's rows.
    rows: tuple[str, ...] = ()
    compared: bool = True  # whether rows are compared with the first
    # Every row trains for this time on the device, which decides its number of updates
    # (tables/pace.py); None: as many as its config says.
    minutes: float | None = None

    def keys_of(self, row: str, overrides: Overrides) -> dict[str, Any]:
        """What a row with these overrides changes at this scale."""
        return {**overrides, **self.own.get(row, {})}

    def seeds_of(self, row: str) -> Seeds:
        """The seeds of a row. Raises ConfigError if they are not numbers."""
        seeds: Seeds = for_row(self.seeds, row)
        if seeds is None:
            raise ConfigError(
                f"the seeds of row {row!r} are {seeds!r}; expected numbers, such as (0, 1)."
            )
        return seeds


class Experiment(NamedTuple):
    """A table: each row has one run per seed, and the first row is the base of the others."""

    name: str
    rows: Mapping[str, Overrides]
    scales: Mapping[str, Scale]
    about: str = ""  # how to read it
    paper: Mapping[str, Mapping[str, float]] = MappingProxyType({})  # by row and metric
    source: str = ""  # where the paper prints these figures
    metrics: tuple[str, ...] = ("perplexity", "bleu")  # columns of the table
    # Makes the findings above the table from the folder of the results and the runs, whose folders
    # may have been deleted.
    findings: Callable[[Path, Sequence["Job"]], Sequence[Part]] | None = None
    # Makes what the runs read, such as their text, if it is not there; called before they begin.
    prepare: Callable[[], None] | None = None
    # Keys, or sections of them, that the findings rely on: --config cannot set them.
    fixed: tuple[str, ...] = ()
    in_scale: bool = False  # the findings know a folder of results by its scale's name

    def shown(self, scale: str) -> tuple[str, ...]:
        """Rows of the table at a scale, in order."""
        return self.scales[scale].rows or tuple(self.rows)

    def timed(self, scale: str, minutes: float | None) -> "Experiment":
        """The same, with this time for each row of a scale."""
        own = self.scales[scale]._replace(minutes=minutes)
        return self._replace(scales={**self.scales, scale: own})


class Job(NamedTuple):
    """A row and a seed: one run."""

    experiment: str
    row: str
    seed: int
    scale: Scale
    overrides: Overrides  # all overrides, the seed included
    folder: Path  # the run's folder

    @property
    def config_file(self) -> str:
        """The config file, with its argument if it has one."""
        file = for_row(self.scale.config, self.row)
        if file is None:
            raise ConfigError(f"row {self.row!r} has no config file: name one in its scale.")
        return str(file)

    @property
    def average(self) -> int:
        """Number of checkpoints to average; 0: no average."""
        number = for_row(self.scale.average, self.row)
        if not isinstance(number, int) or number < 0:
            raise ConfigError(
                f"average of row {self.row!r} is {number!r}; expected a number of checkpoints, or "
                "0 for none."
            )
        return number

    @property
    def label(self) -> str:
        """Row and seed, for messages."""
        return f"{self.row}, seed {self.seed}"

    @property
    def scored(self) -> str:
        """The split that is scored, and how many checkpoints are averaged for it."""
        return self.scale.split + (f", {self.average} checkpoints" if self.average else "")

    def config(self) -> Config:
        """The run's config."""
        return load_config(self.config_file, self.overrides)

    def digest(self) -> str:
        """The digest of the run's config, by which its line of results is known."""
        return digest_of(self.config(), self.overrides)

    def commands(self) -> list[list[str]]:
        """The job's commands in order, each as the arguments of `python -m transformer_jax`."""
        workdir = f"--workdir={self.folder}"
        keys = [f"--config.{name}={_text(value)}" for name, value in self.overrides.items()]
        commands = [["train", f"--config={self.config_file}", workdir, *keys]]
        if self.average:
            commands.append(["average", workdir, f"--last={self.average}"])
        if self.config().data.sources:  # a language model has nothing to translate
            checkpoint = ["--checkpoint=average"] if self.average else []
            commands.append(["evaluate", workdir, f"--split={self.scale.split}", *checkpoint])
        return commands


def _text(value: Any) -> str:
    """A value in the form that `--config.KEY=` reads."""
    if value is None:
        return "none"
    return str(tuple(value)) if isinstance(value, list | tuple) else str(value)


def slug(text: str) -> str:
    """The text as a file name."""
    return re.sub(r"[^\w.=-]+", "_", text).strip("_")


def make_jobs(
    experiment: Experiment,
    scale: str,
    runs: Path,
    rows: tuple[str, ...] = (),
    seeds: Seeds = (),
    overrides: Overrides = NONE,
) -> list[Job]:
    """The requested runs: all rows with one seed first, so that a whole table is there early.

    Args:
      experiment: the table.
      scale: a name in its scales.
      runs: the folder of its runs.
      rows: names of rows; empty: all rows.
      seeds: empty: the scale's seeds.
      overrides: for every run, applied after the row's own.

    Raises:
      ConfigError: there is no such scale or row, two rows share a folder, or a name is no name of
        a folder.
    """
    check_names(experiment, scale)
    if fixed := [key for key in overrides if {key, key.partition(".")[0]} & {*experiment.fixed}]:
        raise ConfigError(
            f"--config.{fixed[0]}: what {experiment.name} finds out rests on its value. Leave it "
            "out."
        )
    every = [row for row in experiment.shown(scale) if row in experiment.rows]
    unknown = [row for row in rows if row not in every]
    if unknown:
        known = "; ".join(every)
        raise ConfigError(f"--rows: {experiment.name} has no row {unknown[0]!r}; it has {known}.")
    chosen = experiment.scales[scale]
    seeds_of = {row: seeds or chosen.seeds_of(row) for row in rows or every}
    jobs = []
    for seed in dict.fromkeys(seed for own in seeds_of.values() for seed in own):
        for row in [row for row, own in seeds_of.items() if seed in own]:
            changes = {**chosen.overrides, **chosen.keys_of(row, experiment.rows[row])}
            own = seeds_of[row]
            if "seed" in changes:
                raise ConfigError(
                    f"row {row!r} sets seed={changes['seed']}: seeds are those of the scale, or of "
                    "--seeds."
                )
            if len(set(own)) < len(own):
                raise ConfigError(f"row {row!r} has a seed twice: {', '.join(map(str, own))}.")
            folder = runs / slug(row) / f"seed-{seed}"
            whole = {**changes, **overrides, "seed": seed}
            jobs.append(Job(experiment.name, row, seed, chosen, whole, folder))
    if not jobs:
        raise ConfigError(f"{experiment.name}, scale {scale}: no row has a seed. Give some.")
    return jobs


def check_kinds(experiment: Experiment) -> None:
    """Raises ConfigError if a part has a wrong type, which may otherwise show only after hours."""
    check_docstrings()
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"{experiment!r:.60} is not an Experiment (tables/experiment.py).")
    _check_fields(f"{experiment.name}: ", experiment)
    shown = {row for scale in experiment.scales.values() for row in scale.rows}
    if unknown := experiment.paper.keys() - experiment.rows.keys() - shown:
        raise ConfigError(f"{experiment.name}: paper has {min(unknown)!r}, which is no row.")
    for name, scale in experiment.scales.items():
        where = f"{experiment.name}, scale {name}: "
        _check_fields(where, scale)
        check_minutes(f"{where}minutes", scale.minutes)
        labels = {row: scale.label(row) for row in experiment.rows}
        for own in labels.values():
            if not isinstance(own, str):
                raise ConfigError(f"{where}its function label gives {own!r:.60}; expected a name.")
        for names in (scale.rows, (*labels.values(),)):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ConfigError(f"{where}two rows are called {twice[0]!r}. Change one of them.")
        only_shown = experiment.paper.keys() - experiment.rows.keys()
        named = {"rows": set(scale.rows) - only_shown}
        for field in ("config", "seeds", "average", "own"):  # each may be a mapping by row
            value = getattr(scale, field)
            named[field] = set(value) if isinstance(value, Mapping) else set()
        for field, rows in named.items():
            if unknown := rows - experiment.rows.keys():
                known = "; ".join(experiment.rows)
                raise ConfigError(f"{where}{field} has {min(unknown)!r}; the rows are {known}.")


def check_minutes(name: str, minutes: float | None) -> None:
    """Raises ConfigError if a number of minutes for each row is none."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"{name}={minutes:g} must be a number above 0.")


def _check_fields(where: str, part: NamedTuple) -> None:
    if wrong := wrong_field(part):
        raise ConfigError(f"{where}{wrong}.")


def check_names(experiment: Experiment, scale: str) -> None:
    """Raises ConfigError if there is no such scale, or a name cannot be that of a row or folder."""
    check_kinds(experiment)
    name, rows = experiment.name, experiment.rows
    if scale not in experiment.scales:
        known = ", ".join(experiment.scales) or "none; such as {'small': Scale('configs/demo.py')}"
        raise ConfigError(f"--scale={scale}: {name} has {known}.")
    if not experiment.shown(scale):
        raise ConfigError(f"{name} has no rows: give it at least one.")
    for folder in (name, scale):
        if slug(folder) != folder or folder[:1] in ("", "."):
            raise ConfigError(
                f"{folder!r} cannot be the name of a folder: use letters, digits, and '_', '-', "
                "'=' or '.' between them."
            )
    if len({slug(row) for row in rows} - {"", ".", ".."}) < len(rows):
        raise ConfigError(f"{name}: names of rows, as files, must differ and have a letter.")
    for row in rows:
        if not row.isprintable() or ";" in row or row != row.strip():  # --rows separates by ;
            raise ConfigError(
                f"{name}: the row name {row!r} must be one line without ';', and without spaces "
                "at its ends."
            )


def check_rows(jobs: Sequence[Job], minutes: float | None = None) -> None:
    """Raises ConfigError, naming both rows, if two rows are the same config: one would do.

    With `minutes`, the time that each row gets, numbers of updates make no difference.
    """
    rows: dict[tuple[Config, int], str] = {}
    timed = "" if minutes is None else f", and {minutes:g} minutes decide train.steps"
    for row, job in {job.row: job for job in jobs}.items():
        config = replace(job.config(), seed=0)
        if timed:
            ends = config.train.decay_steps and 1
            config = replace(config, train=replace(config.train, steps=1, decay_steps=ends))
        same = rows.setdefault((config, job.average), row)
        if same != row:
            raise ConfigError(
                f"{job.experiment}: the rows {same!r} and {row!r} are the same config "
                f"({job.config_file} with all overrides{timed}). Change one of them or remove it."
            )


def _check_origin(job: Job) -> None:
    """Raises RunError if the job's run, which would continue, began from other weights."""
    run, own = RunFolder(job.folder), with_absolute_paths(job.config()).train.init_from
    begun = run.read_config().train.init_from if run.config_file.exists() else own
    if begun != own and (begun is None or own is None or Path(begun).exists()):
        raise RunError(
            f"{job.label} began with train.init_from={begun}, and it is {own} now. Remove "
            f"{job.folder}, or give another folder with --runs."
        )


def check_results(jobs: Sequence[Job]) -> None:
    """Raises UserError if a run would be trained whose results could then not be found.

    That is: the split that is scored is not there, fewer checkpoints are kept than averaged, the
    run may end early, or it is already beyond its last step.
    """
    seen = set[tuple[DataConfig, str]]()
    for job in jobs:
        config = job.config()
        train, split = config.train, job.scale.split
        _check_origin(job)
        kept = min(train.keep_last, -(-train.steps // train.checkpoint_every))
        if train.patience is not None:
            raise ConfigError(
                f"{job.label}: train.patience={train.patience} may end a run before its last step, "
                "whose scores the table needs. Set train.patience=None."
            )
        if job.average > kept:
            raise ConfigError(
                f"{job.label}: {job.average} checkpoints are averaged, and the run keeps {kept}: "
                f"train.steps={train.steps}, train.checkpoint_every={train.checkpoint_every}, "
                f"train.keep_last={train.keep_last}. Average fewer, or keep more."
            )
        steps = committed_steps(RunFolder(job.folder).checkpoints)
        if steps and steps[-1] > train.steps:
            raise RunError(
                f"{job.folder} is at step {steps[-1]}, beyond train.steps={train.steps}: give "
                "another folder with --runs."
            )
        if (config.data, split) not in seen:
            seen.add((config.data, split))
            open_corpus(config.data).split(split)
