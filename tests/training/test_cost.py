"""Parameters and FLOPs against closed forms, what is allocated and what the paper prints."""

import functools
import math
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
from transformer_jax.model.sides.embeddings import padded_vocabulary
from transformer_jax.text.batches import Packed
from transformer_jax.text.vocabulary import both_sides
from transformer_jax.training import cost

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
    shapes = abstract_params(make_model(model, vocabulary_size))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.slow("traces 18 models")
@pytest.mark.parametrize("row", TABLE_3)
def test_parameters_of_table_3(row):
    changes, printed = TABLE_3[row]
    model = ModelConfig(**changes)
    count = closed_forms.parameters(model, padded_vocabulary(37_000))
    assert count == allocated(model, 37_000)
    real = cost.parameter_count(model, 37_000)
    assert real == closed_forms.parameters(model, 37_000)
    if printed is not None:
        assert real / 1e6 == pytest.approx(printed, rel=0.07)


TRANSFORMER = {"encoder": "transformer", "decoder": "transformer"}
RECURRENT = {"encoder": "recurrent", "decoder": "recurrent", "d_hidden": 17}
TO_RECURRENT = {"encoder": "transformer", "decoder": "recurrent", "d_hidden": 17}
FROM_RECURRENT = {"encoder": "recurrent", "decoder": "transformer", "d_hidden": 17}
EACH_MODEL = [TRANSFORMER, RECURRENT, TO_RECURRENT, FROM_RECURRENT]


@pytest.mark.slow("traces 16 models")
@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre"},
        {"d_k": None, "d_v": None},
        {"num_encoder_layers": 3, "num_decoder_layers": 1},
        {"d_hidden": None, **{name: RECURRENT[name] for name in ("encoder", "decoder")}},
        *EACH_MODEL,
        *({**model, "tie_embeddings": False} for model in EACH_MODEL),
        *({**model, "positions": "learned", "norm": "pre"} for model in EACH_MODEL),
    ],
    ids=str,
)
def test_parameters_of_every_variant(changes):
    model = ModelConfig(**{**SIZES, **changes})
    assert allocated(model, VOCABULARY) == closed_forms.parameters(model, 128)
    assert cost.parameter_count(model, VOCABULARY) == closed_forms.parameters(model, VOCABULARY)


SHAPES = {
    "all sizes differ": (ModelConfig(**SIZES), 9, 7),
    "d_k of d_model": (ModelConfig(d_model=24, num_heads=4, d_ff=40, num_layers=1), 5, 11),
    "pre, untied": (ModelConfig(**{**SIZES, "norm": "pre", "tie_embeddings": False}), 6, 6),
    "learned positions": (ModelConfig(**SIZES, positions="learned"), 9, 7),
    "3 and 1 layers": (ModelConfig(**SIZES, num_encoder_layers=3, num_decoder_layers=1), 9, 7),
    "recurrent": (ModelConfig(**SIZES, **RECURRENT), 9, 7),
    "recurrent, untied": (ModelConfig(**SIZES, **RECURRENT, tie_embeddings=False), 6, 6),
    "to recurrent": (ModelConfig(**SIZES, **TO_RECURRENT), 9, 7),
    "from recurrent": (ModelConfig(**SIZES, **FROM_RECURRENT), 9, 7),
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


@pytest.mark.slow("traces nine models")
@pytest.mark.parametrize("shape", SHAPES)
def test_flops_are_those_of_the_closed_forms_forward_and_backward(shape):
    """The backward pass has two products for each of the forward pass."""
    model, src, tgt = SHAPES[shape]
    want = closed_forms.forward_flops(model, VOCABULARY, src, tgt)
    assert forward_flops(model, VOCABULARY, src, tgt) == want
    assert cost.training_flops(model, VOCABULARY, src, tgt) == 3 * want


def test_types_and_kernels_do_not_change_the_flops():
    narrow = {"dtype": "bfloat16", "residual_dtype": "bfloat16", "attention_kernel": "fused"}
    sizes = {"num_layers": 1, "d_model": 32, "num_heads": 2, "d_ff": 48}
    counts = {
        cost.training_flops(ModelConfig(**sizes, **changes), VOCABULARY, 24, 16)
        for changes in ({}, narrow)
    }
    assert len(counts) == 1


def test_flops_of_the_score_functions_by_hand():
    """Additive scores have as many products as q . k; a coverage has one more, a word and head."""
    plain = ModelConfig(**SIZES)
    src = 9
    tgt = 7
    want = closed_forms.forward_flops(plain, VOCABULARY, src, tgt)
    additive = ModelConfig(**SIZES, score="additive")
    assert forward_flops(additive, VOCABULARY, src, tgt) == want
    coverage = ModelConfig(**SIZES, attention_memory="coverage")
    fertilities = 2 * SIZES["num_layers"] * src * SIZES["d_model"] * SIZES["num_heads"]
    assert forward_flops(coverage, VOCABULARY, src, tgt) == want + fertilities


def test_a_gated_feed_forward_network_has_a_third_matrix():
    plain, gated = (ModelConfig(**SIZES, activation=name) for name in ("swish", "swiglu"))
    networks, (d, f) = 2 * SIZES["num_layers"], (SIZES["d_model"], SIZES["d_ff"])
    counts = [cost.parameter_count(model, VOCABULARY) for model in (plain, gated)]
    assert counts[1] == counts[0] + networks * (d * f + f)
    src, tgt = 9, 7
    flops = [cost.training_flops(model, VOCABULARY, src, tgt) for model in (plain, gated)]
    assert flops[1] == flops[0] + 3 * 2 * SIZES["num_layers"] * (src + tgt) * d * f


def test_a_gate_of_heads_has_one_more_matrix_and_product_for_each_attention():
    plain, gated = (ModelConfig(**SIZES, attention_gate=gate) for gate in (False, True))
    matrix = SIZES["d_model"] * SIZES["num_heads"] * SIZES["d_v"]
    counts = [cost.parameter_count(model, VOCABULARY) for model in (plain, gated)]
    assert counts[1] == counts[0] + 3 * SIZES["num_layers"] * matrix
    src, tgt = 9, 7
    flops = [cost.training_flops(model, VOCABULARY, src, tgt) for model in (plain, gated)]
    assert flops[1] == flops[0] + 3 * 2 * SIZES["num_layers"] * (src + 2 * tgt) * matrix


def test_two_passes_that_should_agree_take_twice_the_products():
    """Their divergence takes none: it reads the logits of the loss."""
    model = ModelConfig(**SIZES)
    one, two = (
        cost.training_flops(model, VOCABULARY, 9, 7, losses) for losses in ((), ("consistency",))
    )
    assert two == 2 * one


def test_losses_on_attention_have_no_products_but_those_of_a_second_pass():
    """A second pass over the whole target ends at the scores of the watched layer, the first."""
    model = ModelConfig(**SIZES, watched_layer=0)
    src, tgt = (9, 7)
    keys, values = (SIZES["num_heads"] * SIZES[name] for name in ("d_k", "d_v"))

    def flops(**train):
        return cost.step_flops(model, VOCABULARY, (src, tgt), TrainConfig(**train))

    every = {f"{name}_weight": 1.0 for name in AUXILIARY_LOSSES}
    assert flops(**every) == flops()
    width = keys + values
    d_model = SIZES["d_model"]
    to_itself = 2 * tgt * d_model * 2 * width + 2 * tgt * tgt * width
    to_the_source = 2 * (tgt + src) * d_model * keys + 2 * tgt * src * keys
    full = flops(alignment_weight=1.0, alignment_context="full")
    assert full == flops() + 3 * (to_itself + to_the_source)


def test_both_directions_are_counted_if_both_are_trained():
    model = ModelConfig(**SIZES)
    train = TrainConfig(agreement_weight=0.0)
    ways = [cost.training_flops(model, VOCABULARY, *way) for way in ((9, 7), (7, 9))]
    assert cost.step_flops(model, VOCABULARY, (9, 7), train) == sum(ways) != 2 * ways[0]


def test_flops_of_attention_that_decides_are_those_of_training():
    """Beyond training it has no gradient, and would have no products of the backward pass."""
    src, tgt = 9, 7
    plain, gumbel, monotonic, chunkwise = (
        cost.training_flops(ModelConfig(**SIZES, cross_normalizer=name), VOCABULARY, src, tgt)
        for name in (None, "gumbel", "monotonic", "chunkwise")
    )
    assert plain == gumbel == monotonic
    inner = SIZES["num_heads"] * SIZES["d_k"]
    stops = 2 * SIZES["num_layers"] * (src * SIZES["d_model"] * inner + tgt * src * inner)
    assert chunkwise == plain + 3 * stops


@pytest.mark.parametrize("src, tgt", [(64, 48), (40, 128)])
def test_flops_are_within_5_percent_of_xla_s_own_count(src, tgt):
    # XLA counts normalization, softmax and activations too: a few percent at these sizes.
    model = ModelConfig(d_model=256, num_heads=4, d_ff=1024, num_layers=2)
    whole = make_model(model, 1024)
    sides = [Packed(*(jnp.ones((2, length), jnp.int32),) * 3) for length in (src, tgt)]

    def forward(params):
        return whole.apply({"params": params}, *sides).sum()

    counted = jax.jit(forward).lower(abstract_params(whole)).cost_analysis()["flops"]
    ours = 2 * forward_flops(model, 1024, src, tgt)
    assert ours < counted < 1.05 * ours


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


def test_a_scan_counts_its_length():
    def scanned(x, w):
        def inner(x, _):
            return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=5)[0], None

        return jax.lax.scan(inner, x, None, length=4)[0] @ w

    assert flops(scanned) == (4 * 5 + 1) * PRODUCT


def test_of_several_branches_the_most_expensive_counts():
    def either(x, w):
        return jax.lax.cond(x.sum() > 0, lambda x: x @ w @ w, lambda x: x @ w, x)

    def one_of_three(x, w):
        branches = [lambda x: x, lambda x: x @ w @ w @ w, lambda x: x @ w]
        return jax.lax.switch(x.sum().astype(int), branches, x)

    assert flops(either) == 2 * PRODUCT
    assert flops(one_of_three) == 3 * PRODUCT


@jax.custom_vjp
def own_gradient(x, w):
    return x @ w


own_gradient.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


@pytest.mark.parametrize(
    "function",
    [
        jax.jit(jnp.dot),
        jax.checkpoint(jnp.dot),
        own_gradient,
        jax.jit(jax.checkpoint(own_gradient)),
    ],
    ids=["jit", "remat", "custom_vjp", "all of them"],
)
def test_programs_inside_the_program_are_counted(function):
    assert flops(lambda x, w: function(function(x, w), w)) == 2 * PRODUCT


def test_what_is_computed_again_counts_again():
    def loss(x, w, again):
        layer = jax.checkpoint(lambda x: jnp.sin(x @ w)) if again else lambda x: jnp.sin(x @ w)
        return layer(x).sum()

    both = [jax.value_and_grad(functools.partial(loss, again=on)) for on in (False, True)]
    assert [*map(flops, both)] == [2 * PRODUCT, 3 * PRODUCT]


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


def test_the_device_s_peak_is_of_its_kind_and_type(monkeypatch):
    def peak(kind, dtype):
        monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
        return cost.device_peak(dtype)

    assert peak("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert peak("NVIDIA H100 80GB HBM3", "float32") == 495e12
    assert peak("NVIDIA A100-SXM4-80GB", "bfloat16") == 312e12
    assert peak("NVIDIA A100-SXM4-80GB", "float32") == 156e12
    assert peak("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert peak("TPU v5 lite", "bfloat16") == peak("TPU v5e", "bfloat16") == 197e12
    assert peak("TPU v5", "bfloat16") == peak("TPU v5p", "bfloat16") == 459e12
    assert peak("cpu", "float32") is None
