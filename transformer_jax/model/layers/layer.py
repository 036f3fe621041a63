"""Layers: a list of sub-layers, each within a residual (Vaswani et al. 2017, sections 3.1, 3.3).

Dimension key
  B batch   L length   D d_model   K beams   M source length   H heads
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.combinations import is_serial
from transformer_jax.model.attention.cross_attention import CrossAttention
from transformer_jax.model.attention.self_attention import SelfAttention
from transformer_jax.model.axes import BATCH, constrain, declared
from transformer_jax.model.interfaces import (
    Attended,
    Cache,
    Context,
    Place,
    SearchSizes,
    Side,
    Sight,
    StepContext,
    attends_to_encoder,
)
from transformer_jax.model.kernels.choices import fits_triton
from transformer_jax.model.layers.dropout import Dropout, NoiseSource
from transformer_jax.model.layers.encoder_mixers import ENCODER_MIXERS
from transformer_jax.model.layers.feed_forward import FeedForward
from transformer_jax.model.layers.matrix_products import stored, sum_type
from transformer_jax.model.layers.norms import NORMS
from transformer_jax.model.layers.residuals import RESIDUALS, constants_of
from transformer_jax.model.layers.running_mixers import RUNNING_MIXERS
from transformer_jax.model.layers.sublayer import Sublayer

SUBLAYERS: dict[str, type[Sublayer]] = {
    "self_attention": SelfAttention,
    "cross_attention": CrossAttention,
    "feed_forward": FeedForward,
    **dict(RUNNING_MIXERS.values()),
    **dict(ENCODER_MIXERS.values()),
}


def encoder_layer(config: ModelConfig) -> tuple[str, ...]:
    """The sub-layers of an encoder layer; model.encoder may replace its self-attention."""
    mixer, _ = ENCODER_MIXERS.get(config.encoder, ("self_attention", None))
    return (mixer, *_feed_forward(config))


def decoder_layer(config: ModelConfig) -> tuple[str, ...]:
    """The sub-layers of a decoder layer; model.decoder may replace its self-attention."""
    mixer, _ = RUNNING_MIXERS.get(config.decoder, ("self_attention", None))
    reading = cross_attentions(config) if attends_to_encoder(config) else ()
    return (mixer, *reading, *_feed_forward(config))


def cross_attentions(config: ModelConfig) -> tuple[str, ...]:
    """The sub-layers of encoder-decoder attention: one, or one for each source sentence."""
    others = range(2, config.sources + 1) if is_serial(config) else ()
    return ("cross_attention", *(f"cross_attention_{number}" for number in others))


def make_sublayer(name: str, config: ModelConfig, side: Side, **options: Any) -> Sublayer:
    """The sub-layer of a name in SUBLAYERS, or in `cross_attentions`; options: those of Flax."""
    if name in SUBLAYERS:
        return SUBLAYERS[name](config, side, **options)
    return CrossAttention(config, side, int(name.rpartition("_")[2]) - 1, **options)


def _feed_forward(config: ModelConfig) -> tuple[str, ...]:
    return ("feed_forward",) if config.d_ff else ()


class Residual(nn.Module):
    """x and dropout(sublayer(x)), joined and normalized as model.norm says (residuals.py)."""

    config: ModelConfig
    is_decoder: bool = False

    def setup(self) -> None:
        self.kind = RESIDUALS[self.config.norm]
        self.join_params = declared(self, self.kind.parameters, {})
        self.norm = NORMS[self.config.norm_kind](self.config.norm_epsilon)
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self, x_BLD: Array, sublayer: Callable[[Array], tuple[Array, Any]], rows_B: Array | None
    ) -> tuple[Array, Any]:
        """`[batch, length, d_model]` in x's type, and what the sub-layer returns after its output.

        The sum and the norm are computed in float32, whatever type the residuals have.
        """
        normalizes = self.kind.normalizes
        y_BLD, beside = sublayer(self.norm(x_BLD) if normalizes == "input" else x_BLD)
        if self._fuses(x_BLD):
            return self.norm(x_BLD, self._fused(y_BLD, rows_B)), beside
        wide = sum_type(x_BLD.dtype)
        y_BLD = constrain(y_BLD.astype(wide), BATCH, None, None)
        noise_source = self.dropout.noise_source(rows_B)
        alpha = constants_of(self.config, self.is_decoder).alpha
        y_BLD = self.dropout(y_BLD, noise_source)
        x_BLD = self.kind.join(self.join_params, alpha, x_BLD, y_BLD).astype(x_BLD.dtype)
        if normalizes == "sum":
            return self.norm(x_BLD).astype(x_BLD.dtype), beside
        return x_BLD if noise_source is None else stored(x_BLD, noise_source.bits[0] == 0), beside

    def _fuses(self, x_BLD: Array) -> bool:
        """Whether sum and norm are computed by the fused kernel."""
        config = self.config
        kernel = config.attention_kernel == "fused" and config.norm == "post"
        kernel &= config.norm_kind == "layer"
        return kernel and fits_triton(x_BLD.shape[-1]) and not self.is_initializing()

    def _fused(self, y_BLD: Array, rows_B: Array | None) -> Callable[..., Array]:
        """The function of x and the norm's parameters that adds y before the norm."""
        from transformer_jax.model.kernels.fused_residual import (
            Norm,
            Setting,
            Summands,
            fused_residual,
        )

        noise_source = self.dropout.noise_source(rows_B)
        rate = self.config.dropout
        if noise_source is None:
            nothing = jnp.zeros(3, jnp.uint32)
            noise_source = NoiseSource(nothing, jnp.arange(y_BLD.shape[0]))
            rate = 0.0

        def normed(x_BLD: Array, scale_D: Array, bias_D: Array, epsilon: float) -> Array:
            norm = Norm(scale_D, bias_D)
            setting = Setting(rate, epsilon)
            return fused_residual(Summands(x_BLD, y_BLD), norm, noise_source, setting)

        return normed


class Layer(nn.Module):
    """Sub-layers, one after the other."""

    config: ModelConfig
    sublayers: tuple[str, ...]  # names in SUBLAYERS
    side: Side = Side()
    watched: bool = False  # whether the layer returns the weights of its cross-attention

    def setup(self) -> None:
        config = self.config
        if self.watched:  # the fused kernel gives no weights
            config = dataclasses.replace(config, attention_kernel="plain")
        for name in self.sublayers:
            setattr(self, name, make_sublayer(name, config, self.side))
            residual = Residual(self.config, is_decoder=self.side.is_decoder)
            setattr(self, f"{name}_residual", residual)

    def _run(
        self, x: Array, rows_B: Array | None, apply: Callable[[str, Any, Array], tuple[Array, Any]]
    ) -> tuple[Array, dict[str, Any]]:
        """The last output, and by name what `apply(name, sub-layer, input)` returns beside it."""
        found = {}
        for name in self.sublayers:
            sublayer = functools.partial(apply, name, getattr(self, name))
            x, found[name] = getattr(self, f"{name}_residual")(x, sublayer, rows_B)
        return x, found

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, Any]:
        """`[batch, length, d_model]`; if watched, the weights `[batch, heads, length, src_len]`."""
        x_BLD, weights = self._run(
            x_BLD, context.rows_B, lambda name, sublayer, y_BLD: sublayer(y_BLD, context)
        )
        return x_BLD, self._watched(weights)

    def step(
        self, x_BKD: Array, context: StepContext, memory: dict[str, Any], cache: Cache
    ) -> tuple[Array, Cache, Array | None]:
        """One new position of every hypothesis: `[batch, beams, d_model]`, cache, weights."""

        def apply(name: str, sublayer: Any, y_BKD: Array) -> tuple[Array, Any]:
            own = Cache(cache.written[name], cache.carried[name])
            y_BKD, *beside = sublayer.step(y_BKD, context, memory[name], own)
            return y_BKD, beside

        x_BKD, found = self._run(x_BKD, None, apply)
        caches = {name: found[name][0] for name in self.sublayers}
        weights = {name: weights for name, (_, *weights) in found.items()}
        return x_BKD, _of_parts(caches), self._watched({n: x[0] for n, x in weights.items() if x})

    @nn.nowrap
    def _watched(self, weights: dict[str, Any]) -> Any:
        """The weights of encoder-decoder attention, if the layer is watched; else None."""
        if not self.watched:
            return None
        first, *others = (weights[name] for name in cross_attentions(self.config))
        return sum(others, first) if others else first

    @nn.nowrap
    def example(self) -> tuple[Array, Context]:
        """Small arguments of a call, from which `init` learns the parameters' shapes."""
        d_model = self.config.d_model
        features = self.side.encoded or self.config.d_model
        ones = jnp.ones((1, 2), jnp.int32)
        mask = jnp.ones((1, 1, 2, 2), bool)
        place = Place(ones, ones)
        encoded = jnp.ones((1, 2, features))
        x_BLD = jnp.ones((1, 2, d_model))
        source = place._replace(words=x_BLD, sentences=ones)
        sight = Sight(mask, None)
        attended = Attended(encoded, source, place, mask)
        return x_BLD, Context(place, None, sight, place, x_BLD, attended)

    def read(self, x_BMD: Array, context: Context) -> tuple[Array, dict[str, Any]]:
        """`[batch, src_len, d_model]` at a prefix, and what each sub-layer keeps of it."""
        return self._run(x_BMD, None, lambda name, sublayer, y_BMD: sublayer.read(y_BMD, context))

    def remember(self, encoded_BME: Array, source: Place) -> dict[str, Any]:
        """What each sub-layer keeps of the source sentences."""
        return {name: getattr(self, name).remember(encoded_BME, source) for name in self.sublayers}

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> dict[str, Any]:
        """The shapes of `remember`, boxed with the names of their axes."""
        return {name: part.empty_memory(sizes) for name, part in self._unbound().items()}

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """The cache before the first position, boxed with the names of its axes."""
        return _of_parts({name: part.empty(sizes) for name, part in self._unbound().items()})

    @nn.nowrap
    def _unbound(self) -> dict[str, Sublayer]:
        return {
            name: make_sublayer(name, self.config, self.side, parent=None)
            for name in self.sublayers
        }


def _of_parts(caches: dict[str, Cache]) -> Cache:
    return Cache(
        {name: cache.written for name, cache in caches.items()},
        {name: cache.carried for name, cache in caches.items()},
    )
