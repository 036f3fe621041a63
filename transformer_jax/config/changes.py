"""A config with other values, and how two configs differ."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.config.schema import KEYS, Config, known_key, value_at
from transformer_jax.config.serialization import from_config_dict, to_dict

REVERSE = "reverse"  # the folder of the other direction, in a run's folder
PATHS = ("data.path", "vocabulary.path", "train.init_from", "train.teacher")


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with some dotted keys replaced. Raises ConfigError: unknown key or wrong type."""
    tree = to_dict(config)
    for name, value in values.items():
        known_key(name)
        *sections, last = name.split(".")
        (tree[sections[0]] if sections else tree)[last] = value
    return from_config_dict(tree)


def with_absolute_paths(config: Config) -> Config:
    """The config with paths that are valid from any working directory; URLs are kept."""
    paths = {name: os.path.expanduser(value_at(config, name) or "") for name in PATHS}
    known = {name: path for name, path in paths.items() if path and path[0] != "~"}
    local = {name: os.path.abspath(path) for name, path in known.items() if "://" not in path}
    return with_values(config, local)


def of_other_direction(config: Config) -> Config:
    """The config of the run in WORKDIR/reverse, which train.agreement_weight trains too."""
    data, origin = config.data, config.train.init_from
    values = {"data.src": data.tgt, "data.tgt": data.src}
    if origin is not None:
        values["train.init_from"] = os.path.join(origin, REVERSE)
    return with_values(config, values)


def immutable_differences(old: Config, new: Config) -> dict[str, str]:
    """A line for each immutable key on which the two configs differ, by the key's name."""
    return {
        name: f"{name}: the run has {was!r}, the config now says {now!r}"
        for name, was, now in _differences(old, new)
        if not KEYS[name].mutable
    }


def mutable_differences(old: Config, new: Config) -> list[str]:
    """`KEY is VALUE (was VALUE)` for each mutable key on which the two configs differ."""
    return [
        f"{name} is {now!r} (was {was!r})"
        for name, was, now in _differences(old, new)
        if KEYS[name].mutable
    ]


def _differences(old: Config, new: Config) -> Iterator[tuple[str, Any, Any]]:
    for name in KEYS:
        was, now = value_at(old, name), value_at(new, name)
        if was != now:
            yield name, was, now
