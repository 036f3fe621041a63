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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.5])
@pytest.mark.parametrize("size", [1.0, 1e-3])  # at 1e-3 the variance is near epsilon
def test_layer_norm_equals_its_equation(size, epsilon, dtype):
    """In float32, whatever the type of its input."""
    x = jnp.asarray(size * X, dtype)
    got = layer_norm(x, jnp.float32(GAIN), jnp.float32(BIAS), epsilon)
    assert got.dtype == jnp.float32
    want = norm_by_hand(np.asarray(x, np.float64), GAIN, BIAS, epsilon)
    assert relative_error(got, want) < 1e-5


def test_a_mean_that_is_large_beside_the_deviation_does_no_harm():
    params = {"scale": jnp.float32(GAIN), "bias": jnp.float32(BIAS)}
    x = jnp.float32(X + 1e3)
    want = norm_by_hand(np.asarray(x, np.float64), GAIN, BIAS)
    assert relative_error(LayerNorm().apply({"params": params}, x), want) < 1e-4


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("norm", "scale", "root"),
    [
        (RMSNorm(1e-6), GAIN, lambda x: np.sqrt((x**2).sum() / 4 + 1e-6)),
        (RMSNorm(0.5), GAIN, lambda x: np.sqrt((x**2).sum() / 4 + 0.5)),
        (ScaleNorm(), 1.7, lambda x: np.sqrt((x**2).sum())),
    ],
    ids=["RMS", "RMS with a large epsilon", "scale"],
)
def test_norms_without_a_mean_equal_their_equations(norm, scale, root, dtype):
    x = jnp.asarray(X, dtype)
    want = np.asarray(x, np.float64)
    for place in np.ndindex(*X.shape[:-1]):
        want[place] *= scale / root(want[place])
    got = norm.apply({"params": {"scale": jnp.float32(scale)}}, x)
    assert got.dtype == jnp.float32
    assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize(("norm", "scale"), [(RMSNorm(), [1.0] * 4), (ScaleNorm(), 2.0)])
def test_they_begin_with_the_length_of_layer_normalization(norm, scale):
    start = unboxed(norm.init(jax.random.key(0), jnp.ones((1, 1, 4))))["params"]
    assert start.keys() == {"scale"} and start["scale"].tolist() == scale


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
