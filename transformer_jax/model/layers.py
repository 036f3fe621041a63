"""Encoder and decoder layers (Vaswani et al. 2017, sections 3.1 and 3.3).

Dimension key
  B batch   L target length   M source length   D d_model   F d_ff   K beams
"""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.attention import KeysValues, MultiHeadAttention
from transformer_jax.model.axes import BATCH, HIDDEN, constrain
from transformer_jax.model.dropout import Dropout

LAYER_NORM_EPSILON = 1e-6  # as in the authors' tensor2tensor; the paper gives none


def layer_norm(x_BLD: Array, scale_D: Array, bias_D: Array) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the features, in float32.

    Args:
      x_BLD: `[batch, length, d_model]`.
      scale_D: gain `[d_model]`.
      bias_D: `[d_model]`.

    Returns:
      float32 `[batch, length, d_model]`.

    Source: Ba et al. 2016, equation 4.
    """
    x_BLD = x_BLD.astype(jnp.float32)
    centred_BLD = x_BLD - x_BLD.mean(-1, keepdims=True)
    variance_BL1 = jnp.square(centred_BLD).mean(-1, keepdims=True)
    return centred_BLD * jax.lax.rsqrt(variance_BL1 + LAYER_NORM_EPSILON) * scale_D + bias_D


class LayerNorm(nn.Module):
    """Layer normalisation with a learned gain and bias (Ba et al. 2016)."""

    @nn.compact
    def __call__(self, x_BLD: Array) -> Array:
        """float32 `[batch, length, d_model]`."""
        features = (x_BLD.shape[-1],)
        scale_D = self.param("scale", nn.initializers.ones, features)
        bias_D = self.param("bias", nn.initializers.zeros, features)
        return layer_norm(x_BLD, scale_D, bias_D)


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

    d_model: int
    d_ff: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x_BLD: Array) -> Array:
        """`[batch, length, d_model]` in, the same out."""
        xavier, zeros = nn.initializers.xavier_uniform(), nn.initializers.zeros
        weights = (
            self.param("inner", xavier, (self.d_model, self.d_ff)),
            self.param("inner_bias", zeros, (self.d_ff,)),
            self.param("outer", xavier, (self.d_ff, self.d_model)),
            self.param("outer_bias", zeros, (self.d_model,)),
        )
        return feed_forward(x_BLD.astype(self.dtype), *(w.astype(self.dtype) for w in weights))


class Residual(nn.Module):
    """x + dropout(sublayer(x)), normalised after (the paper) or before ("pre")."""

    norm: str
    dropout: float

    @nn.compact
    def __call__(
        self, x_BLD: Array, sublayer: Callable[[Array], Array], rows_B: Array | None
    ) -> Array:
        """float32 `[batch, length, d_model]`."""
        norm, dropout = LayerNorm(name="norm"), Dropout(self.dropout, name="dropout")

        def branch(y_BLD: Array) -> Array:
            y_BLD = constrain(sublayer(y_BLD).astype(jnp.float32), BATCH, None, None)
            return dropout(y_BLD, rows_B)

        if self.norm == "pre":
            return x_BLD + branch(norm(x_BLD))
        return norm(x_BLD + branch(x_BLD))


def head_sizes(config: ModelConfig) -> tuple[int, int]:
    """(d_k, d_v) per head."""
    d_k = config.d_model // config.num_heads if config.d_k is None else config.d_k
    return d_k, d_k if config.d_v is None else config.d_v


def _attention(config: ModelConfig) -> MultiHeadAttention:
    d_k, d_v = head_sizes(config)
    dtype = jnp.dtype(config.dtype)
    sizes = (config.d_model, config.num_heads, d_k, d_v)
    return MultiHeadAttention(*sizes, dtype, config.scale_attention)


def _residual(config: ModelConfig) -> Residual:
    return Residual(config.norm, config.dropout)


def _feed_forward(config: ModelConfig) -> FeedForward:
    return FeedForward(config.d_model, config.d_ff, jnp.dtype(config.dtype))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = _attention(self.config)
        self.self_attention_residual = _residual(self.config)
        self.feed_forward = _feed_forward(self.config)
        self.feed_forward_residual = _residual(self.config)

    def __call__(self, x_BMD: Array, mask_B1MM: Array, rows_B: Array | None) -> Array:
        """`[batch, src_len, d_model]` in, the same out."""

        def attend(y_BMD: Array) -> Array:
            return self.self_attention(y_BMD, *self.self_attention.keys_values(y_BMD), mask_B1MM)

        x_BMD = self.self_attention_residual(x_BMD, attend, rows_B)
        return self.feed_forward_residual(x_BMD, self.feed_forward, rows_B)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, then the feed-forward network."""

    config: ModelConfig

    def setup(self) -> None:
        self.self_attention = _attention(self.config)
        self.self_attention_residual = _residual(self.config)
        self.cross_attention = _attention(self.config)
        self.cross_attention_residual = _residual(self.config)
        self.feed_forward = _feed_forward(self.config)
        self.feed_forward_residual = _residual(self.config)

    def __call__(
        self,
        x_BLD: Array,
        encoded_BMD: Array,
        self_mask_B1LL: Array,
        cross_mask_B1LM: Array,
        rows_B: Array | None,
    ) -> Array:
        """`[batch, tgt_len, d_model]` in, the same out."""

        def attend(y_BLD: Array) -> Array:
            keys_values = self.self_attention.keys_values(y_BLD)
            return self.self_attention(y_BLD, *keys_values, self_mask_B1LL)

        memory = self.cross_attention.keys_values(encoded_BMD)

        def attend_to_source(y_BLD: Array) -> Array:
            return self.cross_attention(y_BLD, *memory, cross_mask_B1LM)

        x_BLD = self.self_attention_residual(x_BLD, attend, rows_B)
        x_BLD = self.cross_attention_residual(x_BLD, attend_to_source, rows_B)
        return self.feed_forward_residual(x_BLD, self.feed_forward, rows_B)

    def memory(self, encoded_BMD: Array) -> KeysValues:
        """Cross-attention keys and values, head by head: `[batch, heads, src_len, d_k or d_v]`."""
        key_BMHK, value_BMHV = self.cross_attention.keys_values(encoded_BMD)
        return key_BMHK.swapaxes(1, 2), value_BMHV.swapaxes(1, 2)

    def step(
        self,
        x_BKD: Array,
        memory: KeysValues,
        cache: Sequence[KeysValues],
        cross_mask_B1M1: Array,
        position_B: Array,
        self_mask_B1MK: Array,
    ) -> tuple[Array, tuple[KeysValues, ...]]:
        """One new position of every hypothesis; see `MultiHeadAttention.step`.

        Returns:
          `[batch, beams, d_model]`, and the layer's cache with the position written.
        """
        written = {}

        def attend(y_BKD: Array) -> Array:
            past = (cache, position_B, self_mask_B1MK)
            out_BKD, written["cache"] = self.self_attention.step(y_BKD, *past)
            return out_BKD

        def attend_to_source(y_BKD: Array) -> Array:
            return self.cross_attention.attend_to_cache(y_BKD, [memory], cross_mask_B1M1)

        x_BKD = self.self_attention_residual(x_BKD, attend, None)
        x_BKD = self.cross_attention_residual(x_BKD, attend_to_source, None)
        return self.feed_forward_residual(x_BKD, self.feed_forward, None), written["cache"]
