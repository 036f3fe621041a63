"""The learning-rate schedule against hand-worked values; Adam and clipping against NumPy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config.train import TrainConfig
from transformer_jax.training.optimizer import learning_rate_schedule, make_optimizer


def rate(update, d_model=512, **train):
    """The learning rate of update number 1, 2, ...; optax counts from 0."""
    schedule = learning_rate_schedule(TrainConfig(**train), d_model)
    return float(schedule(jnp.int32(update - 1)))


@pytest.mark.parametrize(
    "update, want",
    [
        (1, 1.7469281e-07),  # 512^-0.5 4000^-1.5
        (2, 3.4938562e-07),
        (3999, 6.9859655e-04),
        (4000, 6.9877124e-04),  # 512^-0.5 4000^-0.5, the peak
        (4001, 6.9868391e-04),
        (16_000, 3.4938562e-04),
        (100_000, 1.3975425e-04),
    ],
)
def test_the_paper_s_schedule_at_hand_worked_updates(update, want):
    assert rate(update) == pytest.approx(want, rel=1e-6)


def test_the_paper_s_schedule_follows_d_model_and_warm_up():
    for d_model, warmup in ((64, 7), (1024, 4000)):
        for update in (1, warmup - 1, warmup, warmup + 1, 5 * warmup):
            want = d_model**-0.5 * min(update**-0.5, update * warmup**-1.5)
            assert rate(update, d_model, warmup_steps=warmup) == pytest.approx(want, rel=1e-6)


DECAYING = {"warmup_steps": 10, "decay_steps": 110, "peak_learning_rate": 0.01}


@pytest.mark.parametrize("update, share", [(1, 0.1), (5, 0.5), (10, 1.0)])
@pytest.mark.parametrize("schedule", ["rsqrt", "linear", "cosine", "constant"])
def test_every_schedule_warms_up_linearly(schedule, update, share):
    assert rate(update, schedule=schedule, **DECAYING) == pytest.approx(0.01 * share, rel=1e-6)


@pytest.mark.parametrize(
    "schedule, update, want",
    [
        ("linear", 35, 0.0075),
        ("linear", 60, 0.005),
        ("linear", 109, 0.0001),
        ("linear", 110, 0.0),
        ("linear", 500, 0.0),
        ("cosine", 35, 0.01 * (0.5 + 0.5 * math.sqrt(0.5))),
        ("cosine", 60, 0.005),
        ("cosine", 110, 0.0),
        ("cosine", 500, 0.0),
        ("constant", 500, 0.01),
        ("rsqrt", 40, 0.005),  # a given peak replaces the paper's
    ],
)
def test_what_follows_the_warm_up(schedule, update, want):
    got = rate(update, schedule=schedule, **DECAYING)
    assert got == pytest.approx(want, rel=1e-5, abs=1e-9)


def test_the_default_peak_serves_every_schedule():
    assert rate(4000, schedule="constant") == pytest.approx(6.9877124e-04, rel=1e-6)


def test_without_warm_up_the_first_update_has_the_peak():
    settings = {"warmup_steps": 0, "peak_learning_rate": 0.03}
    assert rate(1, schedule="constant", **settings) == pytest.approx(0.03)
    assert rate(1, schedule="linear", decay_steps=10, **settings) == pytest.approx(0.027)


@pytest.mark.parametrize(("clip_norm", "decay"), [(None, 0.0), (1.0, 0.0), (1.0, 0.3)])
def test_adam_equals_its_equations(clip_norm, decay):
    train = TrainConfig(
        warmup_steps=2,
        adam_b1=0.8,
        adam_b2=0.95,
        adam_epsilon=0.01,
        clip_norm=clip_norm,
        weight_decay=decay,
    )
    optimizer = make_optimizer(train, d_model=16)
    draw = np.random.default_rng(0)
    params = {"a": draw.normal(size=(2, 3)), "b": draw.normal(size=4)}
    narrow = {name: jnp.float32(p) for name, p in params.items()}
    state = optimizer.init(narrow)
    first = {name: np.zeros_like(p) for name, p in params.items()}
    second = {name: np.zeros_like(p) for name, p in params.items()}
    for update, size in enumerate([3.0, 0.05, 1.0], start=1):  # norms above and below the clip
        grads = {name: size * draw.normal(size=p.shape) for name, p in params.items()}
        updates, state = optimizer.update(
            {name: jnp.float32(g) for name, g in grads.items()}, state, narrow
        )
        norm = math.sqrt(sum((g**2).sum() for g in grads.values()))
        assert (norm > 1) == (size > 0.1)
        shrink = min(1.0, clip_norm / norm) if clip_norm else 1.0
        lr = 16**-0.5 * min(update**-0.5, update * 2**-1.5)
        for name, grad in grads.items():
            # Kingma and Ba 2015, algorithm 1; the decay: Loshchilov and Hutter 2019, algorithm 2.
            first[name] = 0.8 * first[name] + 0.2 * shrink * grad
            second[name] = 0.95 * second[name] + 0.05 * (shrink * grad) ** 2
            unbiased = first[name] / (1 - 0.8**update), second[name] / (1 - 0.95**update)
            adam = unbiased[0] / (np.sqrt(unbiased[1]) + 0.01)
            want = -lr * (adam + decay * params[name])
            np.testing.assert_allclose(updates[name], want, rtol=1e-5)


def test_the_defaults_are_the_paper_s():
    train = TrainConfig()
    assert (train.adam_b1, train.adam_b2, train.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (train.warmup_steps, train.schedule, train.clip_norm) == (4000, "rsqrt", None)
