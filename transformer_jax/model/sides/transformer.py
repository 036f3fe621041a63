"""The Transformer's encoder and decoder (Vaswani et al. 2017, figure 1, section 3.1).

Dimension key
  B batch   L target length   M source length   D d_model   E features of the encoder's output
  K beams   T positions of the cache
"""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention import cross_normalizers, normalizers, patterns
from transformer_jax.model.attention.hard_attention import Sampled
from transformer_jax.model.attention.patterns import cross_patterns, mask_of, waiting_place
from transformer_jax.model.interfaces import Attended, Cache, Memory, Now, Place, SearchSizes, Side
from transformer_jax.model.layers import encoder_mixers
from transformer_jax.model.layers.dropout import noise_of
from transformer_jax.model.layers.layer import Layer
from transformer_jax.model.layers.stack import Stack
from transformer_jax.model.positions import choices as positions
from transformer_jax.model.sides.bases import Decoder, Encoder


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


class TransformerEncoder(Encoder):
    """N layers of self-attention and feed-forward network (section 3.1).

    A mixer of encoder_mixers.py may take the place of self-attention.
    """

    self_attention, uses_positions = True, True
    problems = staticmethod(problems)

    @staticmethod
    def longest(config: ModelConfig) -> int | None:
        """The limit of learned positions, or of what replaces self-attention."""
        return positions.longest(config) or encoder_mixers.longest(config)

    def setup(self) -> None:
        """The stack; its parameters are the encoder's."""
        self.source_stack = self._stack()
        nn.share_scope(self, self.source_stack)

    @nn.nowrap
    def _stack(self, **parent: Any) -> Stack:
        return Stack(self.config, remat=self.remat, **parent)

    def position_vectors(self, place: Place, length: int | None = None) -> Array | float:
        """What is added to the embedding; `length`: of the table of positions, None: the row's."""
        length = length or place.positions.shape[1]
        return self.source_stack.positions(place.positions, length)

    def __call__(self, x_BMD: Array, place: Place, rows_B: Array | None) -> Array:
        """`[batch, src_len, d_model]` from the embedded source."""
        return self.source_stack(x_BMD, place, rows_B)[0]

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
        alone_B1T = jnp.zeros((*x_B1D.shape[:2], length), jnp.int32)  # a beam of one
        x_B1D, cache, _ = self.source_stack.step(x_B1D, position_B, alone_B1T, cache)
        return x_B1D, cache

    @nn.nowrap
    def empty_cache(self, sizes: SearchSizes) -> Cache:
        """The cache before the first source position, boxed with the names of its axes."""
        sizes = sizes._replace(beams=1, length=sizes.src_length)
        return self._stack(parent=None).empty_cache(sizes)

    @nn.nowrap
    def stack(self) -> tuple[Layer, int]:
        """A layer of this stack, and how many there are."""
        stack = self._stack(parent=None)
        return stack.layer(), stack.depth


class TransformerDecoder(Decoder):
    """N layers of masked self-attention, attention to the source and feed-forward network.

    A mixer of running_mixers.py may take the place of self-attention.
    """

    self_attention, multi_head, uses_positions = True, True, True
    longest = staticmethod(positions.longest)
    problems = staticmethod(problems)

    def setup(self) -> None:
        """The stack; its parameters are the decoder's."""
        self.target_stack = self._stack()
        nn.share_scope(self, self.target_stack)

    @nn.nowrap
    def _stack(self, **parent: Any) -> Stack:
        side = Side(is_decoder=True, encoded=self.encoder.features(self.config))
        watched = watched_layer(self.config) if self.watch else None
        return Stack(self.config, side, self.remat, watched, **parent)

    def position_vectors(self, target: Place, length: int, source: Place) -> Array | float:
        """What is added to the embedding."""
        return self.target_stack.positions(target.positions, length)

    def __call__(
        self,
        x_BLD: Array,
        target: Place,
        encoded_BME: Array,
        source: Place,
        rows_B: Array | None,
        *,
        full_context: bool = False,
        draws: bool = False,
    ) -> tuple[Array, Any]:
        """`[batch, tgt_len, d_model]`, and the watched weights `[batch, tgt_len, src_len]`.

        With `full_context` each position sees the whole target, not only what is before it (Garg et
        al. 2019, section 4.3). With `draws` each head of the watched layer reads one position,
        which is drawn, and a `Sampled` is returned in place of the weights.
        """
        reader = target
        if rows_B is not None and self.config.wait_k_max is not None:
            bits = jax.random.bits(self.make_rng("dropout"), (), jnp.uint32)
            reader = waiting_place(self.config, target, bits, rows_B)
        mask = mask_of(cross_patterns(self.config), reader, source)
        attended = Attended(encoded_BME, source, reader, mask)
        if draws:
            assert self.watch and rows_B is not None
            attended = attended._replace(noise_source=noise_of(self, rows_B))
        seen = target
        if full_context:  # if all positions are equal, none is later: the causal pattern hides none
            seen = target._replace(positions=jnp.zeros_like(target.positions))
        x_BLD, weights = self.target_stack(x_BLD, target, rows_B, attended, seen)
        return x_BLD, self._of_heads(weights)

    def _of_heads(self, weights: Any) -> Any:
        """The mean of the watched heads; None: no layer is watched."""
        if weights is None:
            return None
        if isinstance(weights, Sampled):
            return weights._replace(weights=self._of_heads(weights.weights))
        return weights[:, : self.config.watched_heads].mean(1)

    def remember(self, encoded_BME: Array, source: Place) -> tuple[Any, ...]:
        """What each layer keeps of the source sentences."""
        return self.target_stack.remember(encoded_BME, source)

    def step(
        self, x_BKD: Array, now: Now, memory: Memory, cache: Cache
    ) -> tuple[Array, Cache, Array | None]:
        """One new position of every hypothesis: `[batch, beams, d_model]`, cache, weights."""
        x_BKD, cache, weights = self.target_stack.step(
            x_BKD, now.position_B, now.ancestors_BKT, cache, memory
        )
        return x_BKD, cache, self._of_heads(weights)

    @nn.nowrap
    def stack(self) -> tuple[Layer, int]:
        """A layer of this stack, and how many there are."""
        stack = self._stack(parent=None)
        return stack.layer(), stack.depth

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> tuple[Any, ...]:
        """The shapes of `remember`, boxed with the names of their axes."""
        return self._stack(parent=None).empty_memory(sizes)

    @nn.nowrap
    def empty_cache(self, sizes: SearchSizes) -> Cache:
        """The cache before the first position, boxed with the names of its axes."""
        return self._stack(parent=None).empty_cache(sizes)
