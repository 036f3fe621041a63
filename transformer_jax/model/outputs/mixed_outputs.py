"""Outputs that mix the softmax over the vocabulary with something else.

Each is one function from the decoder's output to a `Mixture`, which training and search share.
Search takes log probabilities as logits: its own log-softmax does not change them.

Dimension key
  B batch   L target length, in search beams   M positions pointed to   D d_model   K beams
  C components of a mixture   V vocabulary, padded   E features of the encoder's output
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, Parameter, zeros
from transformer_jax.model.interfaces import (
    Cache,
    Given,
    LossSums,
    Now,
    Params,
    SearchSizes,
    StepGiven,
)
from transformer_jax.model.layers.matrix_products import sum_type
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.outputs.mixed_loss import (
    Mixture,
    Pointer,
    log_probabilities,
    mixture_loss,
)
from transformer_jax.model.outputs.softmax_output import Softmax, output_logits
from transformer_jax.text.batches import Packed


class MixedOutput(Softmax):
    """An output whose probabilities are those of a mixture.

    By default the mixture reads the watched weights, and what `remember` keeps of the source.
    """

    watches = True

    def mixture(self, params: Params, x_BLD: Array, seen: Any) -> Mixture:
        """The mixture of each position.

        Args:
          params: the output's own.
          x_BLD: the decoder's output.
          seen: the result of `seen` in training; in search, the same for one search step.
        """
        raise NotImplementedError

    def seen(self, x_BLD: Array, given: Given) -> Any:
        """What `mixture` reads, when all positions are computed together."""
        assert given.watched_BLM is not None
        return given.watched_BLM, self.remember(given.params, given.encoded_BME, given.source)

    def logits(self, x_BLD: Array, given: Given) -> Array:
        """Log probabilities `[batch, length, padded vocabulary]`."""
        mixture = self._mixture(x_BLD, given)
        logits_BLCV = output_logits(mixture.x_BLCD, given.table_VD, self.config.dtype)
        return log_probabilities(self.masked(logits_BLCV), mixture)

    def loss(self, x_BLD: Array, given: Given, target: Packed, settings: LossSettings) -> LossSums:
        """The sums of the loss over the target's real positions."""
        mixture = self._mixture(x_BLD, given)
        real_BL = target.segments != 0
        return mixture_loss(mixture, given.table_VD, target.ids, real_BL, settings)[0]

    def _mixture(self, x_BLD: Array, given: Given) -> Mixture:
        mixture = self.mixture(given.params, x_BLD, self.seen(x_BLD, given))
        return mixture._replace(x_BLCD=self.widened(mixture.x_BLCD))

    def step(self, x_BKD: Array, given: StepGiven, now: Now, cache: Cache) -> tuple[Array, Cache]:
        """Log probabilities `[batch, beams, vocabulary]`, and the cache."""
        assert given.watched_BKM is not None
        mixture = self.mixture(given.params, x_BKD, (given.watched_BKM, given.memory))
        return self.step_log_probs(given.prepared_DV, mixture), cache

    def step_log_probs(self, prepared_DV: Array, mixture: Mixture) -> Array:
        """Log probabilities `[batch, beams, vocabulary]` of one search step."""
        return log_probabilities(self.step_logits(prepared_DV, mixture.x_BLCD), mixture)


def wide(x: Array) -> Array:
    """x in float32, or in float64 if x is float64."""
    return x.astype(sum_type(x.dtype))


class Copy(MixedOutput):
    """A pointer-generator (See et al. 2017): subwords of the source get the attention's weights."""

    parameters: ClassVar[Mapping[str, Parameter]] = {
        "copy_gate": Parameter(nn.initializers.normal(0.02), ("d_model",)),
        "copy_gate_bias": Parameter(nn.initializers.zeros, ()),
    }

    def mixture(self, params: Params, x_BLD: Array, seen: tuple[Array, Array]) -> Mixture:
        """p(y) = (1 - g) softmax(x E^T)_y + g sum_{m: y_m = y} a_m with g = sigmoid(w x + b).

        Args:
          params: "copy_gate" w `[d_model]` and "copy_gate_bias" b.
          x_BLD: the decoder's output.
          seen: the watched weights a `[batch, length, src_len]`, and the source's subwords.

        Source: See, Liu and Manning 2017, equations 8 and 9, where g is 1 - p_gen and reads the
        context vector and the decoder's input too; Gulcehre et al. 2016, section 4.
        """
        watched_BLM, ids_BM = seen
        gate_BL = wide(x_BLD) @ params["copy_gate"] + params["copy_gate_bias"]
        mass_BLM = jax.nn.sigmoid(gate_BL)[..., None] * watched_BLM
        log_weights_BLC = jax.nn.log_sigmoid(-gate_BL)[..., None]
        return Mixture(x_BLD[..., None, :], log_weights_BLC, Pointer(mass_BLM, ids_BM))

    def remember(self, params: Params, encoded_BME: Array, source: Packed) -> Array:
        """The source's subwords."""
        return source.ids

    def empty_memory(self, sizes: SearchSizes) -> Any:
        """The shape of `remember`, boxed with the names of its axes."""
        return zeros((sizes.batch, sizes.src_length), (BATCH, None), jnp.int32)
