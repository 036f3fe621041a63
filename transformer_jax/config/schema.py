"""The config's schema: frozen dataclasses that hold every key, its default, range and meaning.

A config file is a diff against these defaults. A key is immutable unless it has `mutable=True`: a
later `train` on the same folder that contradicts an immutable key is refused.
"""

import dataclasses
from typing import Any

from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.keys import Key, key, keys_of
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.config.vocabulary import VocabularyConfig


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
    seed: int = key(
        0,
        "of parameters, dropout and batches",
        at_least=0,
        at_most=2**32 - 1,
    )


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
