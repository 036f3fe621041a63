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


class AdamByHand:
    """Kingma and Ba 2015, algorithm 1, in float64 and without the learning rate."""

    def __init__(self, b1, b2, epsilon):
        self.b1, self.b2, self.epsilon = b1, b2, epsilon
        self.first = self.second = 0.0
        self.updates = 0

    def direction(self, grad):
        self.updates += 1
        self.first = self.b1 * self.first + (1 - self.b1) * grad
        self.second = self.b2 * self.second + (1 - self.b2) * grad**2
        first = self.first / (1 - self.b1**self.updates)
        return first / (np.sqrt(self.second / (1 - self.b2**self.updates)) + self.epsilon)


ADAM = {"warmup_steps": 2, "adam_b1": 0.8, "adam_b2": 0.95, "adam_epsilon": 0.01}


@pytest.mark.parametrize(("clip_norm", "decay"), [(None, 0.0), (1.0, 0.0), (1.0, 0.3)])
def test_adam_equals_its_equations(clip_norm, decay):
    train = TrainConfig(**ADAM, clip_norm=clip_norm, weight_decay=decay)
    optimizer = make_optimizer(train, d_model=16)
    draw = np.random.default_rng(0)
    params = {"a": draw.normal(size=(2, 3)), "b": draw.normal(size=4)}
    narrow = {name: jnp.float32(p) for name, p in params.items()}
    state = optimizer.init(narrow)
    adam = {name: AdamByHand(0.8, 0.95, 0.01) for name in params}
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
            # The decay: Loshchilov and Hutter 2019, algorithm 2.
            want = -lr * (adam[name].direction(shrink * grad) + decay * params[name])
            np.testing.assert_allclose(updates[name], want, rtol=1e-5)


def orthogonalized(matrix):
    """Jordan et al. 2024: five steps of a polynomial that takes singular values towards 1."""
    wide = matrix.shape[0] <= matrix.shape[1]
    x = (matrix if wide else matrix.T) / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide else x.T


def test_muon_equals_its_equations():
    """A stack of two matrices [3, 2 x 4], one [2 x 4, 3], and a vector, which Adam updates."""
    axes = {"split": ((1,), (2, 3)), "joined": ((0, 1), (2,)), "vector": None}
    train = TrainConfig(**ADAM, optimizer="muon", weight_decay=0.5)
    optimizer = make_optimizer(train, 16, axes)
    draw = np.random.default_rng(0)
    shapes = {"split": (2, 3, 2, 4), "joined": (2, 4, 3), "vector": (5,)}
    params = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    narrow = {name: jnp.float32(p) for name, p in params.items()}
    state = optimizer.init(narrow)
    first = {name: np.zeros(shape) for name, shape in shapes.items()}
    adam = AdamByHand(0.8, 0.95, 0.01)
    for update in (1, 2, 3):
        grads = {name: draw.normal(size=shape) for name, shape in shapes.items()}
        updates, state = optimizer.update(
            {name: jnp.float32(g) for name, g in grads.items()}, state, narrow
        )
        lr = 16**-0.5 * min(update**-0.5, update * 2**-1.5)
        for name in ("split", "joined"):
            first[name] = 0.95 * first[name] + 0.05 * grads[name]
            ahead = 0.95 * first[name] / (1 - 0.95 ** (update + 1))  # Nesterov's momentum
            ahead += 0.05 * grads[name] / (1 - 0.95**update)
            matrices = ahead.reshape(2, 3, 8) if name == "split" else ahead.reshape(1, 8, 3)
            want = np.stack([orthogonalized(matrix) for matrix in matrices])
            values = np.linalg.svd(want, compute_uv=False)
            assert 0.6 < values.min() and values.max() < 1.3
            want = -lr * (0.2 * 8**0.5 * want.reshape(shapes[name]) + 0.5 * params[name])
            np.testing.assert_allclose(updates[name], want, rtol=1e-3, atol=1e-5 * lr)
        want = -lr * (adam.direction(grads["vector"]) + 0.5 * params["vector"])
        np.testing.assert_allclose(updates["vector"], want, rtol=1e-4)
