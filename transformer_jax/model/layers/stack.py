"""The layers of an encoder or a decoder, their positions, and the norm after the last layer.

Dimension key
  B batch   L length   D d_model   E features of the encoder's output   M source length
  K beams   T positions of the cache   S keys of the cache, T * K
"""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.cached_attention import cached_places, own_past
from transformer_jax.model.attention.patterns import (
    config_of_layer,
    cross_patterns,
    mask_of,
    self_patterns,
)
from transformer_jax.model.attention.self_attention import self_blocks
from transformer_jax.model.interfaces import (
    Attended,
    Cache,
    Context,
    Memory,
    Place,
    SearchSizes,
    Side,
    Sight,
    StepContext,
)
from transformer_jax.model.layers.layer import Layer, decoder_layer, encoder_layer
from transformer_jax.model.layers.norms import NORMS
from transformer_jax.model.layers.residuals import ends_with_norm
from transformer_jax.model.positions.choices import StackPositions


class Stack(nn.Module):
    """N layers, one after the other (Vaswani et al. 2017, section 3.1, figure 1).

    Each layer has a config of its own, from `config_of_layer`: layers may differ in what they see.
    The parameters of all have the same shapes (stacked_params.py).
    """

    config: ModelConfig
    side: Side = Side()
    remat: bool = False
    watched: int | None = None  # the layer that returns the weights of its cross-attention

    @property
    def depth(self) -> int:
        """N."""
        return self.config.decoder_depth if self.side.is_decoder else self.config.encoder_depth

    @property
    def sublayers(self) -> tuple[str, ...]:
        """The names of each layer's sub-layers."""
        return (decoder_layer if self.side.is_decoder else encoder_layer)(self.config)

    def setup(self) -> None:
        """The positions, the layers and the norm, named for their side."""
        config = self.config
        name, language = ("decoder", "tgt") if self.side.is_decoder else ("encoder", "src")
        layer = nn.remat(Layer) if self.remat else Layer
        self.positions = StackPositions(
            config,
            causal=self.side.is_decoder,
            biased="self_attention" in self.sublayers,
            name=f"{language}_positions",
        )
        self.layers = [
            layer(
                config_of_layer(config, n),
                self.sublayers,
                self.side,
                n == self.watched,
                name=f"{name}_{n}",
            )
            for n in range(self.depth)
        ]
        if ends_with_norm(config):  # the sum of all residuals is normalized once, at the end
            self.norm = NORMS[config.norm_kind](config.norm_epsilon, name=f"{name}_norm")

    def __call__(
        self,
        x_BLD: Array,
        place: Place,
        rows_B: Array | None,
        attended: Attended | None = None,
        self_place: Place | None = None,
    ) -> tuple[Array, Any]:
        """`[batch, length, d_model]`, and what the watched layer's cross-attention returns.

        Args:
          x_BLD: the embedded input.
          place: of its positions.
          rows_B: numbers of the rows in the global batch; None: not in training.
          attended: what a decoder's layers attend to. Only the watched layer draws from it.
          self_place: the place for patterns of self-attention; None: `place`.
        """
        seen = self_place or place
        sight = functools.cache(lambda config: self._sight(config, seen))
        context = functools.partial(Context, place, rows_B, self_place=seen, inputs_BLD=x_BLD)
        without_draws = attended and attended._replace(noise_source=None)
        x_BLD = self._to_residual_dtype(x_BLD)
        watched = None
        for layer in self.layers:
            own = attended if layer.watched else without_draws
            x_BLD, weights = layer(x_BLD, context(sight=sight(layer.config), attended=own))
            watched = weights if layer.watched else watched
        return self._normed(x_BLD), watched

    def read(self, x_BMD: Array, place: Place, self_place: Place) -> tuple[Any, ...]:
        """What each layer keeps of a prefix, which it reads as `__call__` does."""
        sight = functools.cache(lambda config: self._sight(config, self_place))
        context = functools.partial(Context, place, None, self_place=self_place, inputs_BLD=x_BMD)
        x_BMD = self._to_residual_dtype(x_BMD)
        memories = []
        for layer in self.layers:
            x_BMD, memory = layer.read(x_BMD, context(sight=sight(layer.config)))
            memories.append(memory)
        return tuple(memories)

    def _sight(self, config: ModelConfig, place: Place) -> Sight:
        """What the self-attention of a layer with this config sees in rows."""
        blocks = self_blocks(self, config, place.positions.shape[1], self.side.is_decoder)
        mask = blocks.mask(self_patterns(config, self.side.is_decoder), place)
        return Sight(mask, self.positions.bias(blocks.distance()))

    def step(
        self,
        x_BKD: Array,
        position_B: Array,
        ancestors_BKT: Array,
        cache: Cache,
        memory: Memory | None = None,
    ) -> tuple[Array, Cache, Any]:
        """One new position of every hypothesis: `[batch, beams, d_model]`, cache, weights.

        What it sees of its own past is what training sees.

        Args:
          x_BKD: the newest subwords, embedded.
          position_B: see `Now`.
          ancestors_BKT: see `Now`.
          cache: of the positions before.
          memory: of the source sentences; None: in an encoder.
        """
        _, beams, length = ancestors_BKT.shape
        newest, cached = cached_places(position_B, length)
        key_S = jnp.repeat(jnp.arange(length), beams)  # position of each key of the cache
        distance_BS = key_S - position_B[:, None]

        @functools.cache
        def sight(config: ModelConfig) -> Sight:
            allowed_B11T = mask_of(self_patterns(config, self.side.is_decoder), newest, cached)
            past = own_past(allowed_B11T, ancestors_BKT)
            return Sight(past, self.positions.bias(distance_BS[:, None]))

        source_mask = None
        remembered_by_layer = (dict.fromkeys(self.sublayers, ()),) * self.depth
        if memory is not None:
            remembered_by_layer = memory.decoder
            source_mask = mask_of(cross_patterns(self.config), newest, memory.source_place)
        context = functools.partial(
            StepContext, position_B, distance_BS, inputs_BKD=x_BKD, source_mask=source_mask
        )
        x_BKD = self._to_residual_dtype(x_BKD)
        caches, watched = [], None
        parts = zip(self.layers, remembered_by_layer, cache.written, cache.carried, strict=True)
        for layer, remembered, written, carried in parts:
            own = context(sight=sight(layer.config))
            x_BKD, new, weights = layer.step(x_BKD, own, remembered, Cache(written, carried))
            caches.append(new)
            watched = weights if layer.watched else watched
        kept = Cache(tuple(one.written for one in caches), tuple(one.carried for one in caches))
        return self._normed(x_BKD), kept, watched

    def _to_residual_dtype(self, x_BLD: Array) -> Array:
        """The embedded input in model.residual_dtype, which all layers keep."""
        dtype = self.config.residual_dtype
        return x_BLD if dtype == "float32" else x_BLD.astype(dtype)

    def _normed(self, x_BLD: Array) -> Array:
        return self.norm(x_BLD) if ends_with_norm(self.config) else x_BLD

    def remember(self, encoded_BME: Array, source: Place) -> tuple[Any, ...]:
        """What each layer keeps of the source sentences."""
        return tuple(layer.remember(encoded_BME, source) for layer in self.layers)

    @nn.nowrap
    def layer(self) -> Layer:
        """A layer of this stack, without a place in it; for shapes and initial values."""
        return Layer(self.config, self.sublayers, self.side, parent=None)

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> tuple[Any, ...]:
        """The shapes of `remember`, boxed with the names of their axes."""
        return (self.layer().empty_memory(sizes),) * self.depth

    @nn.nowrap
    def empty_cache(self, sizes: SearchSizes) -> Cache:
        """The cache before the first position, boxed with the names of its axes."""
        written, carried = self.layer().empty(sizes)
        return Cache((written,) * self.depth, (carried,) * self.depth)
