"""Parameters against what is allocated and what the paper prints; FLOPs against what is traced."""

import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tests.fixtures.tiny import SIZES, VOCABULARY
from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.encoder_decoder import padded_vocabulary
from transformer_jax.model.kinds import make_model
from transformer_jax.training import cost
from transformer_jax.training.state import init_params

# Table 3 of the paper: what differs from the base model, and millions of parameters as printed.
TABLE_3 = {
    "base": ({}, 65),
    "A h 1": ({"num_heads": 1, "d_k": 512, "d_v": 512}, None),
    "A h 4": ({"num_heads": 4, "d_k": 128, "d_v": 128}, None),
    "A h 16": ({"num_heads": 16, "d_k": 32, "d_v": 32}, None),
    "A h 32": ({"num_heads": 32, "d_k": 16, "d_v": 16}, None),
    "B d_k 16": ({"d_k": 16, "d_v": 64}, 58),
    "B d_k 32": ({"d_k": 32, "d_v": 64}, 60),
    "C N 2": ({"num_layers": 2}, 36),
    "C N 4": ({"num_layers": 4}, 50),
    "C N 8": ({"num_layers": 8}, 80),
    "C d_model 256": ({"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    "C d_model 1024": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    "C d_ff 1024": ({"d_ff": 1024}, 53),
    "C d_ff 4096": ({"d_ff": 4096}, 90),
    "D dropout 0.0": ({"dropout": 0.0}, None),
    "D dropout 0.2": ({"dropout": 0.2}, None),
    "E learned positions": ({"positions": "learned"}, None),
    "big": ({"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}, 213),
}


@functools.cache
def allocated(model: ModelConfig, vocabulary_size: int) -> int:
    init = functools.partial(init_params, make_model(model, vocabulary_size))
    shapes = jax.eval_shape(init, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("row", TABLE_3)
def test_parameters_of_table_3(row):
    changes, printed = TABLE_3[row]
    model = ModelConfig(**changes)
    count = cost.parameter_count(model, padded_vocabulary(37_000))
    assert count == allocated(model, 37_000)
    if printed is not None:
        real = cost.parameter_count(model, 37_000)
        assert real / 1e6 == pytest.approx(printed, rel=0.07)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"tie_embeddings": False},
        {"positions": "learned", "tie_embeddings": False},
        {"d_k": None, "d_v": None},
        {"kind": "recurrent", "d_hidden": 17},
        {"kind": "recurrent", "tie_embeddings": False},
    ],
    ids=str,
)
def test_parameters_of_every_variant(changes):
    model = ModelConfig(**{**SIZES, **changes})
    assert cost.parameter_count(model, 128) == allocated(model, VOCABULARY)


def dot_flops(function, *arguments) -> int:
    """2 m k n of every matrix product in the traced function."""
    return _dot_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _dot_flops(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        inner = [p.jaxpr for p in equation.params.values() if hasattr(p, "jaxpr")]
        total += sum(map(_dot_flops, inner)) * equation.params.get("length", 1)  # of a scan
        if equation.primitive.name == "dot_general":
            contracted, _ = equation.params["dimension_numbers"][0]
            sizes = equation.invars[0].aval.shape
            products = math.prod(equation.outvars[0].aval.shape)
            total += 2 * products * math.prod(sizes[axis] for axis in contracted)
    return total


def traced(model: ModelConfig, vocabulary_size: int, rows: int, src: int, tgt: int):
    transformer = make_model(model, vocabulary_size)
    params = jax.eval_shape(lambda: init_params(transformer, jax.random.key(0)))
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    inputs = [jnp.ones((rows, length), jnp.int32) for length in [src] * 3 + [tgt] * 3]

    def forward(params):
        return transformer.apply({"params": params}, *inputs).sum()

    return forward, params


SHAPES = {
    "all sizes differ": (ModelConfig(**SIZES), 9, 7),
    "d_k of d_model": (ModelConfig(d_model=24, num_heads=4, d_ff=40, num_layers=1), 5, 11),
    "recurrent": (ModelConfig(**SIZES, kind="recurrent", d_hidden=17), 9, 7),
    "pre, untied": (ModelConfig(**{**SIZES, "norm": "pre", "tie_embeddings": False}), 6, 6),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_flops_equal_the_traced_matrix_products_forward_and_backward(shape):
    model, src, tgt = SHAPES[shape]
    forward, params = traced(model, VOCABULARY, 2, src, tgt)
    assert dot_flops(forward, params) == 2 * cost.forward_flops(model, 128, src, tgt)
    backward = jax.value_and_grad(forward)
    assert dot_flops(backward, params) == 2 * cost.training_flops(model, 128, src, tgt)


@pytest.mark.parametrize("src, tgt", [(64, 48), (40, 128)])
def test_flops_are_within_5_percent_of_xla_s_own_count(src, tgt):
    # XLA counts normalisation, softmax and activations too: a few percent at these sizes.
    model = ModelConfig(d_model=256, num_heads=4, d_ff=1024, num_layers=2)
    forward, params = traced(model, 1000, 2, src, tgt)
    counted = jax.jit(forward).lower(params).cost_analysis()["flops"]
    ours = 2 * cost.forward_flops(model, 1024, src, tgt)
    assert ours < counted < 1.05 * ours


def test_the_device_s_peak_is_of_its_kind_and_type(monkeypatch):
    def peak(kind, dtype):
        monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
        return cost.device_peak(dtype)

    assert peak("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert peak("NVIDIA H100 80GB HBM3", "float32") == 495e12
    assert peak("TPU v5 lite", "bfloat16") == 197e12
    assert peak("cpu", "float32") is None
