"""OBJECTIVES: what training asks of a model's passes over a batch.

An objective is a function of a bound EncoderDecoder. It encodes and decodes the batch as often as
it wants and returns the sums of its loss. To add one, write the function in a file of its own with
the parts of passes.py, and a line here that says with which weight a config asks for it.
"""

from collections.abc import Iterable
from typing import Any

from jax import Array

from transformer_jax.config.train import TrainConfig
from transformer_jax.model.attention.hard_attention import REINFORCE, reinforce
from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.outputs.auxiliary import AUXILIARY_LOSSES
from transformer_jax.model.outputs.back_translation import (
    BACK_TRANSLATION,
    back_translation,
    to_other_language,
)
from transformer_jax.model.outputs.consistency import consistency
from transformer_jax.model.outputs.cross_entropy import CONSISTENCY, DISTILLATION, LossSettings
from transformer_jax.model.outputs.ctc import ctc
from transformer_jax.model.outputs.distillation import distillation
from transformer_jax.model.outputs.mask_predict import mask_predict
from transformer_jax.model.outputs.passes import Objective, first_pass, with_losses
from transformer_jax.model.outputs.sequence_objectives import ON_DRAWS, of_draws
from transformer_jax.text.batches import Batch

TRANSLATION = "translation"  # the objective of a config that asks for no other


def translation(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
) -> tuple[LossSums, Array | None]:
    """The cross entropy of the target with label smoothing (Vaswani et al. 2017, section 5.4)."""
    one = first_pass(model, batch, rows_B, settings)
    return with_losses(model.out().loss(one.x_BLD, one.given, batch, settings), one)


def _of_draws(name: str) -> Objective:
    def weight(train: TrainConfig) -> float:
        return (train.objective == name) * train.objective_weight

    return Objective(of_draws(name), weight, watches=False, draws=lambda train: train.candidates)


OBJECTIVES: dict[str, Objective] = {
    TRANSLATION: Objective(translation, lambda train: 0.0, watches=False),
    CONSISTENCY: Objective(consistency, lambda train: train.consistency_weight, watches=False),
    DISTILLATION: Objective(
        distillation, lambda train: bool(train.teacher) * train.distillation_weight, watches=False
    ),
    REINFORCE: Objective(reinforce, lambda train: train.hard_attention == REINFORCE, watches=True),
    **{name: _of_draws(name) for name in ON_DRAWS},
    BACK_TRANSLATION: Objective(
        back_translation,
        lambda train: (train.objective == BACK_TRANSLATION) * train.objective_weight,
        watches=False,
        draws=lambda train: 1,
        sources=to_other_language,
        greedy=True,
    ),
    # The values of model.parallel.
    "mask_predict": Objective(mask_predict, lambda train: 0.0, watches=False),
    "ctc": Objective(ctc, lambda train: 0.0, watches=False),
}


def loss_weights(train: TrainConfig) -> dict[str, float]:
    """The weight of each auxiliary loss, and of each objective's own loss, that the config asks."""
    weights = {name: getattr(train, f"{name}_weight") for name in AUXILIARY_LOSSES}
    weights |= {name: float(one.weight(train)) for name, one in OBJECTIVES.items()}
    return {name: weight for name, weight in weights.items() if weight}


def objective_of(losses: Iterable[str], parallel: str | None = None) -> Objective:
    """The objective that computes losses of these names, or that of model.parallel."""
    name = parallel or next((name for name in losses if name in OBJECTIVES), TRANSLATION)
    return OBJECTIVES[name]


def reads_watched(losses: Iterable[str]) -> bool:
    """Whether losses of these names read the watched weights."""
    return any(name not in OBJECTIVES or OBJECTIVES[name].watches for name in losses)
