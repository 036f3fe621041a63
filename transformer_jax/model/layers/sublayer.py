"""The base class of sub-layers, which are the parts of a layer.

A sub-layer is a module with
    __call__(x_BLD, context) -> (y_BLD, weights | None)               all positions at once
    remember(encoded_BME, source) -> memory                           for each source sentence
    read(x_BMD, context) -> (y_BMD, memory)                           for a source that is a prefix
    step(x_BKD, context, memory, cache)                               one search step
      -> (y_BKD, Cache, weights | None)
    empty_memory(sizes), empty(sizes)                                 the shapes of memory and cache

Dimension key
  B batch   L length   M source length   D d_model   K beams   E features of the encoder's output
"""

from typing import Any, ClassVar

import flax.linen as nn
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.interfaces import Cache, Context, Place, SearchSizes, Side

EMPTY_CACHE = Cache((), ())  # a sub-layer that keeps nothing for search has this one


class Sublayer(nn.Module):
    """The base class of a layer's parts; by default a sub-layer keeps nothing for search."""

    config: ModelConfig
    side: Side = Side()
    limited: ClassVar[bool] = False  # whether sentences have at most model.max_positions subwords

    def remember(self, encoded_BME: Array, source: Place) -> Any:
        """What the sub-layer keeps of the source sentences: nothing."""
        return ()

    def read(self, x_BMD: Array, context: Context) -> tuple[Array, Any]:
        """The output at a prefix, which search reads once, and what the sub-layer keeps of it."""
        return self(x_BMD, context)[0], ()

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> Any:
        """Zeros in the shapes of `remember`, boxed with the names of their axes."""
        return ()

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """The cache before the first position, boxed with the names of its axes."""
        return EMPTY_CACHE
