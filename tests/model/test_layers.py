"""The feed-forward network and residuals against float64 references."""

import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import norm_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.layers.feed_forward import ACTIVATIONS, FeedForward
from transformer_jax.model.layers.layer import Residual

B, L, D, F = 2, 3, 4, 5
DRAW = np.random.default_rng(2)
X = DRAW.normal(size=(B, L, D)) * 3 + 2
GAIN, BIAS = DRAW.normal(size=(2, D))


ACTIVATIONS_BY_HAND = {
    "relu": lambda h: max(0.0, h),
    "swish": lambda h: h / (1 + math.exp(-h)),
    "gelu": lambda h: h * (1 + math.erf(h / math.sqrt(2))) / 2,
}


# Shazeer 2020, equations 4 and 5: the factor that is not linear.
GATES_BY_HAND = {
    "glu": lambda h: 1 / (1 + math.exp(-h)),
    "reglu": ACTIVATIONS_BY_HAND["relu"],
    "geglu": ACTIVATIONS_BY_HAND["gelu"],
    "swiglu": ACTIVATIONS_BY_HAND["swish"],
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_equals_equation_2(activation):
    """f(x W1 + b1) W2 + b2, where a gated network multiplies f by x V + c; one unit at a time."""
    shapes = {"inner": (D, F), "outer": (F, D)}
    is_gated = activation in GATES_BY_HAND
    assert ACTIVATIONS[activation].gated == is_gated
    shapes |= {"linear": (D, F)} if is_gated else {}
    shapes |= {f"{name}_bias": shape[1:] for name, shape in shapes.items()}
    params = {name: DRAW.normal(size=shape) for name, shape in shapes.items()}
    by_hand = (ACTIVATIONS_BY_HAND | GATES_BY_HAND)[activation]
    want = np.zeros((B, L, D))
    for b, i, f in np.ndindex(B, L, F):
        unit = by_hand(X[b, i] @ params["inner"][:, f] + params["inner_bias"][f])
        if is_gated:
            unit *= X[b, i] @ params["linear"][:, f] + params["linear_bias"][f]
        want[b, i] += unit * params["outer"][f] + params["outer_bias"] / F
    module = FeedForward(ModelConfig(d_model=D, d_ff=F, activation=activation))
    got, _ = module.apply({"params": jax.tree.map(jnp.float32, params)}, jnp.float32(X))
    assert relative_error(got, want) < 1e-6


def residual(norm, rows=None, dropout=0.0, sublayer=lambda x: x**2 + 1.0, **keys):
    params = {"norm": {"scale": jnp.float32(GAIN), "bias": jnp.float32(BIAS)}}
    got, beside = Residual(ModelConfig(d_model=D, norm=norm, dropout=dropout, **keys)).apply(
        {"params": params},
        jnp.float32(X),
        lambda x: (sublayer(x), "weights"),
        rows,
        rngs={"dropout": jax.random.key(3)},
    )
    assert beside == "weights"  # what the sub-layer gives beside its output passes through
    return np.asarray(got)


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_post_norm_normalizes_the_sum(epsilon):
    want = norm_by_hand(X + X**2 + 1, GAIN, BIAS, epsilon)
    assert relative_error(residual("post", norm_epsilon=epsilon), want) < 1e-5


def test_pre_norm_normalizes_the_sublayers_input_alone():
    assert relative_error(residual("pre"), X + norm_by_hand(X, GAIN, BIAS) ** 2 + 1) < 1e-5


def test_dropout_falls_on_the_sublayers_output_not_on_the_residual():
    added = residual("pre", rows=jnp.arange(B), dropout=0.5) - np.float32(X)
    dropped = added == 0
    assert 0 < dropped.sum() < dropped.size
    whole = norm_by_hand(X, GAIN, BIAS) ** 2 + 1
    np.testing.assert_allclose(added[~dropped], 2 * whole[~dropped], rtol=1e-4)


def test_dropout_never_falls_on_the_residual_of_post_norm_either():
    kept = residual("post", rows=jnp.arange(B), dropout=0.5, sublayer=jnp.zeros_like)
    assert relative_error(kept, norm_by_hand(X, GAIN, BIAS)) < 1e-5


class Residuals(nn.Module):
    """Pre-norm residuals in a row, with a product as each sub-layer."""

    depth: int

    @nn.compact
    def __call__(self, x, weights, rows):
        config = ModelConfig(d_model=8, norm="pre", dropout=0.5)
        for _ in range(self.depth):
            x, _ = Residual(config)(x, lambda y: (y @ weights, None), rows)
        return x


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="how XLA for a CPU fuses")
def test_no_operation_computes_the_residuals_of_all_layers_again():
    def largest_fusion(depth):
        stack = Residuals(depth)
        key = jax.random.key(0)
        x = jnp.ones((2, 4, 8))
        weights = jnp.ones((8, 8))
        rows = jnp.arange(2)
        params = stack.init({"params": key, "dropout": key}, x, weights, rows)

        def total(params, weights, key):
            return stack.apply(params, x, weights, rows, rngs={"dropout": key}).sum()

        compiled = jax.jit(jax.grad(total, (0, 1))).lower(params, weights, key).compile()
        parts = re.split(r"\n(?=\S)", compiled.as_text())
        return max(part.count(" = ") for part in parts if "fused_computation" in part[:40])

    assert largest_fusion(6) <= largest_fusion(3)
