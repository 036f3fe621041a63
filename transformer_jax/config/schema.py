"""The config's schema: frozen dataclasses that hold every key, its default, range and meaning.

A config file is a diff against these defaults. A key is immutable unless it has `mutable=True`: a
later `train` on the same folder that contradicts an immutable key is refused.
"""

import dataclasses
import difflib
from typing import Any

from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.keys import Key, key, keys_of
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.old_keys import OLD_KEYS
from transformer_jax.config.train import TrainConfig
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; -1: all that the other axes leave over."""

    data: int = key(
        -1, "devices that divide the rows of a batch; -1: all that remain", mutable=True
    )
    fsdp: int = key(1, "devices that divide rows, parameters and optimizer state", mutable=True)
    tensor: int = key(1, "devices that divide heads, hidden units and vocabulary", mutable=True)


@dataclasses.dataclass(frozen=True)
class Config:
    """Every key of a run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    vocabulary: VocabularyConfig = VocabularyConfig()
    train: TrainConfig = TrainConfig()
    mesh: MeshConfig = MeshConfig()
    decode: DecodeConfig = DecodeConfig()
    seed: int = key(0, "of parameters, dropout and batches", at_least=0, at_most=2**32 - 1)


KEYS: dict[str, Key] = {one.name: one for one in keys_of(Config)}
SECTIONS = {name.split(".")[0] for name in KEYS if "." in name}


def is_whole(config: Config) -> bool:
    """Whether every section of a config is a section: a dataclass takes anything."""
    whole = Config()
    return all(isinstance(getattr(config, name), type(getattr(whole, name))) for name in SECTIONS)


def value_at(config: Config, name: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def known_key(name: str) -> Key:
    """The key of that dotted name.

    Raises:
      ConfigError: there is no such key. The message names the nearest one, or those that replace an
        old key.
    """
    if name in KEYS:
        return KEYS[name]
    if name in SECTIONS:
        raise ConfigError(f"{name} is a section of the config. Name a key in it: {keys_in(name)}.")
    if name in OLD_KEYS:
        replaced = " and ".join(OLD_KEYS[name][0])
        raise ConfigError(f"{name} is now {replaced}." if replaced else f"{name} has gone.")
    is_key = "." in name or any(f".{key}".endswith(f".{name}") for key in KEYS)
    sections = [] if is_key else difflib.get_close_matches(name, SECTIONS, n=1, cutoff=0.75)
    near = sections[0] if sections else nearest_key(name)
    section = name.split(".")[0] if name.split(".")[0] in SECTIONS else ""
    suggestion = f"Did you mean {near}?" if near else f"Known keys: {keys_in(section)}."
    raise ConfigError(f"{name} is not a key of the config. {suggestion}")


def nearest_key(name: str) -> str | None:
    """The key most like `name`, or None if no key is like it.

    It first looks for close names within the section that `name` gives, then for close names in any
    section, then for less close ones within the section.
    """
    section, _, last = name.rpartition(".")
    lasts = {key.rpartition(".")[2]: key for key in KEYS}
    own = {key.rpartition(".")[2]: key for key in KEYS if key.startswith(section + ".")}
    for words, cutoff in ((own, 0.8), (lasts, 0.75), (own, 0.6)):
        if near := difflib.get_close_matches(last, words, n=1, cutoff=cutoff):
            return words[near[0]]
    return None


def keys_in(section: str) -> str:
    """The names of the keys in a section, for a message; the sections themselves for ""."""
    if not section:
        return ", ".join(sorted(SECTIONS)) + ", seed"
    return ", ".join(name for name in KEYS if name.startswith(section + "."))
