"""The convolutional encoder and decoder (Gehring et al. 2017).

A layer sees the positions around its own, or before it in the decoder, through one product and a
gated linear unit. Each layer of the decoder attends to the source with one head.

Dimension key
  B batch   L length   M source length   D d_model   H d_hidden   I inputs   O outputs   K beams
  P the two halves of a gated linear unit's input   T taps, which are positions of a convolution
  C features of the encoder's output   V features of the values that attention reads
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.patterns import same_sentence
from transformer_jax.model.axes import BATCH, FEATURES, HIDDEN, constrain, named, zeros
from transformer_jax.model.interfaces import Cache, Memory, Now, Place, SearchSizes
from transformer_jax.model.layers.dropout import Dropout
from transformer_jax.model.layers.matrix_products import operand_type, product, sum_type
from transformer_jax.model.positions import choices as positions
from transformer_jax.model.positions.choices import StackPositions
from transformer_jax.model.sides.bases import Decoder, Encoder
from transformer_jax.model.sides.transformer import watched_layer

ROOT_HALF = math.sqrt(0.5)  # keeps the variance of a sum of two vectors


def problems(config: ModelConfig) -> Iterator[str]:
    """Why the width of the convolutions is invalid, with the fix; empty if it is valid."""
    if config.kernel_width % 2 == 0:
        yield (
            f"model.kernel_width={config.kernel_width} is even: a convolution of the encoder has "
            f"its position in the middle. Use {config.kernel_width + 1}."
        )


def around(x_BLH: Array, segments_BL: Array, before: int, after: int) -> Array:
    """The vectors around each position of the same sentence, side by side, from left to right.

    Args:
      x_BLH: `[batch, length, features]`.
      segments_BL: numbers of the sentences; 0: padding.
      before: positions before the own one.
      after: positions after it.

    Returns:
      `[batch, length, (before + 1 + after) * features]`; 0 for positions outside the sentence.
    """

    def moved(x: Array, by: int) -> Array:
        """Position l has what x has at l + by; 0 outside the row."""
        none = ((0, 0),) * (x.ndim - 2)
        padded = jnp.pad(x, ((0, 0), (max(0, -by), max(0, by)), *none))
        return padded[:, max(0, by) : max(0, by) + x.shape[1]]

    taps = []
    for by in range(-before, after + 1):
        same_BL = (moved(segments_BL, by) == segments_BL) & (segments_BL != 0)
        taps.append(jnp.where(same_BL[..., None], moved(x_BLH, by), 0.0))
    return jnp.concatenate(taps, axis=-1)


def gated(pairs_BLPH: Array) -> Array:
    """The gated linear unit a sigmoid(b) of `[batch, length, 2, features]`.

    Source: Dauphin et al. 2017, equation 1; Gehring et al. 2017, section 3.2.
    """
    a_BLH, b_BLH = pairs_BLPH[:, :, 0], pairs_BLPH[:, :, 1]
    return constrain(a_BLH * jax.nn.sigmoid(b_BLH), BATCH, None, None)


class Affine(nn.Module):
    """W x + b; each output's column of W is a direction times a learned length.

    Source: Salimans and Kingma 2016, equation 2.
    """

    inputs: int
    outputs: tuple[int, ...]
    dtype: str
    length: float = 1.0  # the length of every column at first

    def setup(self) -> None:
        names = (*(None,) * (len(self.outputs) - 1), HIDDEN)
        direction = named(nn.initializers.normal(self.inputs**-0.5), FEATURES, *names, summed=1)
        length = named(nn.initializers.constant(self.length), *names)
        self.direction = self.param("direction", direction, (self.inputs, *self.outputs))
        self.gain = self.param("gain", length, self.outputs)
        self.bias = self.param("bias", named(nn.initializers.zeros, *names), self.outputs)

    def __call__(self, x_BLI: Array) -> Array:
        """float32 `[batch, length, *outputs]`."""
        direction = self.direction.astype(self.bias.dtype)
        matrix = direction * (self.gain * jax.lax.rsqrt(jnp.square(direction).sum(0)))
        matrix = matrix.astype(operand_type(self.direction, self.dtype))
        axes = "BLI,IO->BLO" if len(self.outputs) == 1 else "BLI,IPO->BLPO"
        y = product(axes, x_BLI, matrix, self.dtype)
        return y.astype(sum_type(self.dtype)) + self.bias


class Attended(NamedTuple):
    """What the layers of the decoder attend to."""

    key_BMD: Array  # z, the encoder's output
    value_BMV: Array  # (z + e) sqrt(0.5), with e the embedded source
    mask_BLM: Array  # True = may attend


class LayerContext(NamedTuple):
    """The input of a stack's layers beside the output of the layer below."""

    place: Place
    rows_B: Array | None  # numbers of the rows in the global batch; None: no dropout
    embedded_BLD: Array | None = None  # g, the embedded target, for a decoder
    attended: Attended | None = None  # for a decoder


class SourceAttention(nn.Module):
    """Attention with one head, whose query is the layer's state plus the embedded target."""

    config: ModelConfig
    value_features: int

    def setup(self) -> None:
        config, h = self.config, self.config.hidden_units
        self.query = Affine(h, (config.d_model,), config.dtype)
        self.out = Affine(self.value_features, (h,), config.dtype)

    def __call__(
        self, x_BLH: Array, embedded_BLD: Array, attended: Attended
    ) -> tuple[Array, Array]:
        """The context sqrt(m) c, projected `[batch, length, d_hidden]`, and the weights.

        c is the weighted mean of the values, and m the number of source positions. The factor keeps
        the variance of one vector, which is m times that of a mean of m.

        Source: Gehring et al. 2017, sections 3.3 and 3.4, equations 1 and 2.
        """
        dtype = self.config.dtype
        wide = sum_type(dtype)
        query_BLD = (self.query(x_BLH) + embedded_BLD) * ROOT_HALF
        scores_BLM = jnp.einsum(
            "BLD,BMD->BLM",
            query_BLD.astype(dtype),
            attended.key_BMD.astype(dtype),
            preferred_element_type=wide,
        )
        weights_BLM = softmax(scores_BLM, attended.mask_BLM)
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", "attention_weights", weights_BLM[:, None])
        context_BLV = jnp.einsum(
            "BLM,BMV->BLV",
            weights_BLM.astype(dtype),
            attended.value_BMV.astype(dtype),
            preferred_element_type=wide,
        )
        count_BL1 = attended.mask_BLM.sum(-1, keepdims=True)
        return self.out(context_BLV * jnp.sqrt(count_BL1.astype(wide))), weights_BLM


class ConvolutionalLayer(nn.Module):
    """(x + y) sqrt(0.5), where y is a convolution with a gate, in a decoder with attention."""

    config: ModelConfig
    value_features: int | None = None  # width of the values, in a decoder
    watched: bool = False  # whether the layer returns the weights of its attention

    @property
    def sublayers(self) -> tuple[str, ...]:
        """The names of its parts."""
        return ("convolution", *(("cross_attention",) if self.value_features else ()))

    def setup(self) -> None:
        config, h = self.config, self.config.hidden_units
        keep = 1 - config.dropout
        self.convolution = Affine(
            config.kernel_width * h, (2, h), config.dtype, length=2 * math.sqrt(keep)
        )
        self.dropout = Dropout(config.dropout)
        if self.value_features is not None:
            self.cross_attention = SourceAttention(config, self.value_features)

    def __call__(self, x_BLH: Array, context: LayerContext) -> tuple[Array, Array | None]:
        """`[batch, length, d_hidden]`; if watched, the weights `[batch, length, src_len]`."""
        others = self.config.kernel_width - 1
        is_decoder = self.value_features is not None
        before, after = (others, 0) if is_decoder else (others // 2, others // 2)
        inputs_BLH = self.dropout(x_BLH, self.dropout.noise_source(context.rows_B))
        taps_BLI = around(inputs_BLH, context.place.segments, before, after)
        return self._residual(x_BLH, taps_BLI, context.embedded_BLD, context.attended)

    def step(
        self, x_BKH: Array, embedded_BKD: Array, attended: Attended, last_BKTH: Array
    ) -> tuple[Array, Array, Array | None]:
        """One new position of every hypothesis `[B, K, H]`.

        Beside it, the last inputs for the next step `[B, K, T - 1, H]`; if watched, the weights.
        """
        taps_BKTH = jnp.concatenate([last_BKTH, x_BKH[:, :, None]], axis=2)
        taps_BKI = taps_BKTH.reshape(*x_BKH.shape[:2], -1)
        x_BKH, weights = self._residual(x_BKH, taps_BKI, embedded_BKD, attended)
        return x_BKH, taps_BKTH[:, :, 1:], weights

    def _residual(
        self, x_BLH: Array, taps_BLI: Array, embedded_BLD: Array | None, attended: Attended | None
    ) -> tuple[Array, Array | None]:
        y_BLH = gated(self.convolution(taps_BLI))
        weights = None
        if attended is not None:
            assert embedded_BLD is not None
            context_BLH, weights = self.cross_attention(y_BLH, embedded_BLD, attended)
            y_BLH = (context_BLH + y_BLH) * ROOT_HALF
        return (x_BLH + y_BLH) * ROOT_HALF, weights if self.watched else None

    @nn.nowrap
    def example(self) -> tuple[Array, LayerContext]:
        """Small arguments of a call, from which `init` learns the parameters' shapes."""
        ones = jnp.ones((1, 2), jnp.int32)
        config = self.config
        x = jnp.ones((1, 2, config.hidden_units))
        place = Place(ones, ones)
        if self.value_features is None:
            return x, LayerContext(place, None)
        embedded = jnp.ones((1, 2, config.d_model))
        value = jnp.ones((1, 2, self.value_features))
        attended = Attended(embedded, value, jnp.ones((1, 2, 2), bool))
        return x, LayerContext(place, None, embedded, attended)


class ConvolutionalEncoder(Encoder):
    """N layers of convolutions around each position (section 3.2)."""

    uses_positions = True
    longest = staticmethod(positions.longest)
    problems = staticmethod(problems)

    @staticmethod
    def features(config: ModelConfig) -> int:
        """Those of keys and values."""
        return 2 * config.d_model

    def setup(self) -> None:
        """The positions, the layers, and the products before and after them."""
        config, h = self.config, self.config.hidden_units
        layer = nn.remat(ConvolutionalLayer) if self.remat else ConvolutionalLayer
        self.src_positions = StackPositions(config, biased=False)
        length = math.sqrt(1 - config.dropout)
        self.encoder_input = Affine(config.d_model, (h,), config.dtype, length)
        self.layers = [layer(config, name=f"encoder_{n}") for n in range(config.encoder_depth)]
        self.encoder_output = Affine(h, (config.d_model,), config.dtype)

    def position_vectors(self, place: Place) -> Array | float:
        """What is added to the embedding."""
        return self.src_positions(place.positions, place.positions.shape[1])

    def __call__(self, embedded_BMD: Array, place: Place, rows_B: Array | None) -> Array:
        """z and (z + e) sqrt(0.5), side by side: `[batch, src_len, 2 d_model]`."""
        x_BMH = self.encoder_input(embedded_BMD)
        context = LayerContext(place, rows_B)
        for layer in self.layers:
            x_BMH, _ = layer(x_BMH, context)
        z_BMD = constrain(self.encoder_output(x_BMH), BATCH, None, None)
        return jnp.concatenate([z_BMD, (z_BMD + embedded_BMD) * ROOT_HALF], axis=-1)

    @nn.nowrap
    def stack(self) -> tuple[ConvolutionalLayer, int]:
        """A layer of this stack, and how many there are."""
        return ConvolutionalLayer(self.config, parent=None), self.config.encoder_depth

    @staticmethod
    def keys_values(encoded_BMC: Array) -> tuple[Array, Array]:
        """The keys and the values of a convolutional decoder's attention."""
        z_BMD, value_BMD = jnp.split(encoded_BMC, 2, axis=-1)
        return z_BMD, value_BMD


class ConvolutionalDecoder(Decoder):
    """N layers of convolutions over the past, each with attention to the source (section 3.3)."""

    uses_positions = True
    longest = staticmethod(positions.longest)
    problems = staticmethod(problems)

    def setup(self) -> None:
        """The positions, the layers, and the products before and after them."""
        config, h = self.config, self.config.hidden_units
        layer = nn.remat(ConvolutionalLayer) if self.remat else ConvolutionalLayer
        key_features, features = self._features()
        watched = watched_layer(config) if self.watch else None
        self.tgt_positions = StackPositions(config, causal=True, biased=False)
        length = math.sqrt(1 - config.dropout)
        self.decoder_input = Affine(config.d_model, (h,), config.dtype, length)
        if key_features != config.d_model:
            self.decoder_key = Affine(key_features, (config.d_model,), config.dtype)
        self.layers = [
            layer(config, features, n == watched, name=f"decoder_{n}")
            for n in range(config.decoder_depth)
        ]
        self.decoder_output = Affine(h, (config.d_model,), config.dtype)
        self.decoder_dropout = Dropout(config.dropout)

    @nn.nowrap
    def _features(self) -> tuple[int, int]:
        """The features of the encoder's keys and of its values."""
        encoded = jax.ShapeDtypeStruct((1, self.encoder.features(self.config)), jnp.float32)
        key, value = jax.eval_shape(self.encoder.keys_values, encoded)
        return key.shape[-1], value.shape[-1]

    def position_vectors(self, target: Place, length: int, source: Place) -> Array | float:
        """What is added to the embedding."""
        return self.tgt_positions(target.positions, length)

    def __call__(
        self, x_BLD: Array, target: Place, encoded_BMC: Array, source: Place, rows_B: Array | None
    ) -> tuple[Array, Array | None]:
        """`[batch, tgt_len, d_model]`, and the watched weights `[batch, tgt_len, src_len]`."""
        key_BMD, value_BMV = self.remember(encoded_BMC, source)
        attended = Attended(key_BMD, value_BMV, same_sentence(target, source)[:, 0])
        context = LayerContext(target, rows_B, x_BLD, attended)
        x_BLH = self.decoder_input(x_BLD)
        watched_BLM = None
        for layer in self.layers:
            x_BLH, weights = layer(x_BLH, context)
            watched_BLM = watched_BLM if weights is None else weights
        y_BLD = constrain(self.decoder_output(x_BLH), BATCH, None, None)
        return self.decoder_dropout(y_BLD, self.decoder_dropout.noise_source(rows_B)), watched_BLM

    def remember(self, encoded_BMC: Array, source: Place) -> tuple[Array, Array]:
        """Keys and values."""
        key, value_BMV = self.encoder.keys_values(encoded_BMC)
        same = self._features()[0] == self.config.d_model
        return key if same else self.decoder_key(key), value_BMV

    def step(
        self, x_BKD: Array, now: Now, memory: Memory, cache: Cache
    ) -> tuple[Array, Cache, Array | None]:
        """One new position of every hypothesis: `[batch, beams, d_model]`, cache, weights."""
        key_BMD, value_BMV = memory.decoder
        attended = Attended(key_BMD, value_BMV, memory.source_BM[:, None])
        x_BKH = self.decoder_input(x_BKD)
        last = []
        watched_BKM = None
        for layer, last_BKTH in zip(self.layers, cache.carried, strict=True):
            x_BKH, own, weights = layer.step(x_BKH, x_BKD, attended, last_BKTH)
            last.append(own)
            watched_BKM = watched_BKM if weights is None else weights
        return self.decoder_output(x_BKH), Cache((), tuple(last)), watched_BKM

    @nn.nowrap
    def stack(self) -> tuple[ConvolutionalLayer, int]:
        """A layer of this stack, and how many there are."""
        layer = ConvolutionalLayer(self.config, self._features()[1], parent=None)
        return layer, self.config.decoder_depth

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> tuple[Any, Any]:
        """The shapes of `remember`, boxed with the names of their axes."""
        shapes = (
            (sizes.batch, sizes.src_length, n) for n in (self.config.d_model, self._features()[1])
        )
        key, value = (zeros(shape, (BATCH, None, None)) for shape in shapes)
        return key, value

    @nn.nowrap
    def empty_cache(self, sizes: SearchSizes) -> Cache:
        """The last inputs of each layer's convolution; they do not depend on a length."""
        config = self.config
        shape = (sizes.batch, sizes.beams, config.kernel_width - 1, config.hidden_units)
        last = zeros(shape, (BATCH, None, None, None))
        return Cache((), (last,) * config.decoder_depth)
