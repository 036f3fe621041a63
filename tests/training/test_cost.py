"""Parameters and FLOPs against closed forms, what is allocated and what the paper prints."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tests.fixtures.tiny import SIZES, VOCABULARY
from tests.training import closed_forms
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.model.outputs.auxiliary import AUXILIARY_LOSSES
from transformer_jax.model.parameters import abstract_params
from transformer_jax.text.batches import Packed
from transformer_jax.text.vocabulary import both_sides
from transformer_jax.training import cost

# Each model with its source and target positions.
VARIANTS = {
    "all sizes differ": ({}, 9, 7),
    "d_k of d_model": ({"d_k": None, "d_v": None}, 5, 11),
    "pre, untied": ({"norm": "pre", "tie_embeddings": False}, 6, 6),
    "learned positions": ({"positions": "learned"}, 9, 7),
    "3 and 1 layers": ({"num_encoder_layers": 3, "num_decoder_layers": 1}, 9, 7),
}


def forward_flops(config, vocabulary_size, src_length, tgt_length):
    """The traced count of the forward pass of one row, up to the logits."""
    model = EncoderDecoder(config, both_sides(vocabulary_size), vocabulary_multiple=1)
    sides = [
        Packed(*(jnp.ones((1, length), jnp.int32),) * 3) for length in (src_length, tgt_length)
    ]

    def logits(params):
        return model.apply({"params": params}, *sides)

    return cost.product_flops(logits, abstract_params(model))


@pytest.mark.slow("traces five models")
@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_and_flops_are_those_of_the_closed_forms(variant):
    """The backward pass has two products for each of the forward pass."""
    changes, src, tgt = VARIANTS[variant]
    model = ModelConfig(**{**SIZES, **changes})
    allocated = jax.tree.leaves(abstract_params(make_model(model, VOCABULARY)))
    assert sum(x.size for x in allocated) == closed_forms.parameters(model, 128)
    assert cost.parameter_count(model, VOCABULARY) == closed_forms.parameters(model, VOCABULARY)
    want = closed_forms.forward_flops(model, VOCABULARY, src, tgt)
    assert forward_flops(model, VOCABULARY, src, tgt) == want
    assert cost.training_flops(model, VOCABULARY, src, tgt) == 3 * want


@pytest.mark.slow("traces three models")
@pytest.mark.parametrize(
    ("encoder", "decoder", "parameters", "flops"),
    [
        ("recurrent", "recurrent", 9_525, 457_080),
        ("transformer", "recurrent", 7_204, 375_090),
        ("recurrent", "transformer", 9_760, 510_156),
    ],
)
def test_counts_of_recurrent_sides_are_the_recorded_ones(encoder, decoder, parameters, flops):
    """They agreed with closed forms once; tests/model/test_recurrent.py has the equations."""
    sides = {"encoder": encoder, "decoder": decoder, "d_hidden": 17}
    model = ModelConfig(**SIZES, **sides)
    assert cost.parameter_count(model, VOCABULARY) == parameters
    assert cost.training_flops(model, VOCABULARY, 9, 7) == flops
    untied = dataclasses.replace(model, tie_embeddings=False)
    tables = 2 * VOCABULARY * SIZES["d_model"]
    assert cost.parameter_count(untied, VOCABULARY) == parameters + tables
    assert cost.training_flops(untied, VOCABULARY, 9, 7) == flops


def test_types_and_kernels_do_not_change_the_flops():
    narrow = {"dtype": "bfloat16", "residual_dtype": "bfloat16", "attention_kernel": "fused"}
    sizes = {"num_layers": 1, "d_model": 32, "num_heads": 2, "d_ff": 48}
    counts = {
        cost.training_flops(ModelConfig(**sizes, **changes), VOCABULARY, 24, 16)
        for changes in ({}, narrow)
    }
    assert len(counts) == 1


LAYERS, D, F, H = (SIZES[name] for name in ("num_layers", "d_model", "d_ff", "num_heads"))
SRC, TGT = 9, 7
GATE = D * H * SIZES["d_v"]


@pytest.mark.parametrize(
    ("changes", "parameters", "products"),
    [
        ({"score": "additive"}, 3 * LAYERS * H * 2 * SIZES["d_k"], 0),  # as many as q . k
        ({"attention_memory": "coverage"}, None, LAYERS * SRC * D * H),  # a word and head
        ({"activation": "swiglu"}, 2 * LAYERS * (D * F + F), LAYERS * (SRC + TGT) * D * F),
        ({"attention_gate": True}, 3 * LAYERS * GATE, LAYERS * (SRC + 2 * TGT) * GATE),
    ],
    ids=str,
)
def test_parameters_and_multiplications_that_a_part_adds_by_hand(changes, parameters, products):
    plain, other = (ModelConfig(**{**SIZES, "activation": "swish", **c}) for c in ({}, changes))
    flops = [forward_flops(model, VOCABULARY, SRC, TGT) for model in (plain, other)]
    assert flops[1] == flops[0] + 2 * products
    if parameters is not None:
        counts = [cost.parameter_count(model, VOCABULARY) for model in (plain, other)]
        assert counts[1] == counts[0] + parameters


def step_flops(model=None, **train):
    model = model or ModelConfig(**SIZES)
    return cost.step_flops(model, VOCABULARY, (SRC, TGT), TrainConfig(**train))


def test_two_passes_that_should_agree_take_twice_the_products():
    """Their divergence takes none: it reads the logits of the loss."""
    counted = functools.partial(cost.training_flops, ModelConfig(**SIZES), VOCABULARY, SRC, TGT)
    assert counted(("consistency",)) == 2 * counted()


def test_each_drawn_translation_takes_a_pass_of_the_decoder_and_all_one_of_the_encoder():
    of_two, of_three = (step_flops(objective="risk", candidates=draws) for draws in (2, 3))
    assert of_two - (of_three - of_two) == 2 * step_flops()


def test_losses_on_attention_have_no_products_but_those_of_a_second_pass():
    """A second pass over the whole target ends at the scores of the watched layer, the first."""
    flops = functools.partial(step_flops, ModelConfig(**SIZES, watched_layer=0))
    keys, values = (H * SIZES[name] for name in ("d_k", "d_v"))
    assert flops(**{f"{name}_weight": 1.0 for name in AUXILIARY_LOSSES}) == flops()
    width = keys + values
    to_itself = 2 * TGT * D * 2 * width + 2 * TGT * TGT * width
    to_the_source = 2 * (TGT + SRC) * D * keys + 2 * TGT * SRC * keys
    full = flops(alignment_weight=1.0, alignment_context="full")
    assert full == flops() + 3 * (to_itself + to_the_source)


def test_both_directions_are_counted_if_both_are_trained():
    ways = [cost.training_flops(ModelConfig(**SIZES), VOCABULARY, *way) for way in ((9, 7), (7, 9))]
    assert step_flops(agreement_weight=0.0) == sum(ways) != 2 * ways[0]


def test_flops_of_attention_that_decides_are_those_of_training():
    """Beyond training it has no gradient, and would have no products of the backward pass."""
    plain, gumbel, monotonic, chunkwise = (
        cost.training_flops(ModelConfig(**SIZES, cross_normalizer=name), VOCABULARY, SRC, TGT)
        for name in (None, "gumbel", "monotonic", "chunkwise")
    )
    assert plain == gumbel == monotonic
    stops = 2 * LAYERS * SRC * (D + TGT) * H * SIZES["d_k"]
    assert chunkwise == plain + 3 * stops


# Counting in a trace -----------------------------------------------------------------------------

WIDE, SQUARE = jnp.ones((2, 3)), jnp.ones((3, 3))
PRODUCT = 2 * 2 * 3 * 3  # FLOPs of WIDE @ SQUARE


def flops(function):
    return cost.product_flops(function, WIDE, SQUARE)


def test_a_product_of_m_k_and_k_n_counts_2_m_k_n():
    assert cost.product_flops(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 5))) == 2 * 2 * 3 * 5
    batched = functools.partial(jnp.einsum, "bhlk,bhmk->bhlm")
    shapes = jnp.ones((2, 3, 4, 7)), jnp.ones((2, 3, 5, 7))
    assert cost.product_flops(batched, *shapes) == 2 * (2 * 3) * 4 * 5 * 7


def scanned(x, w):
    def inner(x, _):
        return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=5)[0], None

    return jax.lax.scan(inner, x, None, length=4)[0] @ w


def one_of_two(x, w):
    return jax.lax.cond(x.sum() > 0, lambda x: x @ w @ w, lambda x: x @ w, x)


def one_of_three(x, w):
    branches = [lambda x: x, lambda x: x @ w @ w @ w, lambda x: x @ w]
    return jax.lax.switch(x.sum().astype(int), branches, x)


def twice(function):
    return lambda x, w: function(function(x, w), w)


def gradient_of_layer(wrap):
    return jax.value_and_grad(lambda x, w: wrap(lambda x: jnp.sin(x @ w))(x).sum())


@jax.custom_vjp
def own_gradient(x, w):
    return x @ w


own_gradient.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


@pytest.mark.parametrize(
    ("function", "products"),
    [
        pytest.param(scanned, 4 * 5 + 1, id="a scan counts its length"),
        pytest.param(one_of_two, 2, id="of branches the most expensive"),
        pytest.param(one_of_three, 3, id="of three branches too"),
        pytest.param(twice(jax.jit(jnp.dot)), 2, id="jit"),
        pytest.param(twice(jax.checkpoint(jnp.dot)), 2, id="remat"),
        pytest.param(twice(own_gradient), 2, id="custom_vjp"),
        pytest.param(twice(jax.jit(jax.checkpoint(own_gradient))), 2, id="all of them"),
        pytest.param(gradient_of_layer(lambda layer: layer), 2, id="a gradient"),
        pytest.param(gradient_of_layer(jax.checkpoint), 3, id="what is computed again"),
    ],
)
def test_products_inside_a_program_are_counted(function, products):
    assert flops(function) == products * PRODUCT


def test_a_product_that_nothing_uses_does_not_count():
    def loss(x, w):
        jnp.dot(x, w)
        return jax.lax.scan(lambda x, _: (jnp.sin(x), x @ w), x, length=3)[0].sum()

    assert flops(loss) == flops(jax.grad(loss)) == 0


def test_a_loop_of_unknown_length_is_refused():
    def loop(x, w):
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ w, x)

    with pytest.raises(NotImplementedError, match="'while' cannot be counted from a trace"):
        flops(loop)
    with pytest.raises(NotImplementedError, match="'pure_callback'"):
        flops(jax.jit(lambda x, w: jax.pure_callback(lambda x: x, x, x) @ w))


@pytest.mark.parametrize(
    ("kind", "bfloat16", "float32"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12, 495e12),
        ("NVIDIA H100 PCIe", 756e12, 378e12),
        ("NVIDIA H200 NVL", 835e12, 417e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),  # a part of a card
        ("NVIDIA A100-SXM4-80GB", 312e12, 156e12),
        ("TPU v5 lite", 197e12, 197e12),
        ("TPU v5e", 197e12, 197e12),
        ("TPU v5", 459e12, 459e12),
        ("TPU v5p", 459e12, 459e12),
        ("cpu", None, None),
    ],
)
def test_the_device_s_peak_is_of_its_kind_and_type(kind, bfloat16, float32, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    assert [cost.device_peak(dtype) for dtype in ("bfloat16", "float32")] == [bfloat16, float32]
