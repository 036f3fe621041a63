"""CROSS_NORMALIZERS: scores to weights in encoder-decoder attention, in training and outside it.

They are those of normalizers.py, and some that choose source positions. In training the latter use
noise: "gumbel" chooses at random, those of monotonic.py give expectations. Everywhere else they
choose without noise: in search, in validation and for the score of a given translation.

Dimension key
  B batch   L target length   M source length   H heads
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.memories import ATTENTION_MEMORIES
from transformer_jax.model.attention.monotonic import MONOTONIC
from transformer_jax.model.attention.normalizers import (
    NORMALIZERS,
    Normalize,
    Normalizer,
    masked,
    softmax,
)
from transformer_jax.model.attention.stateful_normalizers import Stateful
from transformer_jax.model.interfaces import Params
from transformer_jax.model.layers.dropout import NoiseSource, standard_gumbel, uniform_noise


def gumbel(scores_BHLM: Array, mask: Array, noise_BHLM: Array | None) -> Array:
    """All weight on the key with the highest sum of score and noise; 0 if no key is allowed.

    Its gradient is that of softmax(scores + noise) (straight-through; the temperature is 1).

    Args:
      scores_BHLM: scores `[batch, heads, query_len, key_len]`, float32.
      mask: booleans that broadcast to that shape, True = may attend.
      noise_BHLM: of a Gumbel distribution, so that keys are chosen with the probabilities of
        softmax(scores); None: the highest score wins, and there is no gradient.

    Returns:
      Weights `[batch, heads, query_len, key_len]`.

    Source: Jang et al. 2017, equations 1 and 2 and section 2.2; Maddison et al. 2016.
    """
    if noise_BHLM is not None:
        scores_BHLM = scores_BHLM + noise_BHLM
    allowed = masked(scores_BHLM, mask)
    chosen_BHL1 = jnp.argmax(allowed, axis=-1, keepdims=True)
    is_chosen = jnp.arange(allowed.shape[-1]) == chosen_BHL1
    one_hot = (is_chosen & mask).astype(allowed.dtype)
    if noise_BHLM is None:
        return one_hot
    soft = softmax(scores_BHLM, mask)
    return one_hot + (soft - jax.lax.stop_gradient(soft))


def gumbel_noise(noise_source: NoiseSource, shape: tuple[int, ...]) -> Array:
    """Noise of the standard Gumbel distribution `[batch, heads, query_len, key_len]`, float32."""
    return standard_gumbel(uniform_noise(noise_source, shape))


def _gumbel(config: ModelConfig, params: Params, noise_source: NoiseSource | None) -> Normalize:
    def normalize(scores_BHLM: Array, mask: Array) -> Array:
        noise = None if noise_source is None else gumbel_noise(noise_source, scores_BHLM.shape)
        return gumbel(scores_BHLM, mask, noise)

    return normalize


STATELESS: dict[str, Normalizer] = {**NORMALIZERS, "gumbel": Normalizer(_gumbel)}
CROSS_NORMALIZERS = {**STATELESS, **MONOTONIC}
NOISY = ("gumbel", *MONOTONIC)  # in training


def stateful(config: ModelConfig) -> Stateful | None:
    """The normalizer or memory of this config, if it has a state."""
    if config.attention_memory is not None:
        return ATTENTION_MEMORIES[config.attention_memory]
    make = MONOTONIC.get(name_of(config))
    return None if make is None else make(config)


def normal_noise(noise_source: NoiseSource, shape: tuple[int, ...]) -> Array:
    """Noise of the standard normal distribution `[batch, heads, query_len, key_len]`, float32.

    Added to the energies of monotonic attention, it makes decisions nearly certain, so that those
    of search are like those of training (Raffel et al. 2017, section 2.5).
    """
    return jnp.sqrt(2.0) * jax.lax.erf_inv(2.0 * uniform_noise(noise_source, shape) - 1.0)


def name_of(config: ModelConfig) -> str:
    """The name of the normalizer of encoder-decoder attention."""
    return config.cross_normalizer or config.normalizer


def problems(config: ModelConfig) -> Iterator[str]:
    """Why this normalizer cannot be combined with the model's other keys."""
    name = name_of(config)
    if config.attention_memory is not None and name != "softmax":
        yield (
            f"model.attention_memory={config.attention_memory!r} has its own softmax, so that "
            f"encoder-decoder attention cannot have the normalizer {name!r}. Set "
            "model.cross_normalizer='softmax', or model.attention_memory=None."
        )
