"""A table of config values from the command line, without a file of its own.

    python -m experiments.sweep --config=configs/demo.py --config.model.num_heads=2,4,8 --seeds=0,1

A key with several values, separated by commas, makes one row per value; several such keys make
every combination. A key with one value applies to all rows. The first row is the base that the
others are compared with. Results are in docs/results/sweep/NAME and runs in runs/sweep/NAME, where
NAME is made of the config file and the keys; --out and --runs choose other folders.
"""

import hashlib
import itertools
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config.files import load_config, override_texts, parse_value
from transformer_jax.config.schema import KEYS
from transformer_jax.errors import ConfigError
from transformer_jax.tables.command import FLAGS, run
from transformer_jax.tables.digests import COUNTED
from transformer_jax.tables.experiment import Experiment, Scale, slug
from transformer_jax.tables.pace import check_lengths
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

CONFIG = Flag("config", str, "FILE[:ARGUMENT]", "the rows' config file", required=True)
SPLIT = Flag("split", str, "NAME", "the split that is scored", default="test")
SWEEP_FLAGS = [CONFIG, SPLIT, *(flag for flag in FLAGS if flag.name != "scale")]
MOST_ROWS = 1_000
LONGEST_NAME = 100  # characters of a folder's name


def main() -> None:
    """Makes an experiment from the command line and does what its flags ask for."""
    others, texts = override_texts(sys.argv[1:])
    values = parse_experiment("sweep", __doc__, SWEEP_FLAGS, others)
    experiment = make_sweep(values["config"], texts, values["split"])
    [scale] = experiment.scales.values()
    for row in experiment.rows.values():
        check_lengths({**scale.overrides, **row}, values["minutes"])
    run(experiment, values | {"scale": next(iter(experiment.scales))})


def make_sweep(config: str, texts: Mapping[str, Sequence[str]], split: str) -> Experiment:
    """An experiment with a row per combination of the values, and one scale, named after them.

    Args:
      config: a config file.
      texts: the texts that the command line gives each key; the last one counts.
      split: the split that is scored.

    Raises:
      ConfigError: no key has several values, a key cannot be swept, or a row's config is invalid.
    """
    if "seed" in texts:
        raise ConfigError("--config.seed: the seeds of a sweep are --seeds=0,1.")
    several = {name: values(name, given[-1]) for name, given in texts.items() if "," in given[-1]}
    if not several:
        raise ConfigError(
            "no key has several values: give one, such as --config.model.num_heads=2,4,8."
        )
    if (count := math.prod(map(len, several.values()))) > MOST_ROWS:
        raise ConfigError(f"a sweep of {count} rows is too long: at most {MOST_ROWS}.")
    others = {name: given for name, given in texts.items() if name not in several}
    fixed = {name: parse_value(KEYS[name], given) for name, given in others.items()}
    lasts = {name: name.rpartition(".")[2] for name in several}
    times = Counter(lasts.values())
    short = {name: last if times[last] == 1 else name for name, last in lasts.items()}
    rows = {}
    for chosen in itertools.product(*(own.items() for own in several.values())):
        pairs = list(zip(several, chosen, strict=True))
        row = ", ".join(f"{short[name]}={text}" for name, (text, _) in pairs)
        rows[row] = {name: value for name, (_, value) in pairs}
        load_config(config, {**fixed, **rows[row]})
    changing = {k: v for k, v in fixed.items() if not KEYS[k].mutable or k in COUNTED}
    words = [*short.values(), *(f"{k.rpartition('.')[2]}={v}" for k, v in changing.items())]
    file, _, argument = config.partition(":")
    name = slug(" ".join([Path(file).stem, argument, *words]))
    if len(name) > LONGEST_NAME:
        name = name[: LONGEST_NAME - 8] + hashlib.sha256(name.encode()).hexdigest()[:8]
    about = f"A sweep of {config}: {' x '.join(several)}."
    return Experiment("sweep", rows, {name: Scale(config, fixed, split=split)}, about)


def values(name: str, text: str) -> dict[str, Any]:
    """The values of a key by their texts. Raises ConfigError: it is a list, or one comes twice."""
    key = KEYS[name]
    if key.kind is tuple or name == "data.src":
        raise ConfigError(
            f"--config.{name}={text}: {name} is itself a list, so its commas cannot separate rows. "
            "Write an experiment of your own for it, as CONTRIBUTING.md describes."
        )
    texts = [one.strip() for one in text.split(",")]
    found = {one: parse_value(key, [one]) for one in texts}
    if len(set(found.values())) < len(texts):
        raise ConfigError(f"--config.{name}={text}: a value is there twice.")
    return found


if __name__ == "__main__":
    run_main(main)
