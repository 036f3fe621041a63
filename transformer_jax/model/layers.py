"""Layers: a list of sub-layers, each within a residual (Vaswani et al. 2017, sections 3.1, 3.3).

Dimension key
  B batch   L length   D d_model   F d_ff   K beams   M source length   H heads
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.axes import BATCH, FEATURES, HIDDEN, constrain, named
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.mixers import MIXERS
from transformer_jax.model.norms import NORMS
from transformer_jax.model.records import Cache, Context, SearchSizes, StepContext

FEED_FORWARD = "feed_forward"
ENCODER_LAYER = ("self_attention", FEED_FORWARD)
DECODER_LAYER = ("self_attention", "cross_attention", FEED_FORWARD)


def feed_forward(
    x_BLD: Array, inner_DF: Array, inner_bias_F: Array, outer_FD: Array, outer_bias_D: Array
) -> Array:
    """max(0, x W1 + b1) W2 + b2: `[batch, length, d_model]`.

    Source: Vaswani et al. 2017, section 3.3, equation 2.
    """
    hidden_BLF = jax.nn.relu(jnp.einsum("BLD,DF->BLF", x_BLD, inner_DF) + inner_bias_F)
    hidden_BLF = constrain(hidden_BLF, BATCH, None, HIDDEN)
    return jnp.einsum("BLF,FD->BLD", hidden_BLF, outer_FD) + outer_bias_D


class FeedForward(nn.Module):
    """The position-wise feed-forward network of a layer."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BLD: Array) -> Array:
        """`[batch, length, d_model]` in, the same out."""
        d_model, d_ff, dtype = self.config.d_model, self.config.d_ff, self.config.dtype
        xavier, zeros = nn.initializers.xavier_uniform(), nn.initializers.zeros
        weights = (
            self.param("inner", named(xavier, FEATURES, HIDDEN), (d_model, d_ff)),
            self.param("inner_bias", named(zeros, HIDDEN), (d_ff,)),
            self.param("outer", named(xavier, HIDDEN, FEATURES), (d_ff, d_model)),
            self.param("outer_bias", named(zeros, None), (d_model,)),
        )
        return feed_forward(x_BLD.astype(dtype), *(w.astype(dtype) for w in weights))


class Residual(nn.Module):
    """x + dropout(sublayer(x)), normalized after (the paper) or before ("pre")."""

    config: ModelConfig

    def setup(self) -> None:
        self.norm = NORMS["layer"]()
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self, x_BLD: Array, sublayer: Callable[[Array], tuple[Array, Any]], rows_B: Array | None
    ) -> tuple[Array, Any]:
        """float32 `[batch, length, d_model]`, and what the sub-layer gives beside its output."""
        is_pre = self.config.norm == "pre"
        y_BLD, beside = sublayer(self.norm(x_BLD) if is_pre else x_BLD)
        y_BLD = constrain(y_BLD.astype(x_BLD.dtype), BATCH, None, None)
        x_BLD = x_BLD + self.dropout(y_BLD, rows_B)
        return x_BLD if is_pre else self.norm(x_BLD), beside


class Layer(nn.Module):
    """Sub-layers, one after the other."""

    config: ModelConfig
    sublayers: tuple[str, ...]  # names in MIXERS, and "feed_forward"
    encoded_features: int | None = None  # of the encoder's output, for a decoder's layer
    watched: bool = False  # whether it returns the weights of its cross-attention

    def setup(self) -> None:
        for name in self.sublayers:
            if name == FEED_FORWARD:
                setattr(self, name, FeedForward(self.config))
            else:
                setattr(self, name, MIXERS[name](self.config, self.encoded_features))
            setattr(self, f"{name}_residual", Residual(self.config))

    def _run(
        self, x: Array, rows_B: Array | None, mix: Callable[[str, nn.Module, Array], Any]
    ) -> tuple[Array, dict[str, Any]]:
        """The last output, and what `mix(name, mixer, input)` gives beside each mixer's output."""
        found = {}
        for name in self.sublayers:
            part = getattr(self, name)

            def sublayer(y: Array, name: str = name, part: Any = part) -> tuple[Array, Any]:
                return (part(y), None) if name == FEED_FORWARD else mix(name, part, y)

            x, found[name] = getattr(self, f"{name}_residual")(x, sublayer, rows_B)
        return x, found

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, Array | None]:
        """`[batch, length, d_model]`; if watched, the weights `[batch, heads, length, src_len]`."""
        x_BLD, weights = self._run(
            x_BLD, context.rows_B, lambda name, mixer, y_BLD: mixer(y_BLD, context)
        )
        return x_BLD, weights["cross_attention"] if self.watched else None

    def step(
        self, x_BKD: Array, now: StepContext, memory: dict[str, Any], cache: Cache
    ) -> tuple[Array, Cache, Array | None]:
        """One new position of every hypothesis: `[batch, beams, d_model]`, cache, weights."""

        def mix(name: str, mixer: Any, y_BKD: Array) -> tuple[Array, Any]:
            own = Cache(cache.written[name], cache.carried[name])
            y_BKD, *beside = mixer.step(y_BKD, now, memory[name], own)
            return y_BKD, beside

        x_BKD, found = self._run(x_BKD, None, mix)
        caches = {name: found[name][0] for name in self._mixers()}
        weights = found["cross_attention"][1] if self.watched else None
        return x_BKD, _of_parts(caches), weights

    def remember(self, encoded_BME: Array) -> dict[str, Any]:
        """What each mixer keeps of the source sentences."""
        return {name: getattr(self, name).remember(encoded_BME) for name in self._mixers()}

    @nn.nowrap
    def empty_memory(self, sizes: SearchSizes) -> dict[str, Any]:
        """The shapes of `remember`, boxed with the names of their axes."""
        return {name: mixer.empty_memory(sizes) for name, mixer in self._unbound().items()}

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """The cache of no position yet, boxed with the names of its axes."""
        return _of_parts({name: mixer.empty(sizes) for name, mixer in self._unbound().items()})

    @nn.nowrap
    def _mixers(self) -> list[str]:
        return [name for name in self.sublayers if name != FEED_FORWARD]

    @nn.nowrap
    def _unbound(self) -> dict[str, Any]:
        return {
            n: MIXERS[n](self.config, self.encoded_features, parent=None) for n in self._mixers()
        }


def _of_parts(caches: dict[str, Cache]) -> Cache:
    return Cache(
        {name: cache.written for name, cache in caches.items()},
        {name: cache.carried for name, cache in caches.items()},
    )
