"""Kernels written in Pallas: which platform uses them, and what attention gives to one.

The kernels' own modules are imported where they are called, because Pallas takes 0.1 s to import.
"""

import dataclasses
from typing import Any, NamedTuple

from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.model.attention.patterns import Pattern
from transformer_jax.model.interfaces import Place

GPUS = ("cuda", "gpu")  # names of the platform
SMALLEST_BLOCK = 16  # positions or features; a matrix unit multiplies at least 16 rows


class Setting(NamedTuple):
    """What the kernel depends on, except arrays."""

    patterns: tuple[Pattern, ...]  # who may attend to whom
    factor: float  # what q . k is multiplied by


class Queries(NamedTuple):
    """The queries; in a kernel, references to the part that a program reads."""

    query: Any  # [B, L, H, K]
    place: Place  # [B, L]


class Keys(NamedTuple):
    """The keys and values; in a kernel, references to the part that a program reads."""

    key: Any  # [B, M, H, K]
    value: Any  # [B, M, H, V]
    place: Place  # [B, M]


def with_attention_kernel(config: ModelConfig, platform: str) -> ModelConfig:
    """The config with "auto" replaced by the attention kernel of this platform.

    Raises:
      ConfigError: a GPU cannot compute the fused kernel with these sizes.
    """
    fits = all(size >= SMALLEST_BLOCK and fits_triton(size) for size in config.head_sizes)
    if config.attention_kernel == "fused" and platform in GPUS and not fits:
        d_k, d_v = config.head_sizes
        raise ConfigError(
            f"model.attention_kernel='fused' needs d_k and d_v that are powers of 2 and at least "
            f"{SMALLEST_BLOCK}; this model has {d_k} and {d_v}. Use model.attention_kernel='auto'."
        )
    if config.attention_kernel != "auto":
        return config
    fused = fits and platform in GPUS and config.dtype == "bfloat16"
    return dataclasses.replace(config, attention_kernel="fused" if fused else "plain")


def fits_triton(features: int) -> bool:
    """Whether a block can have this number of features: Triton's sizes are powers of 2."""
    return features.bit_count() == 1
