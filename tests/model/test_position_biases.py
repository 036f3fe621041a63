"""The numbers that position biases add to scores, by hand and against the authors' formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import batch_of, model_inputs, random_params, tiny_model
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.positions.biases import (
    BUCKETS,
    POSITION_BIASES,
    bucket_bias,
    bucket_of,
    linear_bias,
    logarithmic_bias,
    slopes,
)
from transformer_jax.model.positions.choices import StackPositions


@pytest.mark.parametrize(
    ("num_heads", "want"),
    [
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        (3, [1 / 16, 1 / 256, 1 / 4]),
        (1, [1 / 256]),
    ],
)
def test_slopes_by_hand(num_heads, want):
    got = slopes(num_heads)
    assert got.dtype == np.float32
    assert got.tolist() == want


def test_linear_bias_by_hand_is_symmetric():
    config = ModelConfig(num_heads=3)  # slopes 1/16, 1/256 and 1/4
    got = linear_bias(config, {}, jnp.array([[0, 1, -2]]), causal=False)
    assert got.tolist() == [[[0, -1 / 16, -1 / 8]], [[0, -1 / 256, -1 / 128]], [[0, -1 / 4, -0.5]]]


def authors_bucket(distance, causal):
    """The formula of the authors' code: a logarithm, rounded down."""
    buckets = BUCKETS
    far = -min(distance, 0)
    offset = 0
    if not causal:
        buckets = BUCKETS // 2
        far = abs(distance)
        offset = BUCKETS // 2 * (distance > 0)
    exact = buckets // 2
    if far < exact:
        return offset + far
    # The epsilon makes up for powers that are whole numbers and rounded to a little less.
    share = math.log(far / exact) / math.log(128 / exact) * (buckets - exact)
    return offset + min(exact + math.floor(share + 1e-9), buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_the_authors(causal):
    distance = np.arange(-600, 600)
    got = np.asarray(bucket_of(jnp.asarray(distance), causal))
    assert got.tolist() == [authors_bucket(d, causal) for d in distance]
    assert got.min() == 0
    assert got.max() == BUCKETS - 1
    assert set(got) == set(range(BUCKETS)) - ({BUCKETS // 2} if not causal else set())


def test_a_bucket_s_bias_is_its_row_of_the_table():
    table = np.random.default_rng(0).normal(size=(BUCKETS, 3)).astype(np.float32)
    distance = jnp.array([[-200, -9, 0, 1, 9]])
    got = bucket_bias(ModelConfig(num_heads=3), {"buckets": table}, distance, causal=False)
    assert got.shape == (3, 1, 5)
    np.testing.assert_array_equal(got[:, 0].T, table[[15, 8, 0, 17, 24]])
    decoder = bucket_bias(ModelConfig(num_heads=3), {"buckets": table}, distance, causal=True)
    np.testing.assert_array_equal(decoder[:, 0].T, table[[31, 9, 0, 0, 0]])


@pytest.mark.parametrize("causal", [False, True])
def test_the_logarithmic_bias_equals_its_equation(causal):
    """Chi et al. 2022: -r1 log(1 + r2 |i - j|), with r1 and r2 of each head."""
    height, rate = np.random.default_rng(1).normal(size=(2, 3))
    positions = np.array([[0, 1, 2, 3], [7, 0, 5, 90]])
    params = {"height": jnp.float32(height), "rate": jnp.float32(rate)}
    distance = positions[:, None] - positions[:, :2, None]  # of 2 queries, of 4 keys
    got = logarithmic_bias(ModelConfig(num_heads=3), params, jnp.asarray(distance), causal)
    assert got.shape == (2, 3, 2, 4)
    for b, h, i, j in np.ndindex(got.shape):
        r1, r2 = (math.log(1 + math.exp(x[h])) for x in (height, rate))
        want = -r1 * math.log(1 + r2 * abs(positions[b, i] - positions[b, j]))
        assert got[b, h, i, j] == pytest.approx(want, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("name", "high"), [("height", 2.0), ("rate", 1.0)])
def test_the_logarithmic_bias_begins_with_uniform_numbers(name, high):
    initializer, *_ = POSITION_BIASES["kerple"].parameters[name]
    positive = jax.nn.softplus(initializer(jax.random.key(0), (4_000,)))
    quantiles = np.quantile(positive, [0.0, 0.25, 0.5, 0.75, 1.0])
    want = 0.01 + (high - 0.01) * np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(quantiles, want, atol=0.03 * high)


def bias_of(kind, distance, causal=False):
    module = StackPositions(ModelConfig(num_heads=3, positions=kind), causal)
    variables = module.init(jax.random.key(0), distance, method="bias")
    return module.apply(variables, distance, method="bias")


def test_the_bias_of_a_stack_has_a_row_for_each_sentence_of_a_search():
    distance = jnp.arange(3)[None] - jnp.arange(2)[:, None]
    got = bias_of("alibi", distance)
    assert got.shape == (3, 2, 3)
    assert got[2].tolist() == [[0, -0.25, -0.5], [-0.25, 0, -0.25]]
    assert (got[0] == got[2] / 4).all()
    newest = bias_of("alibi", jnp.arange(3)[None, None] - jnp.array([2, 0])[:, None, None])
    assert newest.shape == (2, 3, 1, 3)
    assert newest[:, 2, 0].tolist() == [[-0.5, -0.25, 0], [0, -0.25, -0.5]]
    assert bias_of("t5", jnp.zeros((2, 1, 4), jnp.int32)).shape == (2, 3, 1, 4)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative", "none"])
def test_other_kinds_have_no_bias(positions):
    assert bias_of(positions, jnp.zeros((2, 3), jnp.int32)) is None


def test_the_encoder_s_buckets_are_of_both_sides_and_the_decoder_s_of_the_past():
    """Distance 8 is in bucket 8 of 16 on each side, or of 32; distance 9 is in 8 or in 9."""
    model = tiny_model(positions="t5", num_layers=1)
    params = random_params(model)
    inputs = model_inputs(batch_of((11, 10)))

    def total(params):
        return (model.apply({"params": params}, *inputs) ** 2).sum()

    gradient = jax.jit(jax.grad(total))(params)
    used = {
        side: np.flatnonzero(np.abs(gradient[f"{side}_positions"]["buckets"]).max(1)).tolist()
        for side in ("src", "tgt")
    }
    assert used == {"src": [*range(9), *range(17, 25)], "tgt": [*range(10)]}
