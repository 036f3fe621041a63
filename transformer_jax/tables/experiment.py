"""What an experiment is: rows that differ in config keys, seeds, scales, what the paper says."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.config.files import load_config
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.reporting.page import Part

Overrides = Mapping[str, Any]  # dotted config keys and their values
Seeds = tuple[int, ...]
NONE: Overrides = MappingProxyType({})


class Scale(NamedTuple):
    """How large an experiment is run."""

    config: str | Mapping[str, str]  # "FILE.py" or "FILE.py:ARGUMENT"; or one for each row
    overrides: Overrides = NONE  # of every row, before the row's own
    seeds: Seeds | Mapping[str, Seeds] = (0,)  # of every row, or those of each
    split: str = "test"  # what is translated and scored
    # Last checkpoints averaged before that, or as many for each row; 0: the last one as it is.
    average: int | Mapping[str, int] = 0
    row: Callable[[Overrides], Overrides] = dict  # a row's overrides at this scale
    rows: tuple[str, ...] = ()  # those shown, of the paper's alone too; none: the experiment's
    compared: bool = True  # whether rows are compared with the first

    def seeds_of(self, row: str) -> Seeds:
        """Those that a row is run with."""
        return self.seeds if isinstance(self.seeds, tuple) else self.seeds[row]


class Experiment(NamedTuple):
    """A table: each row is a run for each seed, and the first row is what others differ from."""

    name: str
    rows: Mapping[str, Overrides]
    scales: Mapping[str, Scale]
    about: str = ""  # how to read it
    paper: Mapping[str, Mapping[str, float]] = MappingProxyType(
        {}
    )  # row -> metric -> the figure printed
    source: str = ""  # where those stand
    metrics: tuple[str, ...] = ("perplexity", "bleu")  # columns of the table
    # What stands above the table, from the folder of the results and the runs, which may be gone.
    findings: Callable[[Path, Sequence["Job"]], Sequence[Part]] | None = None

    def shown(self, scale: str) -> tuple[str, ...]:
        """Rows of the table at a scale, in order."""
        return self.scales[scale].rows or tuple(self.rows)


class Job(NamedTuple):
    """A row and a seed: one run."""

    experiment: str
    row: str
    seed: int
    scale: Scale
    overrides: Overrides  # all of them, the seed's too
    folder: Path  # the run's

    @property
    def config_file(self) -> str:
        """With its argument, if it has one."""
        config = self.scale.config
        return config if isinstance(config, str) else config[self.row]

    @property
    def average(self) -> int:
        """Checkpoints; 0: none are averaged."""
        average = self.scale.average
        return average if isinstance(average, int) else average[self.row]

    @property
    def label(self) -> str:
        """Row and seed, for people."""
        return f"{self.row}, seed {self.seed}"

    def config(self) -> Config:
        """The run's config."""
        return load_config(self.config_file, self.overrides)

    def commands(self) -> list[list[str]]:
        """Arguments of `python -m transformer_jax`, one command after the other."""
        workdir = f"--workdir={self.folder}"
        keys = [f"--config.{name}={_text(value)}" for name, value in self.overrides.items()]
        commands = [["train", f"--config={self.config_file}", workdir, *keys]]
        if self.average:
            commands.append(["average", workdir, f"--last={self.average}"])
        commands.append(["evaluate", workdir, f"--split={self.scale.split}"])
        if self.average:
            commands[-1].append("--checkpoint=average")
        return commands


def _text(value: Any) -> str:
    """A value as `--config.KEY=` reads it."""
    if value is None:
        return "none"
    return str(tuple(value)) if isinstance(value, list | tuple) else str(value)


def slug(text: str) -> str:
    """A file name."""
    return re.sub(r"[^\w.=-]+", "_", text).strip("_")


def make_jobs(
    experiment: Experiment,
    scale: str,
    runs: Path,
    rows: tuple[str, ...] = (),
    seeds: Seeds = (),
    overrides: Overrides = NONE,
) -> list[Job]:
    """The runs asked for, seeds one after the other, so that a whole table is there soonest.

    Args:
      experiment: the table.
      scale: a name in its scales.
      runs: the folder of its runs.
      rows: names of rows; none: all.
      seeds: none: the scale's.
      overrides: of every run, after the row's own.

    Raises:
      ConfigError: there is no such scale or row, or two rows share a folder.
    """
    if scale not in experiment.scales:
        known = ", ".join(experiment.scales)
        raise ConfigError(f"--scale={scale}: {experiment.name} has {known}.")
    every = [row for row in experiment.shown(scale) if row in experiment.rows]
    unknown = [row for row in rows if row not in every]
    if unknown:
        known = "; ".join(every)
        raise ConfigError(f"--rows: {experiment.name} has no row {unknown[0]!r}; it has {known}.")
    if len({slug(row) for row in experiment.rows}) < len(experiment.rows):
        raise ConfigError(f"{experiment.name}: two rows have the same name for files.")
    chosen = experiment.scales[scale]
    seeds_of = {row: seeds or chosen.seeds_of(row) for row in rows or every}
    jobs = []
    for seed in dict.fromkeys(seed for own in seeds_of.values() for seed in own):
        for row in [row for row, own in seeds_of.items() if seed in own]:
            changes = {**chosen.overrides, **chosen.row(experiment.rows[row]), **overrides}
            folder = runs / slug(row) / f"seed-{seed}"
            whole = {**changes, "seed": seed}
            jobs.append(Job(experiment.name, row, seed, chosen, whole, folder))
    return jobs
