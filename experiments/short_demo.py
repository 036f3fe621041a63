"""Runs of a few minutes that experiments share: on the built-in corpus, or on text they make."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from transformer_jax.errors import DataError
from transformer_jax.files import write_atomically
from transformer_jax.tables.experiment import Job, Overrides, Scale
from transformer_jax.text.lines import TextLines

SHORT_DEMO = Scale(
    "configs/demo.py",
    {
        "train.steps": 1_000,
        "train.decay_steps": 1_000,
        "train.valid_every": 250,
        "train.checkpoint_every": 500,
        "train.keep_last": 1,
    },
    seeds=(0, 1, 2),
    compared=False,
)
# What findings about the watched layer rely on: the built-in text, and that the layer is the first.
WATCHING = ("data", "model.watched_layer", "model.watched_heads")
WATCHING += ("model.num_layers", "model.num_decoder_layers")


def updates(count: int, every: int | None = None) -> Overrides:
    """Keys of a run of `count` updates, which validates and saves after `every`; None: `count`."""
    length = dict.fromkeys(("train.steps", "train.decay_steps"), count)
    return length | dict.fromkeys(("train.valid_every", "train.checkpoint_every"), every or count)


def at_rates(rates: Mapping[str, float]) -> dict[str, Overrides]:
    """Keys of rows, by their peak rates."""
    return {row: {"train.peak_learning_rate": rate} for row, rate in rates.items()}


def on_text(folder: Path, overrides: Overrides) -> Scale:
    """The short demo on text files in a folder, with further keys."""
    files = {
        "data.source": "files",
        "data.path": str(folder),
        "data.pairs": 20_000,  # the default: the preset's is for the built-in corpus
    }
    return SHORT_DEMO._replace(overrides={**SHORT_DEMO.overrides, **files, **overrides})


def write_split(folder: Path, stem: str, sides: Mapping[str, Iterable[object]]) -> None:
    """Writes the files STEM.SUFFIX of a split, from the lines of each suffix, one after another.

    Each is there whole or not at all, so the last one tells that all are.
    """
    for suffix, lines in sides.items():
        text = "".join(f"{line}\n" for line in lines)
        write_atomically(folder / f"{stem}.{suffix}", text.encode())


def data_file(*names: str) -> Path:
    """A file or folder of $TRANSFORMER_JAX_DATA. Raises DataError if it is not there."""
    path = Path(os.environ.get("TRANSFORMER_JAX_DATA", "data"), *names)
    if not path.exists():
        raise DataError(
            f"{path}: no such file. TRANSFORMER_JAX_DATA=FOLDER names the folder of {names[0]}."
        )
    return path


def write_captions(folder: Path) -> None:
    """Writes Multi30k's splits in English and German, to which an experiment adds its own."""
    data = data_file("multi30k")
    for stem in ("train", "valid", "test2016"):
        sides = {suffix: TextLines(data / f"{stem}.{suffix}.gz") for suffix in ("en", "de")}
        write_split(folder, stem, sides)


def captions_of_test(job: Job) -> tuple[list[str], list[str]]:
    """The lines of test2016 in English and German, from where the run's text is."""
    folder = job.config().data.path or ""
    english, german = (list(TextLines(Path(folder, f"test2016.{x}"))) for x in ("en", "de"))
    return english, german
