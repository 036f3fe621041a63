"""The convolutional encoder and decoder against PyTorch's layers, and its parts by hand."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import (
    batch_of,
    model_inputs,
    place_of,
    random_params,
    relative_error,
    tiny_model,
)
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import unboxed
from transformer_jax.model.parameters import init_params
from transformer_jax.model.sides.convolutional import (
    Affine,
    ConvolutionalDecoder,
    ConvolutionalEncoder,
    ConvolutionalLayer,
    LayerContext,
)

FIXTURE = Path(__file__).parent.parent / "fixtures" / "convolutional.npz"
SOURCE, TARGET = place_of([9], [4], [6]), place_of([7], [3], [5])
CONFIG = ModelConfig(
    encoder="convolutional",
    decoder="convolutional",
    num_layers=2,
    d_model=12,
    d_hidden=10,
    dropout=0.0,
    positions="none",
)


def affine(arrays, name, kind):
    """A product's direction, length and bias as the model has them."""
    length, direction = (
        arrays[f"{kind}/{name}.parametrizations.weight.original{n}"] for n in range(2)
    )
    bias = arrays[f"{kind}/{name}.bias"]
    if direction.ndim == 3:  # [outputs, inputs, taps]
        halves = (2, direction.shape[0] // 2)
        taps = direction.transpose(2, 1, 0).reshape(-1, *halves)
        return {"direction": taps, "gain": length.reshape(halves), "bias": bias.reshape(halves)}
    return {"direction": direction.T, "gain": length[:, 0], "bias": bias}


def stack_of(arrays, kind, stack):
    ends = ("input", "output")
    params = {f"{stack}_{end}": affine(arrays, f"{stack}_{end}", kind) for end in ends}
    for n in range(CONFIG.num_layers):
        layer = params[f"{stack}_{n}"] = {"convolution": affine(arrays, f"{stack}.{n}.conv", kind)}
        if stack == "decoder":
            names = ("query", "out")
            own = {name: affine(arrays, f"{stack}.{n}.{name}", kind) for name in names}
            layer["cross_attention"] = own
    return jax.tree.map(jnp.float32, params)


def test_outputs_and_gradients_equal_pytorch_s():
    with np.load(FIXTURE) as file:
        arrays = dict(file)
    encoder = ConvolutionalEncoder(CONFIG)
    decoder = ConvolutionalDecoder(CONFIG, ConvolutionalEncoder)

    def outputs(params):
        encoded = encoder.apply({"params": params["encoder"]}, arrays["source"], SOURCE, None)
        sides = arrays["target"], TARGET, encoded, SOURCE, None
        return encoded, decoder.apply({"params": params["decoder"]}, *sides)[0]

    def objective(params):
        return jnp.where(TARGET.segments[..., None] != 0, outputs(params)[1] ** 2, 0).sum()

    params = {stack: stack_of(arrays, "weight", stack) for stack in ("encoder", "decoder")}
    encoded, decoded = jax.jit(outputs)(params)
    for got, name, place in ((encoded, "encoded", SOURCE), (decoded, "decoded", TARGET)):
        real = place.segments != 0
        assert relative_error(got[real], arrays[name][real]) < 1e-6
    got = jax.jit(jax.grad(objective))(params)
    want = {stack: stack_of(arrays, "gradient", stack) for stack in ("encoder", "decoder")}
    paths = jax.tree_util.tree_leaves_with_path(want)
    for (path, gradient), found in zip(paths, jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-4, err_msg=str(path))


def test_the_variance_of_a_layer_is_that_of_its_input_at_first():
    """Gehring et al. 2017, section 3.5: lengths of 2 before a gate, and of 1 before a sum."""
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(4, 50, 256)), jnp.float32)
    for outputs, length, variance in (((256,), 1.0, 1.0), ((2, 256), 2.0, 4.0)):
        module = Affine(256, outputs, "float32", length)
        variables = unboxed(module.init(jax.random.key(0), x))
        y = module.apply(variables, x)
        assert float(y.var()) == pytest.approx(variance, rel=0.05)
        columns = jnp.square(variables["params"]["direction"]).sum(0)
        assert float(columns.mean()) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("width", [3, 5, 7])
def test_an_encoder_s_layer_sees_as_many_positions_on_each_side(width):
    config = dataclasses.replace(CONFIG, num_layers=1, kernel_width=width)
    module = ConvolutionalEncoder(config)
    place = place_of([11])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 11, 12)), jnp.float32)
    variables = unboxed(jax.jit(module.init)(jax.random.key(0), x, place, None))

    def middle(x):
        return module.apply(variables, x, place, None)[0, 5].sum()

    of_middle = jax.jit(jax.grad(middle))(x)
    seen = np.flatnonzero(np.abs(of_middle[0]).max(-1))
    assert seen.tolist() == list(range(5 - width // 2, 6 + width // 2))


def test_products_begin_with_the_lengths_of_the_paper():
    """Section 3.5: sqrt(4 p) before a gate and sqrt(p) after dropout, where p is kept; else 1."""
    model = tiny_model(encoder="convolutional", decoder="convolutional", dropout=0.36)
    params = jax.jit(init_params, static_argnums=0)(model, jax.random.key(0))
    for stack in ("encoder", "decoder"):
        gains = {name: float(params[f"{stack}_{name}"]["gain"][0]) for name in ("input", "output")}
        assert gains == pytest.approx({"input": 0.8, "output": 1.0})
        np.testing.assert_allclose(params[f"{stack}_1"]["convolution"]["gain"], 1.6, rtol=1e-6)
    for part in params["decoder_0"]["cross_attention"].values():
        np.testing.assert_allclose(part["gain"], 1.0)


def test_dropout_falls_on_inputs_of_convolutions_and_on_the_decoder_s_output():
    config = dataclasses.replace(CONFIG, dropout=0.5)
    layer = ConvolutionalLayer(config)
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(3, 9, 10)), jnp.float32)
    context = LayerContext(SOURCE, None)
    variables = unboxed(jax.jit(layer.init)(jax.random.key(0), x, context))
    rngs = jax.random.key(1)
    apply = jax.jit(layer.apply)
    whole, _ = apply(variables, x, context)
    some = context._replace(rows_B=jnp.arange(3))
    dropped, _ = apply(variables, x, some, rngs={"dropout": rngs})
    assert relative_error(dropped, whole) > 0.1
    # The residual is whole: without the convolution, the output is x.
    silent = jax.tree.map(jnp.zeros_like, variables["params"]["convolution"])
    silent |= {"direction": jnp.ones_like(silent["direction"])}
    without = {"params": {"convolution": silent}}
    residual, _ = apply(without, x, some, rngs={"dropout": rngs})
    np.testing.assert_allclose(residual, x * 0.5**0.5, rtol=1e-6)

    model = tiny_model(encoder="convolutional", decoder="convolutional", dropout=0.5)
    variables = {"params": random_params(model)}
    source, target = model_inputs(batch_of((9, 7), (4, 6), (6, 7)))

    def decoded(model):
        return model.decode(model.encode(source), source, target, jnp.arange(3))[0]

    y = jax.jit(functools.partial(model.apply, method=decoded))(variables, rngs={"dropout": rngs})
    assert 0.35 < float((y == 0).mean()) < 0.65
