"""Adam and its learning-rate schedule (Vaswani et al. 2017, section 5.3)."""

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jax import Array

from transformer_jax.config.train import TrainConfig

# (update number, settings) -> share of the peak after the warm-up
Schedule = Callable[[Array, TrainConfig], Array]


def _rsqrt(step: Array, train: TrainConfig) -> Array:
    return (train.warmup_steps / jnp.maximum(step, 1)) ** 0.5


def _linear(step: Array, train: TrainConfig) -> Array:
    assert train.decay_steps is not None  # config/checks.py
    left = (train.decay_steps - step) / (train.decay_steps - train.warmup_steps)
    return jnp.clip(left, 0.0, 1.0)


def _cosine(step: Array, train: TrainConfig) -> Array:
    return 0.5 - 0.5 * jnp.cos(jnp.pi * _linear(step, train))


def _constant(step: Array, train: TrainConfig) -> Array:
    return jnp.ones_like(step)


SCHEDULES: dict[str, Schedule] = {
    "rsqrt": _rsqrt,
    "linear": _linear,
    "cosine": _cosine,
    "constant": _constant,
}


def learning_rate_schedule(train: TrainConfig, d_model: int) -> Callable[[Array | int], Array]:
    """The learning rate of update number `count + 1`, for optax's 0-based `count`.

    After a linear warm-up to the peak it follows `train.schedule`: "rsqrt" (proportional to
    step^-0.5; with the default peak, lr = d_model^-0.5 min(step^-0.5, step warmup^-1.5)), "linear"
    or "cosine" (down to 0 at `decay_steps`), or "constant".

    Source: Vaswani et al. 2017, section 5.3, equation 3.
    """
    warmup = train.warmup_steps
    decay = SCHEDULES[train.schedule]
    peak = train.peak_learning_rate
    if peak is None:
        peak = (d_model * warmup) ** -0.5

    def schedule(count: Array | int) -> Array:
        step = jnp.asarray(count, jnp.float32) + 1.0  # the paper's first step is 1
        return peak * jnp.where(step < warmup, step / warmup, decay(step, train))

    return schedule


def make_optimizer(train: TrainConfig, d_model: int) -> optax.GradientTransformation:
    """Adam with the schedule, after clipping by the global norm if the config asks for it.

    With train.weight_decay it is AdamW (Loshchilov and Hutter 2019, algorithm 2), which takes the
    same share of every parameter, of biases and gains too.
    """
    norm = train.clip_norm
    clip = optax.identity() if norm is None else optax.clip_by_global_norm(norm)
    schedule = learning_rate_schedule(train, d_model)
    betas = {"b1": train.adam_b1, "b2": train.adam_b2, "eps": train.adam_epsilon}
    if train.weight_decay:
        return optax.chain(clip, optax.adamw(schedule, **betas, weight_decay=train.weight_decay))
    return optax.chain(clip, optax.adam(schedule, **betas))
