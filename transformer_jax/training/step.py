"""The training step: pure functions from (state, batch) to state.

Dimension key
  B rows of the batch   L target length   M source length
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from transformer_jax.config.train import TrainConfig
from transformer_jax.decoding.candidates import draw_translations
from transformer_jax.model.attention.hard_attention import next_baseline
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import LossSums, Params
from transformer_jax.model.kernels.choices import GPUS
from transformer_jax.model.layers.dropout import hashed
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.outputs.objectives import loss_weights, objective_of
from transformer_jax.model.stacked_params import unstacked
from transformer_jax.text.batches import Batch
from transformer_jax.training.elastic import penalty_gradient
from transformer_jax.training.state import TrainState, Window

LossFn = Callable[..., LossSums]  # see make_loss_fn
LOSS_BLOCK, GPU_LOSS_BLOCK = 2_048, 8_192  # target positions


def loss_block(train: TrainConfig, platform: str) -> int:
    """Target positions of a replica whose logits are in memory at once, on this platform."""
    if train.loss_block is not None:
        return train.loss_block
    return GPU_LOSS_BLOCK if platform in GPUS else LOSS_BLOCK


def make_loss_fn(
    model: EncoderDecoder,
    smoothing: float,
    block: int = LOSS_BLOCK,
    replicas: int = 1,
    auxiliary: Mapping[str, float] | None = None,
    watched: bool = False,
    full_context: bool = False,
    sharpness: float = 1.0,
    logits_dtype: str | None = None,
) -> LossFn:
    """Returns (params, batch, rows_B, dropout_key, baseline) -> LossSums.

    `batch`, `rows_B` and `baseline` are those of `EncoderDecoder.loss`. Without `rows_B` and
    `dropout_key` there is no dropout.

    Args:
      model: a model; its method `loss` gives the loss of a batch.
      smoothing: epsilon of label smoothing.
      block: target positions of a replica whose logits are in memory at the same time.
      replicas: number of devices that the batch's rows are divided over.
      auxiliary: weight of each auxiliary loss, by name, for a model with watch=True; None: no such
        loss.
      watched: whether the function returns (LossSums, watched attention weights).
      full_context: whether a second pass of the decoder, which sees the whole target, aligns.
      sharpness: train.sharpness, for an objective on drawn translations.
      logits_dtype: type in which the logits are kept; None: that of their sums.
    """
    size, dtype = model.sizes.target, model.config.dtype
    losses = tuple((auxiliary or {}).items())
    settings = LossSettings(
        smoothing, size, dtype, block, replicas, losses, full_context, sharpness, logits_dtype
    )

    def loss_fn(
        params: Params,
        batch: Batch,
        rows_B: Array | None = None,
        dropout_key: Array | None = None,
        baseline: Array | None = None,
    ) -> LossSums:
        rngs = None if dropout_key is None else {"dropout": hashed(dropout_key)}
        drawing: Any = {} if baseline is None else {"baseline": baseline}
        given = batch, rows_B, settings
        found: Any = model.apply(
            {"params": unstacked(params)}, *given, rngs=rngs, method="loss", **drawing
        )
        return found if watched else found[0]

    return loss_fn


def accumulated_gradients(
    loss_fn: LossFn, params: Params, batch: Batch, key: Array, micro_batches: int
) -> tuple[Params, LossSums]:
    """Gradients of the objective, and the sums of the loss, added over micro-batches."""

    def gradients(part: Batch, rows_B: Array) -> tuple[Params, LossSums]:
        def objective(params: Params) -> tuple[Array, LossSums]:
            sums = loss_fn(params, part, rows_B, key)
            return sums.objective, sums

        (_, sums), grads = jax.value_and_grad(objective, has_aux=True)(params)
        return grads, sums

    rows_B = jnp.arange(batch.tgt.ids.shape[0])
    if micro_batches == 1:
        return gradients(batch, rows_B)

    def split(x: Array) -> Array:  # strided, so that each device keeps its own rows
        return x.reshape(-1, micro_batches, *x.shape[1:]).swapaxes(0, 1)

    parts = jax.tree.map(split, (batch, rows_B))
    # Inlined, so that it is one program; jitted, so that eval_shape and scan trace it once.
    gradients = jax.jit(gradients, inline=True)
    shapes = jax.eval_shape(gradients, *jax.tree.map(lambda x: x[0], parts))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def add(total: object, part: tuple[Batch, Array]) -> tuple[object, None]:
        return jax.tree.map(jnp.add, total, gradients(*part)), None

    return jax.lax.scan(add, zero, parts)[0]


def make_train_step(
    model: EncoderDecoder,
    optimizer: optax.GradientTransformation,
    train: TrainConfig,
    replicas: int = 1,
) -> Callable[[TrainState, Batch], TrainState]:
    """The pure function (state, batch) -> state of one update; metrics add up in `state.window`."""
    losses = loss_weights(train)
    loss_fn = make_loss_fn(
        model,
        train.label_smoothing,
        train.loss_block or LOSS_BLOCK,
        replicas,
        losses,
        full_context=train.alignment_context == "full",
        sharpness=train.sharpness,
        logits_dtype=train.logits_dtype,
    )
    update = make_update(optimizer, train.max_skipped, train.elastic_weight)
    objective = objective_of(losses)
    draws, temperature = objective.draws(train), 0.0 if objective.greedy else 1.0

    def train_step(state: TrainState, batch: Batch) -> TrainState:
        if draws:  # before micro-batches and outside the gradient
            params, key = unstacked(state.params), dropout_key(state)
            asked = batch._replace(src=objective.sources(batch))
            drawn = draw_translations(model, params, asked, key, draws, temperature)
            batch = batch._replace(drawn=drawn)
        own_loss = functools.partial(loss_fn, baseline=state.baseline)
        grads, sums = accumulated_gradients(
            own_loss, state.params, batch, dropout_key(state), train.accumulate_steps
        )
        return update(state, batch, grads, sums)

    return train_step


def dropout_key(state: TrainState) -> Array:
    """The key of the next step's dropout masks."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)


def make_update(
    optimizer: optax.GradientTransformation, max_skipped: int, elastic_weight: float = 0.0
) -> Callable[[TrainState, Batch, Params, LossSums], TrainState]:
    """Returns (state, batch, gradients, sums of the loss) -> the state after one update."""

    def update(state: TrainState, batch: Batch, grads: Params, sums: LossSums) -> TrainState:
        # Divide by the global count, so that the update is the same on 1 device or 64, with or
        # without accumulation.
        grads = jax.tree.map(lambda g: g / jnp.maximum(sums.tokens, 1.0), grads)
        if state.anchor is not None:
            pull = penalty_gradient(state.anchor, state.params, elastic_weight)
            grads = jax.tree.map(jnp.add, grads, pull)
        grad_norm = optax.tree.norm(grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        good = jnp.isfinite(grad_norm) & jnp.isfinite(sums.objective)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(good, new, old),
            (params, opt_state),
            (state.params, state.opt_state),
        )
        baseline = state.baseline
        if baseline is not None:  # a skipped step does not change it
            baseline = jnp.where(good, next_baseline(baseline, sums), baseline)
        return TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            key=state.key,
            skipped=state.skipped + ~good,
            skipped_in_a_row=_in_a_row(state.skipped_in_a_row, good, max_skipped),
            window=_add_to_window(state.window, batch, sums, grad_norm, good),
            auxiliary=_add_if(good, state.auxiliary, sums.auxiliary),
            baseline=baseline,
            anchor=state.anchor,
        )

    return update


def _in_a_row(count: Array, good: Array, limit: int) -> Array:
    """Consecutive bad updates; stays at the limit until the host, which checks rarely, sees it."""
    return jnp.where(good & (count < limit), 0, jnp.minimum(count + ~good, limit))


def _add_to_window(
    window: Window, batch: Batch, sums: LossSums, grad_norm: Array, good: Array
) -> Window:
    """Adds a step to the window; a skipped step is not counted."""
    new = Window(
        smoothed_nats=sums.smoothed_nats,
        nats=sums.nats,
        correct=sums.correct,
        tgt_tokens=sums.tokens,
        src_tokens=(batch.src.segments != 0).sum(dtype=jnp.float32),
        slots=jnp.float32(batch.src.ids.size + batch.tgt.ids.size),
        grad_norm=grad_norm,
        steps=jnp.float32(1.0),
    )
    return _add_if(good, window, new)


def _add_if(good: Array, total: Any, new: Any) -> Any:
    """The total of two trees of sums; only the old one if the step was skipped."""
    return jax.tree.map(lambda old, x: old + jnp.where(good, x, 0.0), total, new)
