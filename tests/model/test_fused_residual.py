"""The kernels of residual and norm against `layer_norm` and `keep_mask`, which have own tests.

Pallas interprets the kernels here. tests/training/test_gpu_program.py lowers them for a GPU, and
tests/parallel divides them over a mesh.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import SIZES
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.kernels.fused_residual import Norm, Setting, Summands, fused_residual
from transformer_jax.model.layers.dropout import NoiseSource, keep_mask, noise_bits
from transformer_jax.model.layers.layer import Residual
from transformer_jax.model.layers.norms import layer_norm

ROWS = jnp.asarray([4, 1, 70_000])
EPSILON = 1e-3
DRAW = np.random.default_rng(3)
KEY = jax.random.key(11)


def both_ways(length, features, rate, types=(jnp.float32, jnp.float32)):
    """Output and gradients by x, y, gain and bias: of the kernels, and of the equations."""
    x, y, cotangent = DRAW.normal(size=(3, len(ROWS), length, features)) + 0.5
    scale, bias = (jnp.asarray(DRAW.normal(size=features), jnp.float32) for _ in range(2))
    arrays = jnp.asarray(x, types[0]), jnp.asarray(y, types[1]), scale, bias

    def fused(x, y, scale, bias):
        noise = NoiseSource(noise_bits(KEY), ROWS)
        return fused_residual(Summands(x, y), Norm(scale, bias), noise, Setting(rate, EPSILON))

    def plain(x, y, scale, bias):
        keep = keep_mask(KEY, ROWS, length, features, rate)
        return layer_norm(x + jnp.where(keep, y / (1 - rate), 0.0), scale, bias, EPSILON)

    def run(function, arrays):
        out, pull = jax.vjp(function, *arrays)
        return out, *pull(jnp.asarray(cotangent, out.dtype))

    wide = tuple(x.astype(jnp.float32) for x in arrays)
    return jax.jit(lambda: run(fused, arrays))(), jax.jit(lambda: run(plain, wide))()


# 40 positions are five programs of 8, 64 are two of 32, and 7 are seven of one.
@pytest.mark.parametrize(
    ("length", "features", "rate"), [(40, 16, 0.3), (64, 256, 0.1), (7, 32, 0.5), (40, 16, 0.0)]
)
def test_output_and_gradients_are_those_of_the_equations(length, features, rate):
    for found, wanted in zip(*both_ways(length, features, rate), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=2e-5)


def test_narrow_types_are_kept_and_round_to_the_equations_values():
    found, wanted = both_ways(64, 32, 0.1, (jnp.bfloat16, jnp.bfloat16))
    assert [x.dtype for x in found] == [jnp.bfloat16] * 3 + [jnp.float32] * 2
    for one, other in zip(found, wanted, strict=True):
        error = np.abs(np.asarray(one, np.float32) - other).mean()
        assert error < 0.01 * np.abs(other).mean()


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        ({"attention_kernel": "fused"}, 1),
        ({"attention_kernel": "plain"}, 0),
        ({"attention_kernel": "fused", "norm": "pre"}, 0),  # the norm is in another sub-layer
        ({"attention_kernel": "fused", "norm": "deep"}, 0),  # the kernel knows no alpha
        ({"attention_kernel": "fused", "norm_kind": "rms"}, 0),
        ({"attention_kernel": "fused", "d_model": 24}, 0),  # no power of 2
    ],
)
@pytest.mark.parametrize("rows", [ROWS, None])
def test_a_residual_calls_the_kernel_where_it_fits_and_gives_the_same(changes, calls, rows):
    config = ModelConfig(**{**SIZES, "d_model": 32, "dropout": 0.2, **changes})
    residual = Residual(config)
    x = jnp.asarray(DRAW.normal(size=(len(ROWS), 8, config.d_model)), jnp.float32)
    params = residual.init(KEY, x, lambda y: (y, None), None)

    def apply(residual):
        return residual.apply(
            params, x, lambda y: (2.0 * y, None), rows, rngs={"dropout": jax.random.key(5)}
        )[0]

    plain = Residual(dataclasses.replace(config, attention_kernel="plain"))
    assert str(jax.make_jaxpr(lambda: apply(residual))()).count("pallas_call[") == 2 * calls
    np.testing.assert_allclose(apply(residual), apply(plain), atol=1e-5)
