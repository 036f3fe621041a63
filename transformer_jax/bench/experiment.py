"""What an experiment is: rows that differ in config keys, seeds, scales, what the paper says."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.config import Config
from transformer_jax.config_files import load_config
from transformer_jax.errors import ConfigError

Overrides = Mapping[str, Any]  # dotted config keys and their values
NONE: Overrides = MappingProxyType({})


class Scale(NamedTuple):
    """How large an experiment is run."""

    config: str  # a config file, "FILE.py" or "FILE.py:ARGUMENT"
    overrides: Overrides = NONE  # of every row, before the row's own
    seeds: tuple[int, ...] = (0,)
    split: str = "test"  # what is translated and scored
    average: int = 0  # last checkpoints averaged before that; 0: the last one as it is
    row: Callable[[Overrides], Overrides] = dict  # a row's overrides at this scale


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


class Job(NamedTuple):
    """A row and a seed: one run."""

    experiment: str
    row: str
    seed: int
    scale: Scale
    overrides: Overrides  # all of them, the seed's too
    folder: Path  # the run's

    @property
    def label(self) -> str:
        """Row and seed, for people."""
        return f"{self.row}, seed {self.seed}"

    def config(self) -> Config:
        """The run's config."""
        return load_config(self.scale.config, self.overrides)

    def commands(self) -> list[list[str]]:
        """Arguments of `python -m transformer_jax`, one command after the other."""
        workdir = f"--workdir={self.folder}"
        keys = [f"--config.{name}={_text(value)}" for name, value in self.overrides.items()]
        commands = [["train", f"--config={self.scale.config}", workdir, *keys]]
        if self.scale.average:
            commands.append(["average", workdir, f"--last={self.scale.average}"])
        commands.append(["evaluate", workdir, f"--split={self.scale.split}"])
        if self.scale.average:
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
    seeds: tuple[int, ...] = (),
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
    unknown = [row for row in rows if row not in experiment.rows]
    if unknown:
        known = "; ".join(experiment.rows)
        raise ConfigError(f"--rows: {experiment.name} has no row {unknown[0]!r}; it has {known}.")
    if len({slug(row) for row in experiment.rows}) < len(experiment.rows):
        raise ConfigError(f"{experiment.name}: two rows have the same name for files.")
    chosen = experiment.scales[scale]
    jobs = []
    for seed in seeds or chosen.seeds:
        for row in rows or tuple(experiment.rows):
            own = chosen.row(experiment.rows[row])
            every = {**chosen.overrides, **own, **overrides, "seed": seed}
            folder = runs / slug(row) / f"seed-{seed}"
            jobs.append(Job(experiment.name, row, seed, chosen, every, folder))
    return jobs
