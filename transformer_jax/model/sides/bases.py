"""What encoders and decoders are, with what most of them share.

Dimension key
  B batch   L length   M source length   E features of the encoder's output
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import flax.linen as nn
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.interfaces import Place


class Base(nn.Module):
    """An encoder or a decoder; by default it has no layers and does not know the positions."""

    config: ModelConfig

    self_attention: ClassVar[bool] = False  # whether it has that, or what replaces it
    uses_positions: ClassVar[bool] = False

    @staticmethod
    def longest(config: ModelConfig) -> int | None:
        """The largest number of positions of a sentence or row; None: any number."""
        return None

    @staticmethod
    def problems(config: ModelConfig) -> Iterator[str]:
        """Why its parts cannot be combined, with the fix; empty if they can."""
        yield from ()

    @nn.nowrap
    def stack(self) -> tuple[Any, int] | None:
        """A layer, and how many there are; None: there are no layers."""
        return None


class Encoder(Base):
    """A module with `__call__(x_BMD, place, rows_B)`, from the embedded source to `[B, M, E]`."""

    remat: bool = False

    @staticmethod
    def features(config: ModelConfig) -> int:
        """E, the number of features of the output."""
        return config.d_model

    def position_vectors(self, place: Place) -> Array | float:
        """What is added to the embedding."""
        return 0.0

    @staticmethod
    def summary(encoded_BME: Array) -> Array:
        """What a recurrent decoder's first state is made from, at each source position."""
        return encoded_BME

    @staticmethod
    def keys_values(encoded_BME: Array) -> tuple[Array, Array]:
        """The keys and the values of a convolutional decoder's attention."""
        return encoded_BME, encoded_BME


class Decoder(Base):
    """A module with these methods beside `empty_memory` and `empty_cache`, which are for search.

    __call__(x_BLD, target, encoded_BME, source, rows_B) -> (y_BLD, watched weights | None)
    remember(encoded_BME, source) -> memory
    step(x_BKD, now, memory, cache) -> (y_BKD, cache, watched weights | None)
    """

    encoder: Any  # the encoder's class, for the features of its output
    remat: bool = False
    watch: bool = False

    multi_head: ClassVar[bool] = False  # whether attention to the source has several heads

    def position_vectors(self, target: Place, length: int, source: Place) -> Array | float:
        """What is added to the embedding; `length`: positions of the longest target."""
        return 0.0
