"""Scores to weights, against slow float64 references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import along_a_direction, softmax_by_hand
from tests.fixtures.tiny import drawn_params, relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.normalizers import (
    NORMALIZERS,
    normed_pairs,
    softmax,
    sparsemax,
)

B, L, M, H = 2, 5, 6, 4
DRAW = np.random.default_rng(8)
SCORES = DRAW.normal(size=(B, H, L, M)).astype(np.float32)
MASK = DRAW.random((B, 1, L, M)) < 0.6
MASK[..., 0] = True  # each query may attend to something
MASKS = {"of a row": MASK, "of each head": DRAW.random((B, H, L, M)) < 0.9, "everything": True}
PARAMS = {
    name: drawn_params(entry.parameters, {"heads": H, "d_v": 1}, DRAW)
    for name, entry in NORMALIZERS.items()
}
EVERY = pytest.mark.parametrize("name", NORMALIZERS)


def normalize(name, params, scores, mask, dtype="float32", size=2):
    config = ModelConfig(dtype=dtype, attended_keys=size)
    return NORMALIZERS[name].of(config, params, None)(scores, mask)


def sparsemax_by_hand(params, scores, mask):
    """The nearest point of the simplex, by trying every number of keys."""
    want = np.zeros(scores.shape)
    for place in np.ndindex(*scores.shape[:-1]):
        allowed = scores[place][mask[place]].astype(np.float64)
        ordered = np.sort(allowed)[::-1]
        points = [
            np.maximum(allowed - (ordered[:n].sum() - 1) / n, 0) for n in range(1, len(ordered) + 1)
        ]
        on_simplex = [point for point in points if abs(point.sum() - 1) < 1e-9]
        want[place][mask[place]] = min(on_simplex, key=lambda p: ((p - allowed) ** 2).sum())
    return want


def top_k_by_hand(params, scores, mask, size=2):
    keep = np.zeros(scores.shape, bool)
    for place in np.ndindex(*scores.shape[:-1]):
        allowed = np.flatnonzero(mask[place])
        keep[place][sorted(allowed, key=lambda j: -scores[place][j])[:size]] = True
    return softmax_by_hand(scores, keep)


def sink_by_hand(params, scores, mask):
    """The softmax over the allowed keys and one more, whose weight is left out."""
    sink = np.broadcast_to(params["sink"][:, None, None], (B, H, L, 1))
    one_more = np.append(scores, sink, -1), np.append(mask, np.ones_like(sink, bool), -1)
    return softmax_by_hand(*one_more)[..., :-1]


def talking_heads_by_hand(params, scores, mask):
    """Each head's scores, and then its weights, are sums over all heads (Shazeer et al. 2020)."""
    mixed, want = np.zeros(scores.shape), np.zeros(scores.shape)
    for h, i in np.ndindex(H, H):
        mixed[:, i] += scores[:, h] * params["mix_scores"][h, i]
    weights = softmax_by_hand(mixed, mask)
    for i, h in np.ndindex(H, H):
        want[:, h] += weights[:, i] * params["mix_weights"][i, h]
    return want


def differential_by_hand(params, scores, mask):
    """Each head subtracts its own multiple of the pair's second softmax."""
    maps = softmax_by_hand(scores, mask)
    want = np.zeros(scores.shape)
    for h in range(H):
        first = h // 2 * 2
        want[:, h] = maps[:, first] - params["lambda"][h] * maps[:, first + 1]
    return want


BY_HAND = {
    "softmax": lambda params, scores, mask: softmax_by_hand(scores, mask),
    "sparsemax": sparsemax_by_hand,
    "top_k": top_k_by_hand,
    "sink": sink_by_hand,
    "talking_heads": talking_heads_by_hand,
    "differential": differential_by_hand,
}


@EVERY
@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_weights_equal_their_equation(mask, size, name):
    mask = np.broadcast_to(np.asarray(mask) | (np.arange(M) == 0), SCORES.shape)
    scores = np.float32(size * SCORES)
    got = np.asarray(jax.jit(normalize, static_argnums=0)(name, PARAMS[name], scores, mask))
    want = BY_HAND[name](PARAMS[name], scores.astype(np.float64), mask)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * max(size, 1))
    np.testing.assert_array_equal(got[want == 0], 0)


@pytest.mark.parametrize("size", [1, M, M + 3])
def test_top_k_has_as_many_keys_as_there_are_or_fewer(size):
    mask = np.broadcast_to(MASK, SCORES.shape)
    got = normalize("top_k", {}, SCORES, MASK, size=size)
    assert relative_error(got, top_k_by_hand({}, SCORES, mask, size)) < 1e-6


@EVERY
def test_what_a_normalizer_says_of_its_weights_is_so(name):
    """Weights that need not sum to 1, or be positive, are refused where probabilities are read."""
    got = np.asarray(normalize(name, PARAMS[name], SCORES, MASK))
    assert np.allclose(got.sum(-1), 1, atol=1e-5) == NORMALIZERS[name].sums_to_1
    assert (got < 0).any() == NORMALIZERS[name].signed


@EVERY
def test_gradients_are_finite_differences(name):
    """Of the scores and of the parameters together, in double precision."""
    with jax.enable_x64(True):
        at = jax.tree.map(np.float64, (PARAMS[name], SCORES))
        upstream = DRAW.normal(size=SCORES.shape)

        @jax.jit
        def total(arrays):
            return (normalize(name, *arrays, MASK, "float64") * upstream).sum()

        slope, want = along_a_direction(total, jax.grad(total)(at), at)
        assert slope == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("name", ["softmax", "sink", "talking_heads", "differential"])
def test_bfloat16_keeps_weights_of_that_type_for_the_backward_pass(name):
    upstream = DRAW.normal(size=SCORES.shape).astype(np.float32)

    def pulled(dtype):
        weights, pull = jax.vjp(
            jax.jit(lambda *arrays: normalize(name, *arrays, MASK, dtype)), PARAMS[name], SCORES
        )
        return weights, pull(jnp.asarray(upstream))[1]

    (weights, gradient), (narrow, of_narrow) = pulled("float32"), pulled("bfloat16")
    np.testing.assert_array_equal(narrow, weights)
    assert 1e-5 < relative_error(of_narrow, gradient) < 2**-6


@pytest.mark.parametrize("mask", [MASK, MASK & (np.arange(L)[:, None] > 1)], ids=["", "nothing"])
def test_the_gradient_of_kept_bfloat16_weights_is_that_of_the_equation(mask):
    """w (g - sum of w g) for each query, and exactly 0 where the mask is False."""
    upstream = DRAW.normal(size=SCORES.shape).astype(np.float32)
    weights, vjp = jax.vjp(lambda scores: softmax(scores, mask, "bfloat16"), SCORES)
    np.testing.assert_array_equal(weights, softmax(SCORES, mask))
    assert weights.dtype == np.float32
    [got] = vjp(jnp.asarray(upstream))
    kept = np.asarray(jnp.asarray(weights, jnp.bfloat16), np.float64)
    want = np.zeros_like(kept)
    for b, h, i in np.ndindex(kept.shape[:3]):
        mean = kept[b, h, i] @ upstream[b, h, i]
        want[b, h, i] = kept[b, h, i] * (upstream[b, h, i] - mean) * mask[b, 0, i]
    assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize("size", [1.0, 99.0, 1e4, 1e8, 1e30])
def test_a_masked_weight_is_0_however_much_larger_its_score_is(size):
    got = softmax(jnp.array([[[[size, -size, -size, 2 * size]]]]), jnp.array([0, 1, 1, 0], bool))
    assert got[0, 0, 0].tolist() == [0.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize(
    ("name", "weight"), [("softmax", 1 / M), ("sparsemax", 1 / M), ("top_k", 1 / M), ("sink", 0.0)]
)
def test_a_query_without_keys_has_equal_weights_or_the_sink_and_a_finite_gradient(name, weight):
    nothing = jnp.zeros((1, 1, 1, M), bool)
    got, pull = jax.vjp(lambda *arrays: normalize(name, *arrays, nothing), PARAMS[name], SCORES)
    np.testing.assert_allclose(got, np.full(SCORES.shape, weight), rtol=1e-6)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(pull(2 * got)))


def test_no_weight_of_sparsemax_is_below_0():
    """tau is rounded: where a score is just above it, one query in 200 would have one of -7e-9."""
    scores = np.random.default_rng(0).uniform(0, 0.1, size=(20_000, 11)).astype(np.float32)
    tau = (scores.sum(-1, keepdims=True) - 1) / np.float32(11)
    scores = np.append(scores, np.nextafter(tau, np.float32(1)), axis=-1)
    got = jax.jit(jax.vmap(sparsemax, in_axes=(0, None)))(scores, jnp.ones(12, bool))
    assert np.min(got) >= 0 and np.min(got[:, :11]) > 0.01


def test_talking_heads_start_as_the_softmax():
    first = {
        name: parameter.initializer(jax.random.key(0), (H, H))
        for name, parameter in NORMALIZERS["talking_heads"].parameters.items()
    }
    got = normalize("talking_heads", first, SCORES, MASK)
    np.testing.assert_array_equal(got, softmax(SCORES, MASK))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_outputs_of_a_pair_are_normed_together(dtype):
    """Equation 3 of Ye et al. 2024, with epsilon 1e-5; the outputs of the last pair are tiny."""
    heads_BLHV = jnp.asarray(
        DRAW.normal(size=(B, L, H, 5)) * np.array([3, 3, 1e-3, 1e-3])[:, None], dtype
    )
    gain_HV = DRAW.normal(size=(H, 5)).astype(np.float32)
    x = np.asarray(heads_BLHV, np.float64)
    want = np.zeros(x.shape)
    for b, i, p in np.ndindex(B, L, H // 2):
        pair = x[b, i, 2 * p : 2 * p + 2]
        root = np.sqrt((pair**2).sum() / 10 + 1e-5)
        want[b, i, 2 * p : 2 * p + 2] = 0.2 * gain_HV[2 * p : 2 * p + 2] * pair / root
    got = normed_pairs({"gain": gain_HV}, heads_BLHV)
    assert got.dtype == heads_BLHV.dtype
    assert relative_error(got, want) < (1e-6 if dtype == "float32" else 2**-8)
