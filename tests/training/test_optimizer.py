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
    train = TrainConfig(
        optimizer="muon", warmup_steps=2, adam_b1=0.8, adam_b2=0.95, adam_epsilon=1e-8
    )
    optimizer = make_optimizer(train, 16, axes)
    draw = np.random.default_rng(0)
    shapes = {"split": (2, 3, 2, 4), "joined": (2, 4, 3), "vector": (5,)}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    state = optimizer.init(params)
    first = {name: np.zeros(shape) for name, shape in shapes.items()}
    second = np.zeros(5)
    for update in (1, 2, 3):
        grads = {name: draw.normal(size=shape) for name, shape in shapes.items()}
        narrow = {name: jnp.float32(grad) for name, grad in grads.items()}
        updates, state = optimizer.update(narrow, state, params)
        lr = 16**-0.5 * min(update**-0.5, update * 2**-1.5)
        for name in ("split", "joined"):
            first[name] = 0.95 * first[name] + 0.05 * grads[name]
            ahead = 0.95 * first[name] / (1 - 0.95 ** (update + 1))  # Nesterov's momentum
            ahead += 0.05 * grads[name] / (1 - 0.95**update)
            matrices = ahead.reshape(2, 3, 8) if name == "split" else ahead.reshape(1, 8, 3)
            want = np.stack([orthogonalized(matrix) for matrix in matrices])
            values = np.linalg.svd(want, compute_uv=False)
            assert 0.6 < values.min() and values.max() < 1.3
            want = -lr * 0.2 * 8**0.5 * want.reshape(shapes[name])
            np.testing.assert_allclose(updates[name], want, rtol=1e-3, atol=1e-5 * lr)
        first["vector"] = 0.8 * first["vector"] + 0.2 * grads["vector"]
        second = 0.95 * second + 0.05 * grads["vector"] ** 2
        deviation = np.sqrt(second / (1 - 0.95**update)) + 1e-8
        want = -lr * first["vector"] / (1 - 0.8**update) / deviation
        np.testing.assert_allclose(updates["vector"], want, rtol=1e-4)


def test_muon_decays_matrices_and_vectors():
    train = TrainConfig(
        optimizer="muon",
        warmup_steps=0,
        schedule="constant",
        peak_learning_rate=0.1,
        weight_decay=0.5,
    )
    axes = {"matrix": ((0,), (1,)), "vector": None}
    optimizer = make_optimizer(train, 16, axes)
    params = {"matrix": jnp.ones((2, 3)), "vector": jnp.ones(4)}
    zero = {name: jnp.zeros_like(x) for name, x in params.items()}
    updates, _ = optimizer.update(zero, optimizer.init(params), params)
    for update in updates.values():
        np.testing.assert_allclose(update, -0.1 * 0.5, rtol=1e-6)
