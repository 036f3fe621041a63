"""What several presets share: words as arguments, the paper's big model, a recipe of today."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import ConfigError

# Vaswani et al. 2017, table 3; on en-fr the paper lowers dropout to 0.1.
BIG: Mapping[str, Any] = MappingProxyType(
    {
        "model.d_model": 1_024,
        "model.d_ff": 4_096,
        "model.num_heads": 16,
        "model.dropout": 0.3,
    }
)
# The parts that experiments.later_parts found best together, and its optimizer; d_ff is a third
# smaller, since SwiGLU has three matrices. The peak rate was chosen by experiments.real_text.
MODERN: Mapping[str, Any] = MappingProxyType(
    {
        "model.norm": "pre",
        "model.norm_kind": "rms",
        "model.activation": "swiglu",
        "model.positions": "rotary",
        "model.qk_norm": True,
        "train.optimizer": "muon",
        "train.schedule": "cosine",
        "train.clip_norm": 1.0,
    }
)


def words(file: str, argument: str, *choices: Sequence[str]) -> list[str]:
    """One word of each group of choices, in any order in the argument, separated by commas.

    Args:
      file: the preset, for the message.
      argument: what follows `FILE.py:`; without a word of a group it is the group's first.

    Raises:
      ConfigError: a word is in no group, or there are two of a group.
    """
    given = [word.strip() for word in argument.split(",")]
    found = [[word for word in given if word in group] for group in choices]
    if any(len(own) > 1 for own in found) or sum(map(len, found)) < len(given):
        groups = " and one of ".join(", ".join(group) for group in choices)
        example = ",".join(group[-1] for group in choices)
        raise ConfigError(
            f"{file}:{argument}: valid choices are one of {groups}, such as {file}:{example}."
        )
    return [own[0] if own else group[0] for own, group in zip(found, choices, strict=True)]


def apply(config: ConfigDict, values: Mapping[str, Any]) -> None:
    """Sets dotted keys of a config."""
    config.update_from_flattened_dict(dict(values))
