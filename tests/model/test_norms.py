"""Norms against float64 references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import norm_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.model.axes import unboxed
from transformer_jax.model.layers.norms import LayerNorm, RMSNorm, ScaleNorm, layer_norm, unit

DRAW = np.random.default_rng(2)
X = DRAW.normal(size=(2, 3, 4)) * 3 + 2
GAIN, BIAS = DRAW.normal(size=(2, 4))


@pytest.mark.parametrize("size", [1.0, 1e-3])  # at 1e-3 the variance is near epsilon
def test_layer_norm_equals_its_equation(size):
    x = size * X
    arrays = jnp.float32(x), jnp.float32(GAIN), jnp.float32(BIAS)
    assert relative_error(layer_norm(*arrays), norm_by_hand(x, GAIN, BIAS)) < 1e-5
    want = norm_by_hand(x, GAIN, BIAS, epsilon=1e-3)
    assert relative_error(layer_norm(*arrays, 1e-3), want) < 1e-5


def test_a_mean_that_is_large_beside_the_deviation_does_no_harm():
    x = X + 1e3
    want = norm_by_hand(np.asarray(jnp.float32(x), np.float64), GAIN, BIAS)
    assert relative_error(layer_norm(*map(jnp.float32, (x, GAIN, BIAS))), want) < 1e-4


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    x = jnp.asarray(X, jnp.bfloat16)
    got = layer_norm(x, jnp.float32(GAIN), jnp.float32(BIAS))
    assert got.dtype == jnp.float32
    exact = np.asarray(x, np.float64)
    assert relative_error(got, norm_by_hand(exact, GAIN, BIAS)) < 1e-5
    got = layer_norm(x, jnp.float32(GAIN), jnp.float32(BIAS), 0.5)
    assert relative_error(got, norm_by_hand(exact, GAIN, BIAS, epsilon=0.5)) < 1e-5


def test_the_module_applies_its_scale_and_its_bias():
    params = {"scale": jnp.float32(GAIN), "bias": jnp.float32(BIAS)}
    got = LayerNorm().apply({"params": params}, jnp.float32(X))
    assert relative_error(got, norm_by_hand(X, GAIN, BIAS)) < 1e-5


def test_the_norm_of_narrow_input_has_the_same_value_and_gradients():
    """Its gradient is written by hand; that of float32 input is derived by JAX."""
    draw = np.random.default_rng(4)
    x_BLD = jnp.asarray(3 * draw.normal(size=(2, 5, 24)) + 1, jnp.bfloat16)
    scale_D, bias_D = jnp.asarray(draw.normal(size=(2, 24)) + 1, jnp.float32)
    cotangent_BLD = jnp.asarray(draw.normal(size=x_BLD.shape), jnp.float32)
    found, pull = jax.vjp(layer_norm, x_BLD, scale_D, bias_D)
    wanted, exact_pull = jax.vjp(layer_norm, x_BLD.astype(jnp.float32), scale_D, bias_D)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    gradients = pull(cotangent_BLD)
    exact = exact_pull(cotangent_BLD)
    assert gradients[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(gradients[0].astype(jnp.float32), exact[0], rtol=2**-8)
    for one, other in zip(gradients[1:], exact[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_rms_norm_equals_its_equation(epsilon):
    params = {"params": {"scale": jnp.float32(GAIN)}}
    want = np.zeros(X.shape)
    for place in np.ndindex(*X.shape[:-1]):
        want[place] = X[place] / np.sqrt((X[place] ** 2).sum() / 4 + epsilon) * GAIN
    assert relative_error(RMSNorm(epsilon).apply(params, jnp.float32(X)), want) < 1e-6
    rounded = jnp.asarray(X, jnp.bfloat16)
    narrow = RMSNorm(epsilon).apply(params, rounded)
    wide = RMSNorm(epsilon).apply(params, rounded.astype(jnp.float32))
    assert narrow.dtype == jnp.float32 and relative_error(narrow, wide) < 1e-6
    start = unboxed(RMSNorm().init(jax.random.key(0), jnp.ones((1, 1, 4))))["params"]
    assert start.keys() == {"scale"} and np.all(start["scale"] == 1)


def test_scale_norm_gives_every_vector_one_length():
    params = {"scale": jnp.float32(1.7)}
    got = ScaleNorm().apply({"params": params}, jnp.float32(X))
    want = np.zeros(X.shape)
    for place in np.ndindex(*X.shape[:-1]):
        want[place] = 1.7 * X[place] / np.sqrt((X[place] ** 2).sum())
    assert relative_error(got, want) < 1e-6
    rounded = jnp.asarray(X, jnp.bfloat16)
    narrow = ScaleNorm().apply({"params": params}, rounded)
    wide = ScaleNorm().apply({"params": params}, rounded.astype(jnp.float32))
    assert narrow.dtype == jnp.float32 and relative_error(narrow, wide) < 1e-6


def test_scale_norm_begins_with_the_length_of_layer_normalization():
    start = ScaleNorm().init(jax.random.key(0), jnp.ones((1, 1, 4)))
    assert float(unboxed(start)["params"]["scale"]) == 2.0


def test_scale_norm_of_a_zero_vector_is_zero_with_a_finite_gradient():
    def total(x):
        return ScaleNorm().apply({"params": {"scale": jnp.float32(3)}}, x).sum()

    value, gradient = jax.value_and_grad(total)(jnp.zeros((1, 1, 4)))
    assert value == 0 and np.all(np.isfinite(gradient))


def test_vectors_are_divided_by_their_length_or_by_a_longer_epsilon():
    params = {"params": {"scale": jnp.float32(3)}}
    vectors = jnp.array([[[3e-5, 4e-5]], [[3e-7, 4e-7]]], jnp.float32)  # of length 5e-5 and 5e-7
    np.testing.assert_allclose(unit(vectors)[:, 0], [[0.6, 0.8], [0.3, 0.4]], rtol=1e-5)
    scaled = ScaleNorm(1e-6).apply(params, vectors)[:, 0]
    np.testing.assert_allclose(scaled, [[1.8, 2.4], [0.9, 1.2]], rtol=1e-5)
    longer = ScaleNorm(1e-4).apply(params, vectors)[:, 0]
    np.testing.assert_allclose(longer, [[0.9, 1.2], [0.009, 0.012]], rtol=1e-5)
