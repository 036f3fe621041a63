"""Layer normalization against a float64 reference."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import norm_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.model.norms import LayerNorm, layer_norm

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


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    x = jnp.asarray(X, jnp.bfloat16)
    got = layer_norm(x, jnp.float32(GAIN), jnp.float32(BIAS))
    assert got.dtype == jnp.float32
    want = norm_by_hand(np.asarray(x, np.float64), GAIN, BIAS)
    assert relative_error(got, want) < 1e-5


def test_the_module_applies_its_scale_and_its_bias():
    params = {"scale": jnp.float32(GAIN), "bias": jnp.float32(BIAS)}
    got = LayerNorm().apply({"params": params}, jnp.float32(X))
    assert relative_error(got, norm_by_hand(X, GAIN, BIAS)) < 1e-5
