"""The fused kernels against `attend`, which other tests check against slow NumPy.

Pallas interprets the kernels here. tests/training/test_gpu_program.py lowers them for a GPU, and
tests/parallel divides them over a mesh.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import batch_of, model_inputs, place_of, random_params, tiny_model
from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.model.attention.maps import attention_maps
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.patterns import causal, mask_of, same_sentence, strided, within
from transformer_jax.model.attention.scores import inverse_root
from transformer_jax.model.kernels.choices import Keys, Queries, Setting, with_attention_kernel
from transformer_jax.model.kernels.fused_attention import LONGEST_BLOCK, fused_attend
from transformer_jax.model.parameters import abstract_params
from transformer_jax.text.batches import Packed

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


def both_ways(name, dtype=jnp.float32):
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
        setting = Setting(patterns, inverse_root(D_K))
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
        setting = Setting((same_sentence,), inverse_root(D_K))
        return fused_attend(Queries(query, where), Keys(key, value, where), setting)[:, first]

    broken = tuple(x.at[:, 2 * LONGEST_BLOCK :].set(jnp.nan) for x in (key, value))
    np.testing.assert_array_equal(of_first(query, *broken), of_first(query, key, value))


@pytest.mark.slow("runs a GPU's kernels in an interpreter")
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_attend(name):
    for found, wanted in zip(*both_ways(name), strict=True):
        np.testing.assert_allclose(found, wanted, atol=5e-6, rtol=1e-5)


def test_in_bfloat16_the_kernel_is_as_exact_as_attend():
    exact = both_ways("from short to long")[1]
    fused, plain = both_ways("from short to long", jnp.bfloat16)
    for found, other, wanted in zip(fused, plain, exact, strict=True):
        assert found.dtype == jnp.bfloat16
        errors = [np.abs(np.asarray(x, np.float32) - wanted).mean() for x in (found, other)]
        assert errors[0] < 1.2 * errors[1]


def test_padding_gets_zeros_and_gives_no_gradient_even_if_its_own_is_not_finite():
    side = place_of([3], length=20)
    draw = np.random.default_rng(1)
    query, key = jnp.asarray(draw.normal(size=(2, 1, 20, HEADS, D_K)), jnp.float32)

    def fused(query, key, value):
        setting = Setting((same_sentence,), 1.0)
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
