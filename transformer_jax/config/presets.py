"""What several presets share: words as arguments, the paper's big model, a recipe of today."""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import ConfigError

SIZES = ("base", "big")
RECIPES = ("paper", "modern")
# Vaswani et al. 2017, table 3; on en-fr the paper lowers dropout to 0.1.
BIG: dict[str, Any] = {
    "model.d_model": 1_024,
    "model.d_ff": 4_096,
    "model.num_heads": 16,
    "model.dropout": 0.3,
}
# The parts that experiments.later_parts found best together, and its optimizer.
MODERN: dict[str, Any] = {
    "model.norm": "pre",
    "model.norm_kind": "rms",
    "model.activation": "swiglu",
    "model.positions": "rotary",
    "model.qk_norm": True,
    "train.optimizer": "muon",
    "train.schedule": "cosine",
    "train.warmup_steps": 1_000,
    "train.clip_norm": 1.0,
}
# The peak rate of MODERN at d_model 256, chosen by experiments.rates; it falls with the root
# of the width, as the paper's formula does.
MODERN_RATE, TUNED_WIDTH = 0.009, 256


def words(file: str, argument: str, *choices: Sequence[str]) -> list[str]:
    """One word of each group of choices, in any order in the argument, separated by commas.

    Args:
      file: the preset, for the message.
      argument: what follows `FILE.py:`; without a word of a group it is the group's first.
      choices: the groups.

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


def set_recipe(config: ConfigDict, size: str, recipe: str) -> None:
    """Sets the keys of a size and of a recipe.

    Args:
      config: the schema's defaults, which are the paper's base model, and train.steps.
      size: one of SIZES.
      recipe: one of RECIPES.
    """
    if size == "big":
        config.update_from_flattened_dict(BIG)
    if recipe == "modern":
        config.update_from_flattened_dict(MODERN)
        config.model.d_ff = gated_width(config.model.d_ff)
        config.train.decay_steps = config.train.steps
        config.train.peak_learning_rate = rate_at(MODERN_RATE, config.model.d_model)


def rate_at(rate: float, d_model: int) -> float:
    """The peak rate at this width, if `rate` is the one at TUNED_WIDTH."""
    return float(f"{rate * (TUNED_WIDTH / d_model) ** 0.5:.2g}")


def gated_width(d_ff: int) -> int:
    """d_ff of SwiGLU, which has three matrices, with the parameters of two of width d_ff."""
    return round(2 * d_ff / 3)
