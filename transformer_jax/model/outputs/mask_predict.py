"""The conditional masked language model (Ghazvininejad et al. 2019): a decoder that fills in masks.

It sees the source and the whole target, in which some subwords are masked, and predicts these. How
many there are at inference, it predicts from the source. EOS is never masked: it ends what is seen.

Dimension key
  B batch   L target length   M source length   E features of the encoder's output
  C classes of lengths
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import LossSums, Place
from transformer_jax.model.layers.dropout import NoiseSource, noise_of, position_bits, uniform
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.vocabulary import BOS, EOS

MASK = BOS  # nothing else is at the place of BOS: targets are not shifted
LENGTHS = 256  # classes: target length minus source length, from -128 to 127
LENGTH_WEIGHT = 0.1
PARAMETERS = {
    "length_kernel": Parameter(nn.initializers.lecun_normal(), ("encoded", "lengths"), summed=1),
    "length_bias": Parameter(nn.initializers.zeros, ("lengths",)),
}


def mask_predict(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
) -> tuple[LossSums, None]:
    """The cross entropy of masked subwords with label smoothing, and of the lengths.

    `tokens` counts masked subwords. A sentence's length counts 0.1 times its masked subwords.

    Source: Ghazvininejad, Levy, Liu and Zettlemoyer 2019, section 3.
    """
    if rows_B is None:  # outside training always the same noise for a row with this number
        noise_source = NoiseSource(jnp.arange(3, dtype=jnp.uint32), jnp.arange(len(batch.tgt.ids)))
    else:
        noise_source = noise_of(model, rows_B)
    masked_BL = drawn_masks(batch.tgt, noise_source)
    seen = batch.tgt._replace(ids=jnp.where(masked_BL, MASK, batch.tgt.ids))
    encoded_BME = model.encode(batch.src, rows_B)
    x_BLD, _ = model.decode(encoded_BME, batch.src, seen, rows_B, full_context=True)
    given = model.given(None, encoded_BME, batch.src, seen)
    wanted = batch.tgt._replace(segments=jnp.where(masked_BL, batch.tgt.segments, 0))
    sums = model.out().loss(x_BLD, given, batch._replace(tgt=wanted), settings)
    log_p_BMC = length_log_probs(model, encoded_BME, model.source_place(batch.src))
    length = _length_nats(log_p_BMC, batch, masked_BL)
    return sums._replace(smoothed_nats=sums.smoothed_nats + LENGTH_WEIGHT * length), None


def drawn_masks(target: Packed, noise_source: NoiseSource) -> Array:
    """Which subwords are masked: of N in a sentence floor(u N) + 1, with u ~ U(0, 1).

    Every number from 1 to N is as likely, and so is every choice of them.

    Args:
      target: the target, with EOS after each sentence.
      noise_source: random bits, and the rows' numbers.

    Returns:
      Booleans `[batch, tgt_len]`.
    """
    word_BL = (target.segments != 0) & (target.ids != EOS)
    bits_BL = position_bits(0, word_BL.shape[1], noise_source)
    with_BLL = (target.segments[:, :, None] == target.segments[:, None]) & word_BL[:, None]
    count_BL = with_BLL.sum(-1)
    rank_BL = (with_BLL & (bits_BL[:, None] < bits_BL[..., None])).sum(-1)
    begin_BL = jnp.arange(word_BL.shape[1]) - target.positions
    # Other bits than those of the ranks, or the first subword would be masked more often.
    shift = NoiseSource(noise_source.bits[::-1], noise_source.rows_B)
    u_BL = jnp.take_along_axis(uniform(position_bits(0, word_BL.shape[1], shift)), begin_BL, axis=1)
    return word_BL & (rank_BL < jnp.floor(u_BL * count_BL) + 1)


def length_log_probs(model: Any, encoded_BME: Array, source: Place) -> Array:
    """Log probabilities of a sentence's length classes, at each of its positions `[B, M, C]`.

    From the mean of the sentence's vectors by one linear layer.
    """
    with_BMM = source.segments[:, :, None] == source.segments[:, None]
    mean_BME = with_BMM / with_BMM.sum(-1, keepdims=True) @ encoded_BME
    params = model.output_params
    return jax.nn.log_softmax(mean_BME @ params["length_kernel"] + params["length_bias"])


def length_class(target_length: Array, source_length: Array) -> Array:
    """The class of a target length; lengths that are too far from the source's are cut."""
    return jnp.clip(target_length - source_length + LENGTHS // 2, 0, LENGTHS - 1)


def _length_nats(log_p_BMC: Array, batch: Batch, masked_BL: Array) -> Array:
    """The cross entropy of each sentence's length, times its number of masked subwords; the sum."""
    source, target = batch.src.segments, batch.tgt.segments
    own_BML = (source[:, :, None] == target[:, None]) & (source[:, :, None] != 0)
    own_BMM = source[:, :, None] == source[:, None]
    class_BM = length_class(own_BML.sum(-1), own_BMM.sum(-1))
    nats_BM = -jnp.take_along_axis(log_p_BMC, class_BM[..., None], axis=-1)[..., 0]
    weight_BM = (own_BML & masked_BL[:, None]).sum(-1)
    first_BM = batch.src.positions == 0
    return jnp.where(first_BM, weight_BM * nats_BM, 0.0).sum()
