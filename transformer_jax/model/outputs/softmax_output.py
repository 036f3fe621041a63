"""The softmax over the vocabulary: from the decoder's output to logits and to the loss.

The loss is label-smoothed cross entropy, as sums that add over micro-batches and devices.

Dimension key
  B batch   L target length   V vocabulary, padded   D d_model
  R replicas, which hold different rows   b rows of one replica in one block
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import BATCH, VOCABULARY, Parameter, constrain, divided
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
from transformer_jax.model.outputs.consistency import divergence_and_gradient
from transformer_jax.model.outputs.cross_entropy import (
    CONSISTENCY,
    DISTILLATION,
    PAD_LOGIT,
    LossSettings,
    loss_and_gradient,
)
from transformer_jax.model.outputs.distillation import taught_loss_and_gradient
from transformer_jax.model.outputs.loss_blocks import BlockLoss, Parts, loss_by_blocks
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.encoded import Taught

BIAS_FEATURES = 8  # matrix units are fast if the features are a multiple of 8


def output_logits(x_BLD: Array, table_VD: Array, dtype: str, kept: str | None = None) -> Array:
    """x E^T, `[batch, length, vocabulary]`; the entries of padding have no meaning.

    Args:
      x_BLD: the decoder's output; any number of axes may be before the features.
      table_VD: the output embedding `[vocabulary, d_model]`.
      dtype: type of the product's operands.
      kept: type of the result, which is rounded once; None: that of the sums, float32.

    Source: Vaswani et al. 2017, section 3.4.
    """
    logits_BLV = jnp.einsum(
        "...D,VD->...V",
        x_BLD.astype(dtype),
        table_VD.astype(dtype),
        preferred_element_type=kept or sum_type(dtype),
    )
    lengths = (None,) * (logits_BLV.ndim - 2)
    return constrain(logits_BLV, BATCH, *lengths, VOCABULARY)


def with_bias(table_VD: Array, bias_V: Array) -> Array:
    """The table with the bias as one more feature, and 7 of zeros: `[vocabulary, d_model + 8]`.

    With it x E^T + b is the product of this table and `with_one(x)`, and so are its gradients.
    """
    return jnp.concatenate([table_VD, _one_feature_and_zeros(bias_V, table_VD.dtype)], axis=-1)


def with_one(x_BLD: Array) -> Array:
    """x with a feature 1, which the bias multiplies, and 7 of zeros: `[..., d_model + 8]`."""
    ones_BL = jnp.ones(x_BLD.shape[:-1])
    return jnp.concatenate([x_BLD, _one_feature_and_zeros(ones_BL, x_BLD.dtype)], axis=-1)


def _one_feature_and_zeros(x: Array, dtype: Any) -> Array:
    return x[..., None].astype(dtype) * (jnp.arange(BIAS_FEATURES) == 0).astype(dtype)


def projected_loss(
    parts: Parts,
    targets_BL: Array,
    real_BL: Array,
    settings: LossSettings,
    taught: Taught | None = None,
) -> LossSums:
    """The loss of logits x E^T; see `loss_by_blocks`.

    Args:
      parts: the decoder's output, float32 `[batch, tgt_len, d_model]`, and the output embedding,
        float32 `[padded vocabulary, d_model]`. With the loss "consistency" the outputs of two
        passes are one after the other, and targets and real positions are there twice.
      targets_BL: subwords to predict, `[batch, tgt_len]`.
      real_BL: booleans `[batch, tgt_len]`, False = padding.
      settings: settings.replicas must divide the batch size.
      taught: what a teacher predicts, `[batch, tgt_len, K]`, for the loss "distillation".
    """
    return loss_by_blocks(parts, (targets_BL, real_BL, taught), _block_loss, settings)[0]


def _block_loss(
    block: tuple[Array, Any, Any], table_VD: Array, settings: LossSettings
) -> BlockLoss:
    x_RbLD, _, (targets_RbL, real_RbL, taught) = block
    logits_RbLV = output_logits(x_RbLD, table_VD, settings.dtype, settings.logits_dtype)
    weights = settings.on_logits

    def plain(logits_RbLV: Array, targets_RbL: Array, real_RbL: Array) -> tuple[LossSums, Array]:
        size = settings.vocabulary_size
        logits_RbLV = logits_RbLV.astype(sum_type(settings.dtype))
        sums, gradient_RbLV = loss_and_gradient(
            logits_RbLV, targets_RbL, real_RbL, settings.smoothing, size
        )
        if weight := weights.get(CONSISTENCY):
            gap, of_gap_RbLV = divergence_and_gradient(logits_RbLV, real_RbL, size)
            sums = jax.tree.map(lambda both: both / 2, sums)  # the mean of both passes
            sums = sums._replace(auxiliary={CONSISTENCY: weight * gap})
            gradient_RbLV = gradient_RbLV / 2 + weight * of_gap_RbLV
        if weight := weights.get(DISTILLATION):
            nats, of_nats_RbLV = taught_loss_and_gradient(logits_RbLV, taught, size)
            sums = sums._replace(auxiliary={DISTILLATION: weight * nats})
            gradient_RbLV += weight * of_nats_RbLV
        return sums, gradient_RbLV.astype(settings.dtype)

    # The kernel computes the cross entropy alone.
    wide = jnp.finfo(settings.dtype).bits >= 32
    if wide or divided(VOCABULARY) or weights:
        sums, gradient_RbLV = plain(logits_RbLV, targets_RbL, real_RbL)
        return BlockLoss(sums, gradient_RbLV)
    from transformer_jax.model.kernels.fused_loss import (
        fused_loss_and_gradient,  # imports Pallas: 0.1 s
    )

    fused = functools.partial(fused_loss_and_gradient, settings=settings)
    arrays = logits_RbLV, targets_RbL, real_RbL
    sums, gradient_RbLV = jax.lax.platform_dependent(*arrays, cuda=fused, default=plain)
    return BlockLoss(sums, gradient_RbLV)


def _weighted_block(
    block: tuple[Array, Any, Any], table_VD: Array, settings: LossSettings
) -> BlockLoss:
    x_RbLD, _, (targets_RbL, weights_RbL) = block
    logits_RbLV = output_logits(x_RbLD, table_VD, settings.dtype, settings.logits_dtype)
    logits_RbLV = logits_RbLV.astype(sum_type(settings.dtype))
    sums, gradient_RbLV = loss_and_gradient(
        logits_RbLV, targets_RbL, weights_RbL, settings.smoothing, settings.vocabulary_size
    )
    return BlockLoss(sums, gradient_RbLV)


@dataclasses.dataclass(frozen=True)
class Softmax:
    """The softmax over the vocabulary of x E^T (Vaswani et al. 2017, section 3.4).

    With model.output_bias, `given.table_VD` has to be the result of `with_bias`.
    """

    config: ModelConfig
    vocabulary_size: int  # real, not padded

    watches: ClassVar[bool] = False  # whether it needs the weights of the watched layer
    divides_by_sum: ClassVar[bool] = False  # whether these may have another sum than 1
    parameters: ClassVar[Mapping[str, Parameter]] = {}

    def logits(self, x_BLD: Array, given: Given) -> Array:
        """float32 `[batch, length, padded vocabulary]`; the padding's entries are -1e9."""
        logits_BLV = output_logits(self.widened(x_BLD), given.table_VD, self.config.dtype)
        return self.masked(logits_BLV)

    def loss(self, x_BLD: Array, given: Given, batch: Batch, settings: LossSettings) -> LossSums:
        """The sums of the loss over the target's real positions."""
        parts, target = Parts(self.widened(x_BLD), given.table_VD), batch.tgt
        return projected_loss(parts, target.ids, target.segments != 0, settings, batch.taught)

    def weighted_loss(
        self, x_BLD: Array, given: Given, wanted: tuple[Array, Array], settings: LossSettings
    ) -> Array:
        """-sum_l w_l log p(y_l): `wanted` has subwords y and any weights w, `[batch, tgt_len]`."""
        parts = Parts(self.widened(x_BLD), given.table_VD)
        plain = settings._replace(smoothing=0.0, auxiliary=())
        return loss_by_blocks(parts, wanted, _weighted_block, plain)[0].smoothed_nats

    def prepare(self, table_VD: Array) -> Array:
        """E^T, from which every search step makes logits: `[d_model, vocabulary]`."""
        return table_VD[: self.vocabulary_size].astype(self.config.dtype).T

    def remember(self, params: Params, encoded_BME: Array, source: Packed) -> Any:
        """What the output keeps of the source sentences during a search: nothing."""
        return ()

    def empty_memory(self, sizes: SearchSizes) -> Any:
        """The shapes of `remember`, boxed with the names of their axes."""
        return ()

    def with_cache(self, cache: Cache, sizes: SearchSizes) -> Cache:
        """The decoder's empty cache and, if it has one, the output's own."""
        return cache

    def own_cache(self, cache: Cache) -> tuple[Cache, Any]:
        """The decoder's part of a cache, and the output's."""
        return cache, ()

    def step(self, x_BKD: Array, given: StepGiven, now: Now, cache: Cache) -> tuple[Array, Cache]:
        """float32 `[batch, beams, vocabulary]`, without padding, and the cache."""
        return self.step_logits(given.prepared_DV, x_BKD), cache

    def step_logits(self, prepared_DV: Array, x_BKD: Array) -> Array:
        """float32 `[batch, beams, ..., vocabulary]`, without padding."""
        x_BKD = self.widened(x_BKD)
        wide = sum_type(self.config.dtype)
        logits_BKV = jnp.einsum(
            "...D,DV->...V",
            x_BKD.astype(prepared_DV.dtype),
            prepared_DV,
            preferred_element_type=wide,
        )
        return constrain(logits_BKV, BATCH, *(None,) * (x_BKD.ndim - 2), VOCABULARY)

    def product(self, x_BLD: Array, table: Array, axes: str) -> Array:
        """Logits of some subwords, float32; `axes` as in einsum, of x and of rows of the table."""
        dtype = self.config.dtype
        x_BLD, table = self.widened(x_BLD).astype(dtype), table.astype(dtype)
        return jnp.einsum(axes, x_BLD, table, preferred_element_type=sum_type(dtype))

    def widened(self, x_BLD: Array) -> Array:
        """x, with a feature 1 if there is a bias."""
        return with_one(x_BLD) if self.config.output_bias else x_BLD

    def masked(self, logits_BLV: Array) -> Array:
        """The logits, with -1e9 for the vocabulary's padding."""
        real_V = jnp.arange(logits_BLV.shape[-1]) < self.vocabulary_size
        return jnp.where(real_V, logits_BLV, PAD_LOGIT)
