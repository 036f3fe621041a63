"""The training step of both directions of translation, which rewards attentions that agree.

Each direction has a training state of its own, and its update is that of an ordinary run: its
gradient is divided by its own number of target tokens. Only the objective is common,
nll(x->y) + nll(y->x) - gamma tr(A B) (Cohn et al. 2016, section 3.4).

Dimension key
  B rows of the batch   L target length   M source length
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax
from jax import Array

from transformer_jax.config.train import TrainConfig
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import LossSums, Params
from transformer_jax.model.outputs.auxiliary import agreement
from transformer_jax.model.outputs.objectives import loss_weights
from transformer_jax.text.batches import Batch
from transformer_jax.training.state import AGREEMENT, States
from transformer_jax.training.step import (
    LOSS_BLOCK,
    accumulated_gradients,
    dropout_key,
    make_loss_fn,
    make_update,
)


class TwoSums(NamedTuple):
    """Sums over a batch in both directions."""

    forward: LossSums
    reverse: LossSums
    agreement: Array  # tr(A B), float32 scalar
    objective: Array  # what training minimizes


def make_two_way_loss(
    model: EncoderDecoder, train: TrainConfig, replicas: int = 1
) -> Callable[[Any, Batch, Array | None, Any], TwoSums]:
    """Returns (two parameter trees, batch, rows_B, two dropout keys) -> TwoSums.

    Args:
      model: the model of both directions, with watch=True.
      train: the config of training, which has the keys of the loss.
      replicas: number of devices that the batch's rows are divided over.
    """
    block = train.loss_block or LOSS_BLOCK
    losses = loss_weights(train)
    smoothing = train.label_smoothing
    kept = train.logits_dtype
    loss_fn: Any = make_loss_fn(
        model, smoothing, block, replicas, losses, watched=True, logits_dtype=kept
    )
    gamma = train.agreement_weight

    def two_way_loss(
        params: tuple[Params, Params],
        batch: Batch,
        rows_B: Array | None = None,
        keys: tuple[Array, Array] | tuple[None, None] = (None, None),
    ) -> TwoSums:
        forward, watched_BLM = loss_fn(params[0], batch, rows_B, keys[0])
        reverse, reverse_BML = loss_fn(params[1], batch.swapped(), rows_B, keys[1])
        agreed = agreement(watched_BLM, reverse_BML, batch)
        objective = forward.objective + reverse.objective
        if gamma:  # at 0, neither direction changes the other's gradient, not even by a NaN
            objective -= gamma * agreed
        return TwoSums(forward, reverse, agreed, objective)

    return two_way_loss


def make_two_way_step(
    model: EncoderDecoder,
    optimizer: optax.GradientTransformation,
    train: TrainConfig,
    replicas: int = 1,
) -> Callable[[States, Batch], States]:
    """The pure function (states, batch) -> states of one update of both directions."""
    two_way_loss: Any = make_two_way_loss(model, train, replicas)
    update = make_update(optimizer, train.max_skipped)

    def train_step(states: States, batch: Batch) -> States:
        params = tuple(state.params for state in states)
        keys: Any = tuple(map(dropout_key, states))
        found: Any = accumulated_gradients(
            two_way_loss, params, batch, keys, train.accumulate_steps
        )
        (forward, reverse), sums = found
        # For the metrics. `objective` adds it too, so it only shows whether the loss is finite.
        ours, theirs = (
            one._replace(auxiliary={**one.auxiliary, AGREEMENT: sums.agreement})
            for one in (sums.forward, sums.reverse)
        )
        return (
            update(states[0], batch, forward, ours),
            update(states[1], batch.swapped(), reverse, theirs),
        )

    return train_step
