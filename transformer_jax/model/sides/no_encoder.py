"""No encoder, for a language model: the decoder alone, without attention to a source.

The paper's decoder without its second sub-layer is the model of Liu et al. 2018 (section 4.2.3).

Dimension key
  B batch   M source length   D d_model
"""

import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.interfaces import Place
from transformer_jax.model.sides.bases import Encoder


class NoEncoder(Encoder):
    """An encoder whose output has no features; a row's source is one EOS for each text."""

    @staticmethod
    def features(config: ModelConfig) -> int:
        """The output has none."""
        return 0

    def __call__(self, x_BMD: Array, place: Place, rows_B: Array | None) -> Array:
        """`[batch, src_len, 0]`."""
        return jnp.zeros((*x_BMD.shape[:2], 0))
