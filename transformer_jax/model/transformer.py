"""The Transformer's encoder and decoder (Vaswani et al. 2017, figure 1, section 3.1).

Dimension key
  B batch   L target length   M source length   D d_model   E features of the encoder's output
  K beams   T positions of the cache   V vocabulary, padded   S keys of the cache, T * K
"""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model import (
    cross_normalizers,
    encoder_mixers,
    normalizers,
    patterns,
    positions,
)
from transformer_jax.model.cached_attention import cached_places, own_past
from transformer_jax.model.dropout import noise_of
from transformer_jax.model.hard_attention import Sampled
from transformer_jax.model.layers import Layer, decoder_layer, encoder_layer
from transformer_jax.model.norms import NORMS
from transformer_jax.model.patterns import (
    cross_patterns,
    mask_of,
    self_patterns,
    waiting_place,
)
from transformer_jax.model.positions import StackPositions
from transformer_jax.model.records import (
    Cache,
    Context,
    Memory,
    Now,
    Place,
    SearchSizes,
    StepContext,
)
from transformer_jax.model.residuals import ends_with_norm
from transformer_jax.model.self_attention import self_blocks


def to_residual_dtype(config: ModelConfig, x_BLD: Array) -> Array:
    """The embedded input cast to model.residual_dtype, which all layers keep."""
    return x_BLD if config.residual_dtype == "float32" else x_BLD.astype(config.residual_dtype)


def watched_layer(config: ModelConfig) -> int:
    """The number, from 0, of the decoder's watched layer, clipped to the existing layers."""
    depth, number = config.decoder_depth, config.watched_layer
    return min(max(number + depth if number < 0 else number, 0), depth - 1)


def problems(config: ModelConfig) -> Iterator[str]:
    """Why the parts of a stack cannot be combined, with the fix; empty if they can."""
    if config.d_k is None and config.d_model % config.num_heads:
        yield (
            f"model.d_model={config.d_model} is not divisible by model.num_heads="
            f"{config.num_heads}, and model.d_k is not set. Change one of them, or set model.d_k."
        )
    if config.num_heads % config.key_heads:
        yield (
            f"model.num_key_heads={config.num_key_heads} does not divide model.num_heads="
            f"{config.num_heads}: each head of keys is for the same number of heads. Change one of "
            "them, or use model.num_key_heads=None."
        )
    if config.watched_heads is not None and config.watched_heads > config.num_heads:
        yield (
            f"model.watched_heads={config.watched_heads} is above model.num_heads="
            f"{config.num_heads}. Lower it, or use None for all heads."
        )
    yield from positions.problems(config)
    yield from patterns.problems(config)
    yield from normalizers.problems(config)
    yield from cross_normalizers.problems(config)


class TransformerEncoder(nn.Module):
    """N layers of self-attention and feed-forward network (section 3.1).

    A mixer of encoder_mixers.py may take the place of self-attention.
    """

    config: ModelConfig
    remat: bool = False

    self_attention, uses_positions = True, True

    @staticmethod
    def features(config: ModelConfig) -> int:
        """The number of features of the output."""
        return config.d_model

    @staticmethod
    def longest(config: ModelConfig) -> int | None:
        """The largest number of positions of a sentence or row; None: any number."""
        return positions.longest(config) or encoder_mixers.longest(config)

    problems = staticmethod(problems)

    def setup(self) -> None:
        """The positions and the layers."""
        layer = nn.remat(Layer) if self.remat else Layer
        sublayers = encoder_layer(self.config)
        self.src_positions = StackPositions(self.config, biased="self_attention" in sublayers)
        self.layers = [
            layer(self.config, sublayers, name=f"encoder_{n}")
            for n in range(self.config.encoder_depth)
        ]
        if ends_with_norm(self.config):  # the sum of all residuals is normalized once, at the end
            self.encoder_norm = NORMS[self.config.norm_kind](self.config.norm_epsilon)

    def position_vectors(self, place: Place, length: int | None = None) -> Array | float:
        """What is added to the embedding; `length`: of the table of positions, None: the row's."""
        return self.src_positions(place.positions, length or place.positions.shape[1])

    def __call__(self, x_BMD: Array, place: Place, rows_B: Array | None) -> Array:
        """`[batch, src_len, d_model]` from the embedded source."""
        blocks = self_blocks(self, self.config, x_BMD.shape[1], is_decoder=False)
        mask = blocks.mask(self_patterns(self.config, is_decoder=False), place)
        context = Context(place, rows_B, mask, self.src_positions.bias(blocks.distance()))
        x_BMD = to_residual_dtype(self.config, x_BMD)
        for layer in self.layers:
            x_BMD, _ = layer(x_BMD, context)
        return self.encoder_norm(x_BMD) if ends_with_norm(self.config) else x_BMD

    def step(
        self, x_B1D: Array, position_B: Array, length: int, cache: Cache
    ) -> tuple[Array, Cache]:
        """The output at one more source position, which later ones do not change; for wait-k only.

        Args:
          x_B1D: the newest subword, embedded `[batch, 1, d_model]`.
          position_B: its position, int32 `[batch]`.
          length: positions of the cache.
          cache: the cache of the positions before it.

        Returns:
          `[batch, 1, d_model]`, and the cache with this position.
        """
        newest, cached = cached_places(position_B, length)
        distance_BS = jnp.arange(length) - position_B[:, None]
        context = StepContext(
            position_B=position_B,
            self_mask=mask_of(self_patterns(self.config, is_decoder=False), newest, cached),
            self_bias=self.src_positions.bias(distance_BS[:, None]),
            distance_BS=distance_BS,
            source_mask=None,
            inputs_BKD=x_B1D,
        )
        x_B1D = to_residual_dtype(self.config, x_B1D)
        written = []
        for n, layer in enumerate(self.layers):
            layer_cache = Cache(cache.written[n], cache.carried[n])
            no_memory = dict.fromkeys(layer.sublayers)
            x_B1D, layer_cache, _ = layer.step(x_B1D, context, no_memory, layer_cache)
            written.append(layer_cache.written)
        x_B1D = self.encoder_norm(x_B1D) if ends_with_norm(self.config) else x_B1D
        return x_B1D, Cache(tuple(written), cache.carried)

    @nn.nowrap
    def empty_cache(self, sizes: SearchSizes) -> Cache:
        """The cache before the first source position, boxed with the names of its axes."""
        layer, depth = self.stack()
        written, carried = layer.empty(sizes._replace(beams=1, length=sizes.src_length))
        return Cache((written,) * depth, (carried,) * depth)

    @nn.nowrap
    def stack(self) -> tuple[Layer, int]:
        """A layer of this stack, and how many there are."""
        layer = Layer(self.config, encoder_layer(self.config), parent=None)
        return layer, self.config.encoder_depth

    @staticmethod
    def summary(encoded_BMD: Array) -> Array:
        """What a recurrent decoder's first state is made from, at each source position."""
        return encoded_BMD

    @staticmethod
    def keys_values(encoded_BMD: Array) -> tuple[Array, Array]:
        """The keys and the values of a convolutional decoder's attention."""
        return encoded_BMD, encoded_BMD


class TransformerDecoder(nn.Module):
    """N layers of masked self-attention, attention to the source and feed-forward network.

    A mixer of running_mixers.py may take the place of self-attention.
    """

    config: ModelConfig
    encoder: Any  # the encoder's class, for the features of its output
    remat: bool = False
    watch: bool = False

    self_attention, multi_head, uses_positions = True, True, True

    longest = staticmethod(positions.longest)
    problems = staticmethod(problems)

    def setup(self) -> None:
        """The positions and the layers."""
        layer = nn.remat(Layer) if self.remat else Layer
        features = self.encoder.features(self.config)
        sublayers = decoder_layer(self.config)
        watched = watched_layer(self.config) if self.watch else None
        biased = "self_attention" in sublayers
        self.tgt_positions = StackPositions(self.config, causal=True, biased=biased)
        self.layers = [
            layer(self.config, sublayers, features, n == watched, name=f"decoder_{n}")
            for n in range(self.config.decoder_depth)
        ]
        if ends_with_norm(self.config):
            self.decoder_norm = NORMS[self.config.norm_kind](self.config.norm_epsilon)

    def position_vectors(self, positions_BL: Array, length: int) -> Array | float:
        """What is added to the embedding."""
        return self.tgt_positions(positions_BL, length)

    def __call__(
        self, x_BLD: Array, target: Place, encoded_BME: Array, source: Place, rows_B: Array | None
    ) -> tuple[Array, Array | None]:
        """`[batch, tgt_len, d_model]`, and the watched weights `[batch, tgt_len, src_len]`."""
        return self._all_layers(x_BLD, self._context(target, encoded_BME, source, rows_B))

    def in_full_context(
        self, x_BLD: Array, target: Place, encoded_BME: Array, source: Place, rows_B: Array | None
    ) -> tuple[Array, Array | None]:
        """Like a call, but each position sees the whole target, not only what is before it.

        Source: Garg et al. 2019, section 4.3.
        """
        # If all positions are equal, none is later, so the causal pattern leaves out nothing.
        place = target._replace(positions=jnp.zeros_like(target.positions))
        context = self._context(target, encoded_BME, source, rows_B)
        mask = mask_of(self_patterns(self.config, is_decoder=True), place, place)
        return self._all_layers(x_BLD, context._replace(self_mask=mask, self_place=place))

    def with_draws(
        self, x_BLD: Array, target: Place, encoded_BME: Array, source: Place, rows_B: Array
    ) -> tuple[Array, Sampled]:
        """Like a call, but each head of the watched layer reads one position, which is drawn."""
        assert self.watch
        context = self._context(target, encoded_BME, source, rows_B)
        return self._all_layers(x_BLD, context._replace(noise_source=noise_of(self, rows_B)))

    def _context(
        self, target: Place, encoded_BME: Array, source: Place, rows_B: Array | None
    ) -> Context:
        blocks = self_blocks(self, self.config, target.positions.shape[1], is_decoder=True)
        reader = target
        if rows_B is not None and self.config.wait_k_max is not None:
            bits = jax.random.bits(self.make_rng("dropout"), (), jnp.uint32)
            reader = waiting_place(self.config, target, bits, rows_B)
        return Context(
            place=target,
            rows_B=rows_B,
            self_mask=blocks.mask(self_patterns(self.config, is_decoder=True), target),
            self_bias=self.tgt_positions.bias(blocks.distance()),
            encoded_BME=encoded_BME,
            source=source,
            reader=reader,
            cross_mask=mask_of(cross_patterns(self.config), reader, source),
        )

    def _all_layers(self, x_BLD: Array, context: Context) -> tuple[Array, Any]:
        context = context._replace(inputs_BLD=x_BLD)
        x_BLD = to_residual_dtype(self.config, x_BLD)
        watched = None
        for layer in self.layers:
            layer_context = context if layer.watched else context._replace(noise_source=None)
            x_BLD, weights = layer(x_BLD, layer_context)
            if weights is not None:
                watched = self._watched(weights)
        return (self.decoder_norm(x_BLD) if ends_with_norm(self.config) else x_BLD), watched

    def _watched(self, weights: Any) -> Any:
        """The mean of the watched heads."""
        if isinstance(weights, Sampled):
            return weights._replace(weights=self._watched(weights.weights))
        return weights[:, : self.config.watched_heads].mean(1)

    def remember(self, encoded_BME: Array, source: Place) -> tuple[Any, ...]:
        """What each layer keeps of the source sentences."""
        return tuple(layer.remember(encoded_BME, source) for layer in self.layers)

    def step(
        self, x_BKD: Array, now: Now, memory: Memory, cache: Cache
    ) -> tuple[Array, Cache, Array | None]:
        """One new position of every hypothesis: `[batch, beams, d_model]`, cache, weights."""
        context = self._step_context(x_BKD, now, memory)
        x_BKD = to_residual_dtype(self.config, x_BKD)
        written = []
        carried = []
        watched_BKM = None
        for n, layer in enumerate(self.layers):
            layer_cache = Cache(cache.written[n], cache.carried[n])
            x_BKD, layer_cache, weights = layer.step(x_BKD, context, memory.decoder[n], layer_cache)
            written.append(layer_cache.written)
            carried.append(layer_cache.carried)
            if weights is not None:
                watched_BKM = self._watched(weights)
        x_BKD = self.decoder_norm(x_BKD) if ends_with_norm(self.config) else x_BKD
        return x_BKD, Cache(tuple(written), tuple(carried)), watched_BKM

    def _step_context(self, x_BKD: Array, now: Now, memory: Memory) -> StepContext:
        """Masks and bias of one step: the patterns of training on each hypothesis's own past."""
        _, beams, length = now.ancestors_BKT.shape
        newest, cached = cached_places(now.position_B, length)
        allowed_B11T = mask_of(self_patterns(self.config, is_decoder=True), newest, cached)
        key_S = jnp.repeat(jnp.arange(length), beams)  # position of each key of the cache
        distance_BS = key_S - now.position_B[:, None]
        source_BM = memory.source_BM
        source = Place(source_BM.astype(jnp.int32), jnp.arange(source_BM.shape[1])[None])
        return StepContext(
            position_B=now.position_B,
            self_mask=own_past(allowed_B11T, now.ancestors_BKT),
            self_bias=self.tgt_positions.bias(distance_BS[:, None]),
            distance_BS=distance_BS,
            source_mask=mask_of(cross_patterns(self.config), newest, source),
            inputs_BKD=x_BKD,
        )

    @nn.nowrap
    def stack(self) -> tuple[Layer, int]:
        """A layer of this stack, and how many there are."""
        features = self.encoder.features(self.config)
        layer = Layer(self.config, decoder_layer(self.config), features, parent=None)
        return layer, self.config.decoder_depth

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> tuple[Any, ...]:
        """The shapes of `remember`, boxed with the names of their axes."""
        layer, depth = self.stack()
        return (layer.empty_memory(sizes),) * depth

    @nn.nowrap
    def empty_cache(self, sizes: SearchSizes) -> Cache:
        """The cache before the first position, boxed with the names of its axes."""
        layer, depth = self.stack()
        written, carried = layer.empty(sizes)
        return Cache((written,) * depth, (carried,) * depth)
