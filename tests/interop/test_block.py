"""Weights in the layout of transformers: what is done to them before another engine gets them."""

import numpy as np

from transformer_jax.config.model import ModelConfig
from transformer_jax.interop.block import halves_first, to_block
from transformer_jax.model.positions.choices import sinusoids
from transformer_jax.text.vocabulary import both_sides

D, F, H, K, V, PADDED = 6, 10, 2, 3, 5, 7  # letters as in the package; PADDED rows of ours


def test_our_sinusoids_permuted_are_marians():
    length, d_model = 5, 8
    want_LD = np.zeros((length, d_model))
    for position in range(length):
        for i in range(d_model // 2):
            angle = position / 10_000 ** (2 * i / d_model)
            want_LD[position, i] = np.sin(angle)
            want_LD[position, d_model // 2 + i] = np.cos(angle)
    got_LD = halves_first(sinusoids(length, d_model), 1)
    np.testing.assert_allclose(got_LD, want_LD, atol=1e-6)


def _parameters(draw: np.random.Generator) -> dict:
    def attention() -> dict:
        shapes = {name: (D, H, K) for name in ("query", "key", "value")} | {"out": (H, K, D)}
        return {name: draw.normal(size=shape) for name, shape in shapes.items()}

    def norm() -> dict:
        return {"norm": {"scale": draw.normal(size=D), "bias": draw.normal(size=D)}}

    feed_forward = {"inner": (D, F), "inner_bias": F, "outer": (F, D), "outer_bias": D}
    names = ("self_attention", "cross_attention", "feed_forward")
    layer = {f"{name}_residual": norm() for name in names} | {
        "self_attention": attention(),
        "cross_attention": attention(),
        "feed_forward": {name: draw.normal(size=size) for name, size in feed_forward.items()},
    }
    table = draw.normal(size=(PADDED, D))
    return {"embedding": {"table": table}, "encoder_0": layer, "decoder_0": layer}


def test_a_permuted_layer_computes_the_permuted_result():
    """Every map in and out of d_model commutes with the permutation; the padding's rows go."""
    draw = np.random.default_rng(0)
    params = _parameters(draw)
    x_D = draw.normal(size=D)
    ours = params["decoder_0"]
    y_D = halves_first(x_D, 0)
    config = ModelConfig(num_layers=1, d_model=D, num_heads=H, d_ff=F)
    weights = to_block(params, config, both_sides(V), halves=True)
    theirs = {name.removeprefix("model.decoder.layers.0."): w for name, w in weights.items()}

    for ours_name, name in (("self_attention", "self_attn"), ("cross_attention", "encoder_attn")):
        for part, letter in (("query", "q"), ("key", "k"), ("value", "v")):
            want_HK = np.einsum("D,DHK->HK", x_D, ours[ours_name][part])
            got = theirs[f"{name}.{letter}_proj.weight"] @ y_D
            np.testing.assert_allclose(got, want_HK.ravel(), rtol=1e-5)
            assert not theirs[f"{name}.{letter}_proj.bias"].any()
        heads_HK = draw.normal(size=(H, K))
        want_D = np.einsum("HK,HKD->D", heads_HK, ours[ours_name]["out"])
        got_D = theirs[f"{name}.out_proj.weight"] @ heads_HK.ravel()
        np.testing.assert_allclose(got_D, halves_first(want_D, 0), rtol=1e-5)

    part = ours["feed_forward"]
    hidden_F = x_D @ part["inner"] + part["inner_bias"]
    got_F = theirs["fc1.weight"] @ y_D + theirs["fc1.bias"]
    np.testing.assert_allclose(got_F, hidden_F, rtol=1e-4)
    want_D = hidden_F @ part["outer"] + part["outer_bias"]
    got_D = theirs["fc2.weight"] @ got_F + theirs["fc2.bias"]
    np.testing.assert_allclose(got_D, halves_first(want_D, 0), rtol=1e-4)

    for ours_name, name in (("cross_attention", "encoder_attn"), ("feed_forward", "final")):
        scale_D = ours[f"{ours_name}_residual"]["norm"]["scale"]
        got_D = theirs[f"{name}_layer_norm.weight"]
        np.testing.assert_allclose(got_D, halves_first(scale_D, 0), rtol=1e-6)
    table_VD = params["embedding"]["table"][:V]
    got_VD = weights["model.shared.weight"]
    np.testing.assert_allclose(got_VD, halves_first(table_VD, 1), rtol=1e-6)
