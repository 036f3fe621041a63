"""Hard attention: each head reads one source position, which is drawn (Xu et al. 2015).

Training draws from the weights of model.watched_layer. Validation and search use the weights
themselves, the paper's approximation of the sum over all draws (section 4.2).

Dimension key
  B batch   L target length   M source length   H heads   D d_model   V vocabulary, padded
  C components of a mixture
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.attention.cross_normalizers import gumbel_noise
from transformer_jax.model.attention.normalizers import Normalize
from transformer_jax.model.attention.patterns import causal, mask_of, same_sentence
from transformer_jax.model.interfaces import LossSums, Place
from transformer_jax.model.layers.dropout import NoiseSource
from transformer_jax.model.layers.matrix_products import sum_type
from transformer_jax.model.outputs.auxiliary import weighted_losses
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.outputs.mixed_loss import Mixture, mixture_loss
from transformer_jax.model.outputs.passes import decoder_input
from transformer_jax.text.batches import Batch, Packed

REINFORCE = "reinforce"  # the name of its loss among the auxiliary losses
DECAY = 0.9  # how slowly the baseline changes (Xu et al. 2015, section 4.1)


class Sampled(NamedTuple):
    """Attention weights, and how likely the source positions were that were drawn from them."""

    weights: Array  # float32 [B, H, L, M], or [B, L, M] for the mean of the watched heads
    log_probability_BL: Array  # that all heads read these positions


def choose(weights_BHLM: Array, noise_source: NoiseSource) -> Array:
    """Source positions that are drawn with these probabilities, int32 `[batch, heads, tgt_len]`.

    The largest of log a_m plus Gumbel noise is distributed as a (Maddison et al. 2014). The noise
    is a hash of the row, the head and both positions, so it is the same on any mesh and in any
    micro-batch. A position of probability 0 is drawn only where all have probability 0.
    """
    noise_BHLM = gumbel_noise(noise_source, weights_BHLM.shape)
    return jnp.argmax(jnp.log(weights_BHLM) + noise_BHLM, axis=-1)


def with_draw(normalize: Normalize, noise_source: NoiseSource, found: list[Sampled]) -> Normalize:
    """The normalizer, followed by a draw: all weight on one key of each query and head.

    No gradient reaches the scores through these weights. What was drawn is appended to `found`,
    because a normalizer can return nothing but weights.
    """

    def one_position(scores_BHLM: Array, mask: Array) -> Array:
        weights_BHLM = normalize(scores_BHLM, mask)
        chosen_BHL1 = choose(weights_BHLM, noise_source)[..., None]
        one_BHLM = chosen_BHL1 == jnp.arange(weights_BHLM.shape[-1])
        own_BHL = jnp.where(one_BHLM, weights_BHLM, 0.0).sum(-1)
        # Padding may have no weight at all; it adds nothing, and must not add 0 * log 0.
        log_BHL = jnp.log(jnp.where(own_BHL > 0, own_BHL, 1.0))
        found.append(Sampled(weights_BHLM, log_BHL.sum(1)))
        return one_BHLM.astype(weights_BHLM.dtype)

    return one_position


def reinforced(log_probability_BL: Array, nats_BL: Array, baseline: Array, target: Packed) -> Array:
    """The REINFORCE term: the loss of what was drawn, times how likely the draw was.

    It is sum_l R_l log p(z_l), where R_l is the loss of position l and of all later positions of
    its sentence, less the baseline for each; R_l is a constant here. The gradient of this term plus
    the gradient of the loss is an unbiased estimate of the gradient of the expected loss, whatever
    the baseline is.

    Args:
      log_probability_BL: log p(z_l) of what each target position drew.
      nats_BL: the loss of each target position.
      baseline: the loss that is expected of a subword, a scalar.
      target: gives the sentence and the index of each position.

    Returns:
      float32 scalar; padding adds nothing.

    Source: Xu et al. 2015, equation 11, which uses the loss of the whole sentence for every
    choice. What comes before a choice does not depend on it and would only add noise.
    """
    place = Place(target.segments, target.positions)
    # [b, t, l]: True where position l is in the sentence of position t, and not after it.
    before_BLL = mask_of((same_sentence, causal), place, place)[:, 0]
    excess_BL = jax.lax.stop_gradient(nats_BL - baseline)
    to_come_BL = jnp.where(before_BLL, excess_BL[..., None], 0.0).sum(1)
    return (to_come_BL * log_probability_BL).sum()


def first_baseline(vocabulary_size: int) -> Array:
    """The loss of a subword if all are equally likely."""
    return jnp.log(jnp.float32(vocabulary_size))


def next_baseline(baseline: Array, sums: LossSums) -> Array:
    """The running mean of the loss of a subword."""
    mean = sums.smoothed_nats / jnp.maximum(sums.tokens, 1.0)
    return DECAY * baseline + (1 - DECAY) * mean


def reinforce(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, baseline: Array | None
) -> tuple[LossSums, Array | None]:
    """The loss after one draw of each watched head's source position."""
    assert rows_B is not None and baseline is not None
    target = decoder_input(batch)
    encoded_BME = model.encode(batch.src, rows_B)
    x_BLD, sampled = model.decode(encoded_BME, batch.src, target, rows_B, draws=True)
    x_BLD = model.out().widened(x_BLD)
    # A mixture of one component, whose weight is 1, has the loss of each position.
    log_weight_BLC = jnp.zeros((*x_BLD.shape[:2], 1), sum_type(x_BLD.dtype))
    mixture = Mixture(x_BLD[..., None, :], log_weight_BLC, None)
    tgt, table_VD = batch.tgt, model.output_table()
    sums, nats_BL = mixture_loss(mixture, table_VD, tgt.ids, tgt.segments != 0, settings)
    losses = weighted_losses(settings.auxiliary, sampled.weights, None, batch)
    losses[REINFORCE] = reinforced(sampled.log_probability_BL, nats_BL, baseline, tgt)
    return sums._replace(auxiliary=losses), sampled.weights
