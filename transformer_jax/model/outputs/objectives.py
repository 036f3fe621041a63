"""Objectives: what training asks of a model's passes over a batch.

An objective is a function of a bound EncoderDecoder. It encodes and decodes the batch as often as
it wants and returns the sums of its loss. To add one, write the function, register it in
`OBJECTIVES`, and let `objective_of` choose it.

Dimension key
  B batch   L target length   M source length   D d_model
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jax import Array

from transformer_jax.model.attention.hard_attention import REINFORCE, loss_by_position, reinforced
from transformer_jax.model.interfaces import Given, LossSums
from transformer_jax.model.outputs.auxiliary import weighted_losses
from transformer_jax.model.outputs.consistency import CONSISTENCY
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.sides.embeddings import shift_right
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.vocabulary import BOS

# (model, batch, rows_B, settings, baseline) -> (the sums, the watched weights or None); arguments
# are those of `EncoderDecoder.loss`.
Objective = Callable[
    [Any, Batch, Array | None, LossSettings, Array | None], tuple[LossSums, Array | None]
]


class Pass(NamedTuple):
    """A pass of encoder and decoder over a batch."""

    x_BLD: Array  # the decoder's output before the vocabulary
    given: Given  # what the output's loss reads beside it
    auxiliary: dict[str, Array]  # losses on the watched weights


def decoder_input(batch: Batch) -> Packed:
    """The target shifted right."""
    return batch.tgt._replace(ids=shift_right(batch.tgt.ids, batch.tgt.positions, BOS))


def first_pass(model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings) -> Pass:
    """The pass of every objective that draws nothing, with its losses on the watched weights."""
    target = decoder_input(batch)
    encoded_BME = model.encode(batch.src, rows_B)
    x_BLD, watched_BLM = model.decode(encoded_BME, batch.src, target, rows_B)
    given = model.given(watched_BLM, encoded_BME, batch.src, target)
    aligned_BLM = None
    if settings.full_context:
        aligned_BLM = model.align(encoded_BME, batch.src, target, rows_B)
    return Pass(x_BLD, given, weighted_losses(settings.auxiliary, watched_BLM, aligned_BLM, batch))


def translation(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
) -> tuple[LossSums, Array | None]:
    """The cross entropy of the target with label smoothing (Vaswani et al. 2017, section 5.4)."""
    one = first_pass(model, batch, rows_B, settings)
    sums = model.out().loss(one.x_BLD, one.given, batch.tgt, settings)
    return _with(sums, one)


def consistency(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
) -> tuple[LossSums, Array | None]:
    """The cross entropy of two passes with other dropout, and how far they differ (R-Drop)."""
    one = first_pass(model, batch, rows_B, settings)
    encoded_BME = model.encode(batch.src, rows_B)
    again_BLD, _ = model.decode(encoded_BME, batch.src, one.given.target, rows_B)
    weight = dict(settings.auxiliary)[CONSISTENCY]
    both = one.x_BLD, again_BLD
    sums = model.out().loss_of_two(both, one.given, batch.tgt, settings, weight)
    return _with(sums, one)


def reinforce(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, baseline: Array | None
) -> tuple[LossSums, Array | None]:
    """The loss after one draw of each watched head's source position (hard_attention.py)."""
    assert rows_B is not None and baseline is not None
    target = decoder_input(batch)
    encoded_BME = model.encode(batch.src, rows_B)
    x_BLD, sampled = model.decode(encoded_BME, batch.src, target, rows_B, draws=True)
    x_BLD = model.out().widened(x_BLD)
    sums, nats_BL = loss_by_position(x_BLD, model.output_table(), batch.tgt, settings)
    losses = weighted_losses(settings.auxiliary, sampled.weights, None, batch)
    losses[REINFORCE] = reinforced(sampled.log_probability_BL, nats_BL, baseline, batch.tgt)
    return sums._replace(auxiliary=losses), sampled.weights


def _with(sums: LossSums, one: Pass) -> tuple[LossSums, Array | None]:
    return sums._replace(auxiliary={**one.auxiliary, **sums.auxiliary}), one.given.watched_BLM


OBJECTIVES: dict[str, Objective] = {
    "translation": translation,
    CONSISTENCY: consistency,
    REINFORCE: reinforce,
}


def objective_of(losses: Iterable[str]) -> str:
    """The name of the objective that computes auxiliary losses of these names."""
    return next((name for name in losses if name in OBJECTIVES), "translation")
