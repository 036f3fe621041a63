"""Products with weights: values, gradients, and weights in a narrower type."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import tiny_model
from transformer_jax.model.layers.matrix_products import (
    add_bias,
    einsum,
    product,
    settled,
    stored,
    weight_gradient,
)
from transformer_jax.model.parameters import product_axes


def by_numpy(axes, left, right, gradient):
    """The product, and its gradients by both factors."""
    (of_left, of_right), result = axes.split("->")[0].split(","), axes.split("->")[1]
    return (
        np.einsum(axes, left, right),
        np.einsum(f"{result},{of_right}->{of_left}", gradient, right),
        np.einsum(f"{of_left},{result}->{of_right}", left, gradient),
    )


@pytest.mark.parametrize(
    "axes, x_shape, weight_shape",
    [
        ("BLD,DF->BLF", (2, 3, 5), (5, 7)),  # more outputs than inputs
        ("BLF,FD->BLD", (2, 3, 7), (7, 5)),  # fewer
        ("BLD,DHK->BLHK", (2, 3, 12), (12, 4, 2)),
        ("BLHV,HVD->BLD", (2, 3, 4, 2), (4, 2, 9)),
    ],
)
def test_value_and_gradients_are_those_of_numpy(axes, x_shape, weight_shape):
    draw = np.random.default_rng(0)
    pair = [draw.normal(size=shape) for shape in (x_shape, weight_shape)]
    got, back = jax.vjp(lambda *pair: product(axes, *pair, "float32"), *map(jnp.float32, pair))
    gradient = draw.normal(size=got.shape)
    wants = by_numpy(axes, *pair, gradient)
    for found, want in zip((got, *back(jnp.float32(gradient))), wants, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_the_gradients_of_other_platforms_are_those_of_a_cpu(monkeypatch):
    """What no CPU runs: `platform_dependent` is made to take the branch of the others."""

    def gradients(columns):
        draw = np.random.default_rng(5)
        x, weights = (jnp.float32(draw.normal(size=shape)) for shape in ((2, 3, 6), (6, columns)))
        y, back = jax.vjp(lambda *pair: product("BLD,DF->BLF", *pair, "float32"), x, weights)
        return x, weights, y, back(jnp.ones_like(y))

    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *args, default, **others: default(*args)
    )
    x, weights, y, (of_x, of_weights) = gradients(11)  # a shape that no other test has traced
    np.testing.assert_allclose(y, x @ weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x[0, 0], weights.sum(1), rtol=1e-5)
    np.testing.assert_allclose(of_weights[:, 0], x.sum((0, 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "axes, left, right",
    [
        ("BHLM,BMHV->BLHV", (2, 3, 4, 5), (2, 5, 3, 6)),
        ("BHLM,BHMV->BHLV", (2, 3, 4, 5), (2, 3, 5, 6)),
        ("BLHK,HKJ->BLHJ", (2, 4, 3, 5), (3, 5, 6)),
    ],
)
def test_an_einsum_of_bfloat16_and_its_gradients_are_rounded_once(axes, left, right):
    draw = np.random.default_rng(1)
    exact = [np.asarray(jnp.asarray(draw.normal(size=s), jnp.bfloat16)) for s in (left, right)]
    got, back = jax.vjp(lambda *pair: einsum(axes, *pair), *map(jnp.asarray, exact))
    gradient = jnp.asarray(draw.normal(size=got.shape), jnp.bfloat16)
    wide = [np.asarray(array, np.float64) for array in (*exact, gradient)]
    for found, want in zip((got, *back(gradient)), by_numpy(axes, *wide), strict=True):
        assert found.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(found, np.float64), want, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(
    "axes, x_shape, weight_shape",
    [("BLD,DF->BLF", (1, 3, 12), (12, 9)), ("BLHV,HVD->BLD", (2, 3, 4, 2), (4, 2, 9))],
)
def test_narrow_weights_round_x_and_nothing_else(axes, x_shape, weight_shape):
    draw = np.random.default_rng(2)
    x = jnp.asarray(draw.normal(size=x_shape), jnp.float32)
    weights = jnp.asarray(draw.normal(size=weight_shape), jnp.bfloat16)

    # XLA for a CPU would move the transpose into the product, and has no such product.
    x_IN = x.reshape(-1, math.prod(weight_shape) // weight_shape[-1]).T
    of_transposed = jax.jit(lambda x, w: product(axes, x.T.reshape(x_shape), w, "float32"))
    got = of_transposed(x_IN, weights)
    wide = [np.asarray(array.astype(jnp.bfloat16), np.float64) for array in (x, weights)]
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, np.einsum(axes, *wide), rtol=1e-5, atol=1e-6)


def test_the_axes_that_a_product_sums_over_are_those_of_its_equation():
    """In a stack after the axis of layers. x [.., D] W [D, H, K]; heads [.., H, V] W [H, V, D]."""
    axes = product_axes(tiny_model(attention_gate=True, attention_bias=True))
    attention = axes["decoder_layers"]["cross_attention"]
    assert attention["query"] == attention["key"] == attention["value"] == ((1,), (2, 3))
    assert (attention["gate"], attention["out"]) == (((1,), (2, 3)), ((1, 2), (3,)))
    assert attention["query_bias"] is axes["embedding"]["table"] is None
    recurrent = product_axes(tiny_model(encoder="recurrent", decoder="recurrent"))
    assert recurrent["decoder"]["readout"] == ((0,), (1,))


def test_a_bias_is_added_in_the_type_of_x_and_its_gradient_summed_in_float32():
    x = jnp.full((4, 1_100, 3), 0.5, jnp.bfloat16)
    bias = jnp.array([1.0, 2.0, 1 / 3], jnp.float32)
    got, back = jax.vjp(add_bias, x, bias)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got[0, 0], x[0, 0] + bias.astype(jnp.bfloat16))
    # A sum that rounds to bfloat16 stops growing long before 4,400.
    x_gradient, bias_gradient = back(jnp.ones_like(got) * jnp.array([1, 1, 3], jnp.bfloat16))
    assert (x_gradient.dtype, bias_gradient.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_array_equal(x_gradient[1, 7], [1, 1, 3])
    np.testing.assert_array_equal(bias_gradient, [4_400, 4_400, 13_200])


@pytest.mark.parametrize("inputs, outputs", [(128, 512), (512, 128)])
def test_on_a_cpu_the_smaller_factor_is_transposed_first(inputs, outputs):
    shapes = [jax.ShapeDtypeStruct((64, size), jnp.float32) for size in (inputs, outputs)]
    text = jax.jit(weight_gradient).lower(*shapes).as_text()
    assert f"(tensor<64x{min(inputs, outputs)}xf32>)" in text.split("stablehlo.transpose")[1]
    assert "contracting_dims = [1] x [0]" in text


def test_other_platforms_get_no_barriers_and_no_second_form_of_the_products():
    x, weights = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 3, 5), (5, 7)))

    def step(x: jax.Array, weights: jax.Array) -> jax.Array:
        return settled(product("BLD,DF->BLF", x, weights, "float32")).sum()

    gradients = jax.jit(jax.value_and_grad(step, (0, 1)))
    lines = {
        platform: jax.export.export(gradients, platforms=[platform])(x, weights).mlir_module()
        for platform in ("cpu", "cuda", "tpu")
    }
    assert lines["cpu"].count("stablehlo.optimization_barrier") > 0
    assert lines["cuda"].count("stablehlo.optimization_barrier") == 0
    assert lines["tpu"].count("stablehlo.optimization_barrier") == 0
    assert all(text.count("stablehlo.dot_general") == 3 for text in lines.values())


@pytest.mark.parametrize("opaque", [True, False])
def test_stored_is_the_identity_whatever_the_scalar(opaque):
    x, gradient = (np.random.default_rng(n).normal(size=(2, 3, 5)) for n in range(2))
    got, back = jax.vjp(lambda x: stored(x, jnp.bool_(opaque)), jnp.float32(x))
    np.testing.assert_array_equal(got, np.float32(x))
    np.testing.assert_array_equal(back(jnp.float32(gradient))[0], np.float32(gradient))
