"""Positional encodings: vectors added to the input, rotated queries and keys, biases of scores.

A new kind is its functions and its line in `POSITIONS`. Biases are in biases.py; kinds whose effect
depends on the query are in query_distances.py.

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.scores import SCORES
from transformer_jax.model.axes import FEATURES, declared, named
from transformer_jax.model.layers.matrix_products import sum_type
from transformer_jax.model.positions.biases import POSITION_BIASES, Bias
from transformer_jax.model.positions.query_distances import CONTEXTUAL, RELATIVE, QueryPositions

WAVELENGTH = 10_000.0  # about the longest wavelength, divided by 2 pi


def paper_wavelengths(d_model: int) -> np.ndarray:
    """10000^(2i / d_model), i = 0, 1, ...: `[d_model / 2]` (Vaswani et al. 2017, section 3.5)."""
    return WAVELENGTH ** (np.arange(0, d_model, 2) / d_model)


def t2t_wavelengths(d_model: int) -> np.ndarray:
    """10000^(i / (d_model / 2 - 1)), so that the last one is 10000: `[d_model / 2]`.

    Source: tensor2tensor's `get_timing_signal_1d`, which Marian follows.
    """
    return WAVELENGTH ** (np.arange(d_model // 2) / (d_model // 2 - 1))


def sinusoids(
    length: int, d_model: int, wavelengths: Callable[[int], np.ndarray] = paper_wavelengths
) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same angle.

    Sines and cosines alternate, as in the equation. Other code often puts all sines before all
    cosines, which is a permutation of the features and not this equation.

    Args:
      length: number of positions, 0 to length - 1.
      d_model: even number of features.
      wavelengths: from d_model to those of the angles, divided by 2 pi, `[d_model / 2]`.

    Returns:
      float32 `[length, d_model]`, rounded from float64.

    Raises:
      ValueError: d_model is odd.

    Source: Vaswani et al. 2017, section 3.5.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} is odd: sinusoids are pairs of a sine and a cosine.")
    angles = np.arange(length)[:, None] / wavelengths(d_model)[None, :]
    table_LD = np.empty((length, d_model))
    table_LD[:, 0::2] = np.sin(angles)
    table_LD[:, 1::2] = np.cos(angles)
    return table_LD.astype(np.float32)


def rotated(x_BLHK: Array, positions_BL: Array) -> Array:
    """Rotates each pair (2i, 2i + 1) of features by position / 10000^(2i / d_k), in x's type.

    The product of a rotated query and a rotated key depends on the distance of their positions.

    Args:
      x_BLHK: queries or keys `[batch, length, heads, d_k]`, d_k even.
      positions_BL: 0-based position in the sentence `[batch, length]`.

    Source: Su et al. 2021, section 3.4.2, equation 34.
    """
    rates = WAVELENGTH ** -(np.arange(0, x_BLHK.shape[-1], 2) / x_BLHK.shape[-1])
    wide = sum_type(x_BLHK.dtype)
    angles = positions_BL[:, :, None, None] * jnp.asarray(rates, wide)
    sin = jnp.sin(angles)
    cos = jnp.cos(angles)
    even, odd = x_BLHK[..., 0::2].astype(wide), x_BLHK[..., 1::2].astype(wide)
    pairs = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return pairs.reshape(x_BLHK.shape).astype(x_BLHK.dtype)


class Positions(NamedTuple):
    """An entry of the registry; a function is None if the kind does not need it."""

    # (config, length) -> float32 [length, d_model], added to the input.
    added: Callable[[ModelConfig, int], np.ndarray] | None = None
    learned: bool = False  # the vectors are parameters, so the number of positions is limited
    counted: bool = False  # the vector is the position's number times a learned direction
    # (queries or keys, positions) -> the same, rotated; in self-attention.
    rotate: Callable[[Array, Array], Array] | None = None
    bias: Bias | None = None  # what is added to the scores of self-attention
    by_query: QueryPositions | None = None  # what each layer computes from its queries


POSITIONS: dict[str, Positions] = {
    "sinusoidal": Positions(added=lambda config, length: sinusoids(length, config.d_model)),
    "learned": Positions(learned=True),
    "rotary": Positions(rotate=rotated),
    **{name: Positions(bias=bias) for name, bias in POSITION_BIASES.items()},
    "relative": Positions(by_query=RELATIVE),
    "contextual": Positions(by_query=CONTEXTUAL),
    "sinusoidal_t2t": Positions(
        added=lambda config, length: sinusoids(length, config.d_model, t2t_wavelengths)
    ),
    "index": Positions(counted=True),
    "none": Positions(),
}


def longest(config: ModelConfig) -> int | None:
    """The largest number of positions of a sentence or row; None: any number."""
    return config.max_positions if POSITIONS[config.positions].learned else None


def between_positions(config: ModelConfig) -> bool:
    """Whether only self-attention knows the positions: nothing is added to the input."""
    kind = POSITIONS[config.positions]
    return any(part is not None for part in (kind.rotate, kind.bias, kind.by_query))


class StackPositions(nn.Module):
    """A stack's positions: vectors for its input, and a bias for its layers' scores."""

    config: ModelConfig
    causal: bool = False  # True in the decoder
    biased: bool = True  # False for layers without self-attention

    def setup(self) -> None:
        config = self.config
        kind = POSITIONS[self.config.positions]
        init = nn.initializers.normal(config.d_model**-0.5)
        if kind.counted:
            # As if the number were one more feature of the input, before a matrix whose other
            # rows are the identity. It grows without bound.
            self.direction = self.param("direction", named(init, FEATURES), (config.d_model,))
        if kind.learned:
            shape = (config.max_positions, config.d_model)
            self.table = self.param("table", named(init, None, FEATURES), shape)
        if kind.bias is not None and self.biased:
            sizes = {**config.axis_sizes, **kind.bias.sizes}
            self.bias_params = declared(self, kind.bias.parameters, sizes)

    def __call__(self, positions: Array, length: int) -> Array | float:
        """Vectors `[*positions.shape, d_model]` of 0-based positions below `length`; 0.0: none.

        Raises:
          ValueError: `length` exceeds the number of learned positions.
        """
        config = self.config
        kind = POSITIONS[self.config.positions]
        if kind.added is not None:
            return jnp.asarray(kind.added(config, length))[positions]
        if kind.counted:
            return positions[..., None] * self.direction
        if not kind.learned:
            return 0.0
        # An index beyond the table would silently read its last row.
        if length > config.max_positions:
            raise ValueError(
                f"{length} positions are more than the model.max_positions={config.max_positions} "
                "learned ones. Sinusoidal positions have no limit."
            )
        return self.table[positions]

    def bias(self, distance: Array) -> Array | None:
        """Added to the scores of self-attention `[..., heads, query_len, key_len]`; None: nothing.

        Args:
          distance: position of the key minus that of the query, int `[..., query_len, key_len]`.
        """
        bias = POSITIONS[self.config.positions].bias
        if bias is None or not self.biased:
            return None
        return bias.of(self.config, self.bias_params, distance, self.causal)


def problems(config: ModelConfig) -> Iterator[str]:
    """Why this kind of positions cannot be combined with the model's other keys."""
    d_k, _ = config.head_sizes
    if config.positions in ("sinusoidal", "sinusoidal_t2t") and config.d_model % 2:
        yield (
            f"model.d_model={config.d_model} is odd: sinusoidal positions pair sines with cosines. "
            f"Use {config.d_model + 1}, or model.positions='learned'."
        )
    if config.positions == "sinusoidal_t2t" and config.d_model < 4:
        yield (
            f"model.d_model={config.d_model} is below 4: model.positions='sinusoidal_t2t' needs a "
            "first and a last wavelength. Use model.positions='sinusoidal'."
        )
    turns = POSITIONS[config.positions].rotate is not None
    if turns and d_k % 2:
        yield (
            f"model.positions={config.positions!r} turns pairs of features, and d_k={d_k} is odd. "
            "Set an even model.d_k, or use model.positions='sinusoidal'."
        )
    if turns and not SCORES[config.score].rotates:
        yield (
            f"model.positions={config.positions!r} with model.score={config.score!r}: turning "
            "queries and keys makes only their product depend on the distance. Use "
            "model.score='scaled_dot', or another score in model.cross_score alone."
        )
    score = SCORES[config.score]
    is_product = score.factor is not None and score.vectors is None
    if POSITIONS[config.positions].by_query is not None and not is_product:
        yield (
            f"model.positions={config.positions!r} with model.score={config.score!r}: vectors are "
            "added to keys that a query is multiplied by. Use model.score='scaled_dot', or another "
            "score in model.cross_score alone."
        )
