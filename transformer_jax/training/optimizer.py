"""Optimizers, and the learning-rate schedule (Vaswani et al. 2017, section 5.3)."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from transformer_jax.config.checks import check_training
from transformer_jax.config.train import TrainConfig

# (update number, settings) -> share of the peak after the warm-up
Schedule = Callable[[Array, TrainConfig], Array]
Rate = Callable[[Array | int], Array]  # update count -> learning rate

MUON_MOMENTUM = 0.95
ADAM_RMS = 0.2  # the root mean square of an update's elements, as Adam's usually is


def _linear(step: Array, train: TrainConfig) -> Array:
    assert train.decay_steps is not None  # config/checks.py
    left = (train.decay_steps - step) / (train.decay_steps - train.warmup_steps)
    return jnp.clip(left, 0.0, 1.0)


SCHEDULES: dict[str, Schedule] = {
    "rsqrt": lambda step, train: (train.warmup_steps / jnp.maximum(step, 1)) ** 0.5,
    "linear": _linear,
    "cosine": lambda step, train: 0.5 - 0.5 * jnp.cos(jnp.pi * _linear(step, train)),
    "constant": lambda step, train: jnp.ones_like(step),
}


def learning_rate_schedule(train: TrainConfig, d_model: int) -> Rate:
    """The learning rate of update number `count + 1`, for optax's 0-based `count`.

    After a linear warm-up to the peak it follows `train.schedule`: "rsqrt" (proportional to
    step^-0.5; with the default peak, lr = d_model^-0.5 min(step^-0.5, step warmup^-1.5)), "linear"
    or "cosine" (down to 0 at `decay_steps`), or "constant".

    Raises:
      ConfigError: a setting is invalid.

    Source: Vaswani et al. 2017, section 5.3, equation 3.
    """
    check_training(train)
    warmup = train.warmup_steps
    decay = SCHEDULES[train.schedule]
    peak = train.peak_learning_rate
    if peak is None:
        peak = (d_model * warmup) ** -0.5

    def schedule(count: Array | int) -> Array:
        step = jnp.asarray(count, jnp.float32) + 1.0  # the paper's first step is 1
        return peak * jnp.where(step < warmup, step / warmup, decay(step, train))

    return schedule


def _adam(train: TrainConfig, rate: Rate, axes: Any) -> optax.GradientTransformation:
    """Adam; with train.weight_decay AdamW (Loshchilov and Hutter 2019, algorithm 2)."""
    betas = {"b1": train.adam_b1, "b2": train.adam_b2, "eps": train.adam_epsilon}
    if train.weight_decay:
        return optax.adamw(rate, **betas, weight_decay=train.weight_decay)
    return optax.adam(rate, **betas)


def _muon(train: TrainConfig, rate: Rate, axes: Any) -> optax.GradientTransformation:
    """Muon for the matrices of products, each as one matrix for all heads; Adam for the rest.

    The update of a matrix is its momentum with singular values near 1, times
    0.2 sqrt(max(inputs, outputs)). So its elements are about as large as those of Adam's updates,
    and both take the same learning rate.

    Source: Jordan et al. 2024; the factor: Liu et al. 2025, section 2.2.
    """

    def of_each(function: Callable[[Any], Any]) -> Any:
        return jax.tree.map(function, axes, is_leaf=lambda x: x is None or isinstance(x, tuple))

    def sized(update: Array, pair: MuonDimensionNumbers) -> Array:
        sizes = [math.prod(update.shape[axis] for axis in axes) for axes in pair]
        return ADAM_RMS * max(sizes) ** 0.5 * update

    pairs = of_each(lambda pair: MuonDimensionNumbers(*pair) if pair else optax.MaskedNode())
    matrices = optax.chain(
        scale_by_muon(beta=MUON_MOMENTUM, weight_dimension_numbers=pairs),
        optax.stateless(lambda updates, _: jax.tree.map(sized, updates, pairs)),
        optax.add_decayed_weights(train.weight_decay),
        optax.scale_by_learning_rate(rate),
    )
    labels = of_each(lambda pair: "muon" if pair else "adam")
    return optax.partition({"adam": _adam(train, rate, axes), "muon": matrices}, labels)


# (settings, learning rate, `product_axes` of the model) -> the optimizer
OPTIMIZERS: dict[str, Callable[[TrainConfig, Rate, Any], optax.GradientTransformation]] = {
    "adam": _adam,
    "muon": _muon,
}


def make_optimizer(
    train: TrainConfig, d_model: int, axes: Any = None
) -> optax.GradientTransformation:
    """The optimizer with its schedule, after clipping by the global norm if the config asks for it.

    Args:
      train: the settings. Weight decay takes the same share of every parameter, of biases and gains
        too.
      d_model: width of the model, for the paper's peak rate.
      axes: `product_axes` of the model (model/parameters.py), which muon needs.

    Raises:
      ConfigError: a setting is invalid.
    """
    norm = train.clip_norm
    rate = learning_rate_schedule(train, d_model)
    clip = optax.identity() if norm is None else optax.clip_by_global_norm(norm)
    return optax.chain(clip, OPTIMIZERS[train.optimizer](train, rate, axes))
