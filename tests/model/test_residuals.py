"""DeepNorm and ReZero against float64 references and the papers' constants."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import norm_by_hand
from tests.fixtures.tiny import relative_error, tiny_model
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.interfaces import Side
from transformer_jax.model.layers.layer import Layer, Residual
from transformer_jax.model.layers.residuals import deep_constants
from transformer_jax.model.parameters import init_params

B, L, D = 2, 3, 4
DRAW = np.random.default_rng(4)
X = DRAW.normal(size=(B, L, D)) * 3 + 2
GAIN, BIAS = DRAW.normal(size=(2, D))
DEPTHS = {"num_encoder_layers": 5, "num_decoder_layers": 3}  # N and M


def residual(norm, params, is_decoder=False, **given):
    config = ModelConfig(d_model=D, norm=norm, **{"dropout": 0.0, **DEPTHS, **given})
    rows = jnp.arange(B) if config.dropout else None
    module = Residual(config, is_decoder=is_decoder)
    got, _ = module.apply(
        {"params": jax.tree.map(jnp.float32, params)},
        jnp.asarray(X, config.residual_dtype),
        lambda x: (x**2 + 1.0, None),
        rows,
        rngs={"dropout": jax.random.key(3)},
    )
    return np.asarray(got, np.float64)


NORM = {"norm": {"scale": GAIN, "bias": BIAS}}


@pytest.mark.parametrize("is_decoder", [False, True])
def test_deep_norm_normalizes_alpha_x_plus_the_output(is_decoder):
    alpha = (3 * 3) ** 0.25 if is_decoder else 0.81 * (5**4 * 3) ** 0.0625
    want = norm_by_hand(alpha * X + X**2 + 1, GAIN, BIAS)
    assert relative_error(residual("deep", NORM, is_decoder), want) < 1e-5


def test_rezero_adds_the_output_times_a_and_normalizes_nothing():
    assert relative_error(residual("rezero", {"weight": -0.7}), X - 0.7 * (X**2 + 1)) < 1e-6


def test_dropout_of_rezero_falls_on_the_output():
    added = residual("rezero", {"weight": 0.5}, dropout=0.5) - np.float32(X)
    dropped = added == 0
    assert 0 < dropped.sum() < dropped.size
    np.testing.assert_allclose(added[~dropped], (X**2 + 1)[~dropped], rtol=1e-4)


def test_narrow_residuals_are_multiplied_in_float32():
    """Rounding alpha x to bfloat16 once more would be seen in the sum."""
    got = residual("deep", NORM, residual_dtype="bfloat16")
    x = np.asarray(jnp.asarray(X, "bfloat16"), np.float64)
    y = np.asarray(jnp.asarray(x, "bfloat16") ** 2 + 1, np.float64)
    total = jnp.float32(0.81 * (5**4 * 3) ** 0.0625 * x + y).astype("bfloat16")
    want = norm_by_hand(np.asarray(total, np.float64), GAIN, BIAS)
    want = np.asarray(jnp.asarray(want, "bfloat16"), np.float64)
    np.testing.assert_allclose(got, want, rtol=2**-7)


def test_the_constants_are_those_of_the_paper():
    """Figure 2, for 18 and 18 layers."""
    config = ModelConfig(num_layers=18)
    assert deep_constants(config, False) == pytest.approx((1.9987, 0.35259), rel=1e-4)
    assert deep_constants(config, True) == pytest.approx((54**0.25, 216**-0.25), rel=1e-9)


@pytest.mark.parametrize("activation", ["relu", "glu"])  # glu: one of both inner matrices
def test_deep_norm_multiplies_the_initial_values_of_four_matrices_by_beta(activation):
    key = jax.random.key(0)
    changes = {"activation": activation, **DEPTHS}
    deep, post = (init_params(tiny_model(norm=norm, **changes), key) for norm in ("deep", "post"))
    seen = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(post):
        where = jax.tree_util.keystr(path, simple=True, separator=".")
        factor = 1.0
        if re.search(r"(feed_forward\.(inner|outer)|attention\.(value|out))$", where):
            is_decoder = where.startswith("decoder")
            factor = (12 * 3) ** -0.25 if is_decoder else 0.87 * (5**4 * 3) ** -0.0625
            seen.add((is_decoder, path[-1].key))
        other = deep
        for part in path:
            other = other[part.key]
        np.testing.assert_allclose(other, factor * leaf, rtol=1e-6, err_msg=where)
    assert len(seen) == 8
    assert jax.tree.structure(deep) == jax.tree.structure(post), "no norm more at the end"


def test_a_layer_of_rezero_is_the_identity_at_first_and_learns_its_weights():
    params = init_params(tiny_model(norm="rezero"), jax.random.key(0))
    weights = [
        leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params) if "weight" in str(path)
    ]
    assert len(weights) == 2 * 2 + 2 * 3 and not np.any(weights)
    assert "encoder_norm" not in params and "decoder_norm" not in params


@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_layer_of_the_decoder_has_the_decoder_s_constants(is_decoder):
    config = ModelConfig(norm="deep", d_model=8, num_heads=2, d_ff=4)
    layer = Layer(config, ("feed_forward",), Side(is_decoder)).bind({})
    assert layer.feed_forward_residual.is_decoder == is_decoder
