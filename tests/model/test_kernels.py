"""The fused kernels against the equations, which other tests check against slow NumPy.

Pallas interprets the kernels here. tests/training/test_gpu_program.py lowers them for a GPU, and
tests/parallel divides them over a mesh.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import SIZES, batch_of, model_inputs, place_of, random_params, tiny_model
from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.model.attention.maps import attention_maps
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.patterns import causal, mask_of, same_sentence, strided, within
from transformer_jax.model.attention.scores import inverse_root
from transformer_jax.model.kernels import choices
from transformer_jax.model.kernels.choices import Keys, Queries, with_attention_kernel
from transformer_jax.model.kernels.fused_attention import LONGEST_BLOCK, fused_attend
from transformer_jax.model.kernels.fused_loss import fused_loss_and_gradient
from transformer_jax.model.kernels.fused_residual import Norm, Setting, Summands, fused_residual
from transformer_jax.model.layers.dropout import NoiseSource, keep_from, noise_bits
from transformer_jax.model.layers.layer import Residual
from transformer_jax.model.layers.norms import layer_norm
from transformer_jax.model.outputs.cross_entropy import LossSettings, loss_and_gradient
from transformer_jax.model.parameters import abstract_params
from transformer_jax.text.batches import Packed

# Attention against `attend` ----------------------------------------------------------------------


HEADS, D_K, D_V = 3, 16, 32
# Of 150 positions there are five blocks, and of 20 one; both are padded to whole blocks.
LONG = place_of([70, 40, 13], [150], [1, 2])
SHORT = place_of([9, 4, 5], [20], [3, 1])


CASES = {
    "encoder": (LONG, LONG, (same_sentence,)),
    "decoder": (LONG, LONG, (same_sentence, causal)),
    "window": (LONG, LONG, (same_sentence, causal, within(5))),
    "strided": (LONG, LONG, (same_sentence, causal, strided(3))),
    "from long to short": (LONG, SHORT, (same_sentence,)),
    "from short to long": (SHORT, LONG, (same_sentence,)),
}


def attention_both_ways(name, dtype=jnp.float32):
    """Outputs and gradients by queries, keys and values: of the kernel, and of `attend`."""
    *sides, patterns = CASES[name]
    draw = np.random.default_rng(5)
    arrays = tuple(
        jnp.asarray(draw.normal(size=(*side.segments.shape, HEADS, size)), dtype)
        for side, size in zip((sides[0], sides[1], sides[1]), (D_K, D_K, D_V), strict=True)
    )
    real = (sides[0].segments != 0)[:, :, None, None]
    cotangent = jnp.asarray(draw.normal(size=(*arrays[0].shape[:3], D_V)), dtype) * real

    def fused(query, key, value):
        setting = choices.Setting(patterns, inverse_root(D_K))
        return fused_attend(Queries(query, sides[0]), Keys(key, value, sides[1]), setting)

    def plain(query, key, value):
        return jnp.where(real, attend(query, key, value, mask_of(patterns, *sides))[0], 0.0)

    def run(function):
        out, pull = jax.vjp(function, *arrays)
        return out, *pull(cotangent.astype(out.dtype))

    return jax.jit(lambda: run(fused))(), jax.jit(lambda: run(plain))()


def test_blocks_that_no_query_may_attend_to_are_not_read():
    """Their weights are 0, but 0 times NaN is NaN."""
    where = place_of([2 * LONGEST_BLOCK, 2 * LONGEST_BLOCK])
    draw = np.random.default_rng(6)
    arrays = draw.normal(size=(3, 1, 4 * LONGEST_BLOCK, HEADS, D_K)).astype(np.float32)
    query, key, value = map(jnp.asarray, arrays)
    first = slice(0, 2 * LONGEST_BLOCK)

    def of_first(query, key, value):
        setting = choices.Setting((same_sentence,), inverse_root(D_K))
        return fused_attend(Queries(query, where), Keys(key, value, where), setting)[:, first]

    broken = tuple(x.at[:, 2 * LONGEST_BLOCK :].set(jnp.nan) for x in (key, value))
    np.testing.assert_array_equal(of_first(query, *broken), of_first(query, key, value))


@pytest.mark.slow("runs a GPU's kernels in an interpreter")
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_attend(name):
    for found, wanted in zip(*attention_both_ways(name), strict=True):
        np.testing.assert_allclose(found, wanted, atol=5e-6, rtol=1e-5)


def test_in_bfloat16_the_kernel_is_as_exact_as_attend():
    exact = attention_both_ways("from short to long")[1]
    fused, plain = attention_both_ways("from short to long", jnp.bfloat16)
    for found, other, wanted in zip(fused, plain, exact, strict=True):
        assert found.dtype == jnp.bfloat16
        errors = [np.abs(np.asarray(x, np.float32) - wanted).mean() for x in (found, other)]
        assert errors[0] < 1.2 * errors[1]


def test_padding_gets_zeros_and_gives_no_gradient_even_if_its_own_is_not_finite():
    side = place_of([3], length=20)
    draw = np.random.default_rng(1)
    query, key = jnp.asarray(draw.normal(size=(2, 1, 20, HEADS, D_K)), jnp.float32)

    def fused(query, key, value):
        setting = choices.Setting((same_sentence,), 1.0)
        return fused_attend(Queries(query, side), Keys(key, value, side), setting)

    out, pull = jax.vjp(fused, query, key, key)
    assert not np.any(out[:, 3:]) and np.all(out[:, :3] != 0.0)
    for gradient in pull(jnp.ones_like(out)):
        assert np.all(np.isfinite(gradient)) and not np.any(gradient[:, 3:])


@pytest.mark.parametrize(
    ("changes", "platform", "kernel"),
    [
        ({"dtype": "bfloat16"}, "cuda", "fused"),
        ({"dtype": "bfloat16"}, "gpu", "fused"),
        ({"dtype": "bfloat16"}, "cpu", "plain"),
        ({"dtype": "bfloat16"}, "rocm", "plain"),
        ({"dtype": "float32"}, "cuda", "plain"),
        ({"dtype": "bfloat16", "num_heads": 64}, "cuda", "plain"),  # d_k is 8
        ({"dtype": "bfloat16", "d_v": 48}, "cuda", "plain"),
        ({"attention_kernel": "fused"}, "cpu", "fused"),
        ({"attention_kernel": "plain", "dtype": "bfloat16"}, "cuda", "plain"),
    ],
)
def test_the_kernel_of_a_platform(changes, platform, kernel):
    assert with_attention_kernel(ModelConfig(**changes), platform).attention_kernel == kernel


def test_a_gpu_refuses_the_kernel_where_it_cannot_compute_it():
    config = ModelConfig(attention_kernel="fused", d_v=48)
    with pytest.raises(ConfigError, match="at least 16; this model has 64 and 48"):
        with_attention_kernel(config, "cuda")
    assert with_attention_kernel(config, "cpu") == config  # Pallas interprets the kernel


def test_search_in_a_run_that_trains_computes_as_that_of_a_loaded_run():
    model = tiny_model(attention_kernel="fused")
    assert model.for_search(None, False).config.attention_kernel == "plain"


@pytest.mark.parametrize(
    ("changes", "kernels"),
    [
        ({}, 3),  # self-attention of encoder and decoder, and what is between them
        ({"normalizer": "sparsemax"}, 0),
        ({"normalizer": "sink", "cross_normalizer": "softmax"}, 1),
        ({"cross_normalizer": "gumbel"}, 2),
        ({"score": "additive"}, 0),
        ({"cross_score": "cosine"}, 3),
        ({"cross_score": "additive"}, 2),
        ({"positions": "alibi"}, 1),
        ({"positions": "relative"}, 1),
        ({"attention_memory": "coverage"}, 2),
    ],
    ids=str,
)
def test_what_the_kernel_does_not_compute_is_computed_without_it(changes, kernels):
    model = tiny_model(num_layers=1, attention_kernel="fused", **changes)
    side = Packed(*(jnp.ones((1, 4), jnp.int32) for _ in range(3)))
    traced = jax.make_jaxpr(model.apply)({"params": abstract_params(model)}, side, side)
    # For a GPU, and interpreted: the program has both.
    assert str(traced).count("pallas_call[") == 2 * kernels


def test_a_model_with_the_kernel_gives_its_weights_to_plots():
    """Then it computes equation 1, since the kernel gives none."""
    batch = batch_of((9, 7), (4, 5))
    plain, fused = (
        tiny_model(d_k=16, d_v=16, attention_kernel=kernel) for kernel in ("plain", "fused")
    )
    params = random_params(plain)
    source, target = model_inputs(batch)
    maps = jax.jit(attention_maps, static_argnums=0)
    got, want = (maps(model, params, source, target) for model in (fused, plain))
    assert got.keys() == want.keys() == {"encoder", "decoder", "cross"}
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


# Residual and norm against `layer_norm` and `keep_from` ------------------------------------------


ROWS = jnp.asarray([4, 1, 70_000])
EPSILON = 1e-3
DRAW = np.random.default_rng(3)
KEY = jax.random.key(11)


def residual_both_ways(length, features, rate, types=(jnp.float32, jnp.float32)):
    """Output and gradients by x, y, gain and bias: of the kernels, and of the equations."""
    x, y, cotangent = DRAW.normal(size=(3, len(ROWS), length, features)) + 0.5
    scale, bias = (jnp.asarray(DRAW.normal(size=features), jnp.float32) for _ in range(2))
    arrays = jnp.asarray(x, types[0]), jnp.asarray(y, types[1]), scale, bias

    def fused(x, y, scale, bias):
        noise = NoiseSource(noise_bits(KEY), ROWS)
        return fused_residual(Summands(x, y), Norm(scale, bias), noise, Setting(rate, EPSILON))

    def plain(x, y, scale, bias):
        keep = keep_from(0, (length, features), NoiseSource(noise_bits(KEY), ROWS), rate)
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
    for found, wanted in zip(*residual_both_ways(length, features, rate), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=2e-5)


def test_narrow_types_are_kept_and_round_to_the_equations_values():
    found, wanted = residual_both_ways(64, 32, 0.1, (jnp.bfloat16, jnp.bfloat16))
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


# The loss against `loss_and_gradient` ------------------------------------------------------------


REAL_SIZE, PADDED = 2_400, 2_432  # 19 turns of 128 columns
LOSS_DRAW = np.random.default_rng(7)
SHAPE = (2, 2, 8)  # 32 positions, which two programs of the kernel share
LOGITS = jnp.asarray(4 * LOSS_DRAW.normal(size=(*SHAPE, PADDED)) + 20, jnp.float32)
TARGETS = jnp.asarray(LOSS_DRAW.integers(0, REAL_SIZE, SHAPE))
REAL = jnp.asarray(LOSS_DRAW.random(SHAPE) < 0.7)
# At some positions the target is the most probable subword, so that some are correct.
LOGITS = LOGITS.at[:, 0, jnp.arange(8), TARGETS[0, 0]].set(60.0)


def settings(smoothing, dtype="float32"):
    return LossSettings(smoothing, REAL_SIZE, dtype, block=1, replicas=2)


@pytest.mark.parametrize(
    ("smoothing", "kept"), [(0.0, "float32"), (0.1, "float32"), (0.1, "bfloat16")]
)
def test_sums_and_gradient_are_those_of_the_equation(smoothing, kept):
    logits = jnp.asarray(LOGITS, kept)
    sums, gradient = loss_and_gradient(
        logits.astype("float32"), TARGETS, REAL, smoothing, REAL_SIZE
    )
    found = jax.jit(lambda: fused_loss_and_gradient(logits, TARGETS, REAL, settings(smoothing)))()
    assert 0 < sums.correct < sums.tokens
    for one, wanted in zip(found[0][:4], sums[:4], strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5)
    np.testing.assert_allclose(found[1], gradient, atol=1e-5)
    assert not np.any(np.asarray(found[1])[..., REAL_SIZE:])


def test_the_gradient_has_the_type_of_the_products():
    _, gradient = fused_loss_and_gradient(LOGITS, TARGETS, REAL, settings(0.1, "bfloat16"))
    assert gradient.dtype == jnp.bfloat16
