"""Marginal hard attention: a sum of predictions; each one reads one source position.

Dimension key
  B batch   L target length   M source length   D d_model   E features of the encoder's output
  C positions that are summed over   K beams
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, Parameter, zeros
from transformer_jax.model.interfaces import Params, SearchSizes
from transformer_jax.model.layers.matrix_products import product
from transformer_jax.model.outputs.mixed_loss import LEAST_MASS, Mixture, safe_log
from transformer_jax.model.outputs.mixed_outputs import MixedOutput, wide
from transformer_jax.text.batches import Packed


class Marginal(MixedOutput):
    """The exact marginal of hard attention: a softmax for each of the best source positions."""

    divides_by_sum = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "marginal_context": Parameter(nn.initializers.xavier_uniform(), ("encoded", "hidden"), 1)
    }

    def mixture(self, params: Params, x_BLD: Array, seen: tuple[Array, Array]) -> Mixture:
        """p(y) = sum_m a_m softmax((x + v_m) E^T)_y over the k largest a_m, divided by their sum.

        Args:
          params: the output's own.
          x_BLD: the decoder's output.
          seen: the watched weights a `[batch, length, src_len]`, and vectors v of the source
            `[batch, src_len, d_model]`.

        Source: Shankar, Garg and Sarawagi 2018, section 3, who do not divide by the sum.
        """
        watched_BLM, contexts_BMD = seen
        count = min(self.config.marginal_positions, watched_BLM.shape[-1])
        weights_BLC, positions_BLC = jax.lax.top_k(watched_BLM, count)
        weights_BLC = wide(weights_BLC)
        # Some normalizers give padding no weight at all; it gets equal weights, and never counts.
        some_BL1 = weights_BLC.sum(-1, keepdims=True) > LEAST_MASS
        weights_BLC = jnp.where(some_BL1, weights_BLC, 1.0)
        log_weights_BLC = safe_log(weights_BLC) - jnp.log(weights_BLC.sum(-1, keepdims=True))
        contexts_BLCD = jax.vmap(lambda contexts_MD, positions: contexts_MD[positions])(
            contexts_BMD, positions_BLC
        )
        return Mixture(x_BLD[..., None, :] + contexts_BLCD, log_weights_BLC, None)

    def remember(self, params: Params, encoded_BME: Array, source: Packed) -> Array:
        """v = W e, float32 `[batch, src_len, d_model]`, with e the encoder's output."""
        matrix_ED = params["marginal_context"]
        dtype = self.config.dtype
        return wide(product("BME,ED->BMD", encoded_BME, matrix_ED, dtype))

    def empty_memory(self, sizes: SearchSizes) -> Any:
        """The shapes of `remember`, boxed with the names of their axes."""
        return zeros((sizes.batch, sizes.src_length, self.config.d_model), (BATCH, None, None))
