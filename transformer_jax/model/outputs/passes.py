"""Passes of a model over a batch, which objectives are made of (objectives.py).

Dimension key
  B batch   L target length   M source length   D d_model
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from transformer_jax.config.train import TrainConfig
from transformer_jax.model.interfaces import Given, LossSums
from transformer_jax.model.outputs.auxiliary import weighted_losses
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.sides.embeddings import shift_right
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.vocabulary import BOS

# (model, batch, rows_B, settings, baseline) -> (the sums, the watched weights or None); arguments
# are those of `EncoderDecoder.loss`.
Sums = Callable[
    [Any, Batch, Array | None, LossSettings, Array | None], tuple[LossSums, Array | None]
]


class Objective(NamedTuple):
    """What training asks of a model's passes over a batch."""

    sums: Sums
    weight: Callable[[TrainConfig], float]  # of its own loss among the sums; 0: it is not asked
    watches: bool  # whether it reads the watched weights
    # train -> translations that the model draws of each source (Batch.drawn); 0: none.
    draws: Callable[[TrainConfig], int] = lambda train: 0
    # batch -> what the model translates for these draws.
    sources: Callable[[Batch], Packed] = lambda batch: batch.src
    greedy: bool = False  # whether it takes the likeliest subwords in place of drawing them


class Pass(NamedTuple):
    """A pass of encoder and decoder over a batch."""

    x_BLD: Array  # the decoder's output before the vocabulary
    given: Given  # what the output's loss reads beside it
    auxiliary: dict[str, Array]  # losses on the watched weights


def decoder_input(batch: Batch) -> Packed:
    """The target shifted right."""
    return batch.tgt._replace(ids=shift_right(batch.tgt.ids, batch.tgt.positions, BOS))


def sentences_of(ids_BL: Array, lengths_B: Array) -> Packed:
    """One sentence of these lengths in each row."""
    positions_BL = jnp.broadcast_to(jnp.arange(ids_BL.shape[1]), ids_BL.shape)
    return Packed(ids_BL, (positions_BL < lengths_B[:, None]).astype(jnp.int32), positions_BL)


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


def with_losses(sums: LossSums, one: Pass) -> tuple[LossSums, Array | None]:
    """The sums with a pass's losses on its watched weights, and these weights."""
    return sums._replace(auxiliary={**one.auxiliary, **sums.auxiliary}), one.given.watched_BLM
