"""Scores to weights, against slow float64 references."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import softmax_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.normalizers import (
    NORMALIZERS,
    differential,
    normed_pairs,
    softmax,
    sparsemax,
    talking_heads,
    top_k,
    with_sink,
)

B, L, M, H = 2, 5, 4, 3
DRAW = np.random.default_rng(8)
SCORES = DRAW.normal(size=(B, H, L, M)).astype(np.float32)
MASK = DRAW.random((B, 1, L, M)) < 0.6
MASK[..., 0] = True  # each query may attend to something


MASKS = {"of a row": MASK, "of each head": DRAW.random((B, H, L, M)) < 0.9, "everything": True}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_softmax_equals_its_equation(mask):
    mask = np.asarray(mask) | (np.arange(M) == 0)
    assert relative_error(softmax(SCORES, mask), softmax_by_hand(SCORES, mask)) < 1e-6


@pytest.mark.parametrize("size", [1.0, 99.0, 1e4, 1e8, 1e30])
def test_a_masked_weight_is_0_however_much_larger_its_score_is(size):
    got = softmax(jnp.array([[[[size, -size, -size, 2 * size]]]]), jnp.array([0, 1, 1, 0], bool))
    assert got[0, 0, 0].tolist() == [0.0, 0.5, 0.5, 0.0]


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
    _, exact = jax.vjp(lambda scores: softmax(scores, mask), SCORES)
    assert relative_error(got, exact(jnp.asarray(upstream))[0]) < 2**-7


def test_a_query_that_may_attend_to_nothing_gets_equal_weights():
    got = softmax(jnp.float32(SCORES), jnp.zeros((1, 1, 1, M), bool))
    np.testing.assert_array_equal(got, np.full((B, H, L, M), 1 / M, np.float32))


def sparsemax_by_hand(scores, mask):
    """The nearest point of the simplex, by trying every number of keys."""
    mask = np.broadcast_to(mask, scores.shape)
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


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_sparsemax_is_the_nearest_point_of_the_simplex(mask, size):
    mask = np.asarray(mask) | (np.arange(M) == 0)
    scores = np.float32(size * SCORES)
    got = jax.jit(sparsemax)(scores, mask)
    np.testing.assert_allclose(got, sparsemax_by_hand(scores, mask), atol=2e-6 * max(size, 1))
    assert not np.any(np.asarray(got)[~np.broadcast_to(mask, got.shape)])


def test_no_weight_of_sparsemax_is_below_0():
    """tau is rounded: where a score is just above it, one query in 200 would have one of -7e-9."""
    scores = np.random.default_rng(0).uniform(0, 0.1, size=(20_000, 11)).astype(np.float32)
    tau = (scores.sum(-1, keepdims=True) - 1) / np.float32(11)
    scores = np.append(scores, np.nextafter(tau, np.float32(1)), axis=-1)
    got = jax.jit(jax.vmap(sparsemax, in_axes=(0, None)))(scores, jnp.ones(12, bool))
    assert np.min(got) >= 0 and np.min(got[:, :11]) > 0.01


def test_sparsemax_by_hand_worked_figures():
    got = sparsemax(jnp.array([[0.5, 0.1, -1.0], [2.0, 0.0, 0.0]]), jnp.ones(3, bool))
    np.testing.assert_allclose(got, [[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]], atol=1e-6)


def test_the_gradient_of_sparsemax_is_that_of_the_equation():
    """s (g - mean of g over the support), where s is 1 in the support (equation 12)."""
    upstream = DRAW.normal(size=SCORES.shape).astype(np.float32)
    weights, vjp = jax.vjp(lambda scores: sparsemax(scores, MASK), SCORES)
    support = np.asarray(weights) > 0
    want = np.zeros(SCORES.shape)
    for place in np.ndindex(*SCORES.shape[:-1]):
        inside = support[place]
        want[place][inside] = upstream[place][inside] - upstream[place][inside].mean()
    assert relative_error(vjp(jnp.asarray(upstream))[0], want) < 1e-6


@pytest.mark.parametrize("size", [1, 2, M, M + 3])
def test_top_k_is_the_softmax_over_the_highest_scores(size):
    keep = np.zeros(SCORES.shape, bool)
    for b, h, i in np.ndindex(B, H, L):
        allowed = [j for j in range(M) if MASK[b, 0, i, j]]
        keep[b, h, i, sorted(allowed, key=lambda j: -SCORES[b, h, i, j])[:size]] = True
    got = jax.jit(top_k, static_argnums=2)(SCORES, MASK, size)
    assert relative_error(got, softmax_by_hand(SCORES, keep)) < 1e-6


@pytest.mark.parametrize("normalize", [sparsemax, lambda s, m: top_k(s, m, 2)])
def test_a_query_without_keys_has_equal_weights_and_a_finite_gradient(normalize):
    nothing = jnp.zeros((1, 1, 1, M), bool)
    total, gradient = jax.value_and_grad(lambda s: (normalize(s, nothing) ** 2).sum())(SCORES)
    assert total == pytest.approx(B * H * L / M) and np.all(np.isfinite(gradient))


SINK = {"sink": np.array([-1.5, 0.0, 2.5], np.float32)}


def sink_by_hand(scores, mask):
    """The softmax over the allowed keys and one more, whose weight is left out."""
    mask = np.broadcast_to(mask, scores.shape)
    want = np.zeros(scores.shape)
    for b, h, i in np.ndindex(B, H, L):
        allowed = scores[b, h, i][mask[b, h, i]].astype(np.float64)
        with_one_more = np.append(allowed, np.float64(SINK["sink"][h]))
        powers = np.exp(with_one_more - with_one_more.max())
        want[b, h, i][mask[b, h, i]] = (powers / powers.sum())[:-1]
    return want


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_sink_is_one_more_key_without_a_value(mask, size):
    scores = np.float32(size * SCORES)
    got = jax.jit(with_sink)(SINK, scores, mask)
    np.testing.assert_allclose(got, sink_by_hand(scores, mask), rtol=1e-5, atol=1e-30)


def test_the_gradients_of_a_sink_are_those_of_one_more_key():
    upstream = DRAW.normal(size=SCORES.shape).astype(np.float32)

    def one_more_key(params, scores):
        sink = jnp.broadcast_to(params["sink"][:, None, None], (B, H, L, 1))
        mask = jnp.concatenate([jnp.broadcast_to(MASK, SCORES.shape), sink == sink], -1)
        return softmax(jnp.concatenate([scores, sink], -1), mask)[..., :-1]

    _, want = jax.vjp(one_more_key, SINK, SCORES)
    _, got = jax.vjp(lambda params, scores: with_sink(params, scores, MASK), SINK, SCORES)
    _, narrow = jax.vjp(lambda p, scores: with_sink(p, scores, MASK, "bfloat16"), SINK, SCORES)
    for pull, bound in ((got, 2e-6), (narrow, 2**-7)):
        for one, other in zip(
            jax.tree.leaves(pull(upstream)), jax.tree.leaves(want(upstream)), strict=True
        ):
            assert relative_error(one, other) < bound


def test_a_query_without_keys_attends_to_the_sink_alone():
    nothing = jnp.zeros((1, 1, 1, M), bool)

    def total(params, scores):
        return with_sink(params, scores, nothing).sum()

    assert total(SINK, SCORES) == 0.0
    for gradient in jax.tree.leaves(jax.grad(total, argnums=(0, 1))(SINK, SCORES)):
        assert np.all(np.isfinite(gradient))


MIXED = {
    "mix_scores": DRAW.normal(size=(H, H)).astype(np.float32),
    "mix_weights": DRAW.normal(size=(H, H)).astype(np.float32),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_heads_that_talk_share_their_scores_and_their_weights(mask):
    """Each head's scores, and then its weights, are sums over all heads (Shazeer et al. 2020)."""
    mask = np.asarray(mask) | (np.arange(M) == 0)
    into_scores, into_weights = (np.float64(MIXED[name]) for name in ("mix_scores", "mix_weights"))
    mixed = np.zeros(SCORES.shape)
    for h, i in np.ndindex(H, H):
        mixed[:, i] += SCORES[:, h] * into_scores[h, i]
    weights = softmax_by_hand(mixed, mask)
    want = np.zeros(SCORES.shape)
    for i, h in np.ndindex(H, H):
        want[:, h] += weights[:, i] * into_weights[i, h]
    assert relative_error(talking_heads(MIXED, SCORES, mask), want) < 1e-6


def test_talking_heads_keep_weights_of_a_narrower_type_for_the_backward_pass():
    upstream = DRAW.normal(size=SCORES.shape).astype(np.float32)

    def total(scores, kept):
        return (talking_heads(MIXED, scores, MASK, kept) * upstream).sum()

    exact, narrow = (jax.grad(total)(SCORES, kept) for kept in (None, "bfloat16"))
    assert 1e-5 < relative_error(narrow, exact) < 2**-6


def test_talking_heads_start_as_the_softmax():
    first = {
        name: parameter.initializer(jax.random.key(0), (H, H))
        for name, parameter in NORMALIZERS["talking_heads"].parameters.items()
    }
    np.testing.assert_array_equal(talking_heads(first, SCORES, MASK), softmax(SCORES, MASK))


PAIRS = 2  # of heads
LAMBDA = {"lambda": np.array([0.8, 0.3, -0.4, 1.7], np.float32)}


def paired(last, length):
    return DRAW.normal(size=(B, length, 2 * PAIRS, last)).astype(np.float32)


def test_a_pair_of_heads_is_one_head_of_the_differential_transformer():
    """Equation 1 of Ye et al. 2024: two groups of queries and keys, and values twice as wide."""
    d, v = 3, 6
    query, key, value = paired(d, L), paired(d, M), paired(v, M)
    same = {"lambda": np.repeat(LAMBDA["lambda"][::2], 2)}  # one number for a pair, as there
    want = np.zeros((B, L, PAIRS, 2 * v))
    for b, i, p in np.ndindex(B, L, PAIRS):
        maps = []
        for h in (2 * p, 2 * p + 1):
            scores = key[b, :, h].astype(np.float64) @ query[b, i, h] / np.sqrt(d)
            powers = np.where(MASK[b, 0, i], np.exp(scores), 0)
            maps.append(powers / powers.sum())
        wide = np.concatenate([value[b, :, 2 * p], value[b, :, 2 * p + 1]], axis=-1)
        want[b, i, p] = (maps[0] - same["lambda"][2 * p] * maps[1]) @ wide
    normalize = functools.partial(differential, same)
    got, _ = attend(query, key, value, MASK, normalize=normalize)
    assert relative_error(got.reshape(want.shape), want) < 1e-6


@pytest.mark.parametrize("kept", [None, "bfloat16"])
def test_each_head_subtracts_its_own_multiple_of_the_pair_s_second_softmax(kept):
    scores = DRAW.normal(size=(B, 2 * PAIRS, L, M)).astype(np.float32)
    maps = softmax_by_hand(scores, MASK)
    want = np.zeros(scores.shape)
    for h in range(2 * PAIRS):
        first = h // 2 * 2
        want[:, h] = maps[:, first] - LAMBDA["lambda"][h] * maps[:, first + 1]
    got = differential(LAMBDA, scores, MASK, kept)
    assert relative_error(got, want) < 1e-6
    sums = np.broadcast_to(1 - LAMBDA["lambda"][:, None], got.shape[1:3])
    np.testing.assert_allclose(got.sum(-1), np.broadcast_to(sums, got.shape[:3]), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_outputs_of_a_pair_are_normed_together(dtype):
    """Equation 3 of Ye et al. 2024, with epsilon 1e-5; the outputs of the last pair are tiny."""
    heads_BLHV = jnp.asarray(paired(5, L) * np.array([3, 3, 1e-3, 1e-3])[:, None], dtype)
    gain_HV = DRAW.normal(size=(2 * PAIRS, 5)).astype(np.float32)
    x = np.asarray(heads_BLHV, np.float64)
    want = np.zeros(x.shape)
    for b, i, p in np.ndindex(B, L, PAIRS):
        pair = x[b, i, 2 * p : 2 * p + 2]
        root = np.sqrt((pair**2).sum() / 10 + 1e-5)
        want[b, i, 2 * p : 2 * p + 2] = 0.2 * gain_HV[2 * p : 2 * p + 2] * pair / root
    got = normed_pairs({"gain": gain_HV}, heads_BLHV)
    assert got.dtype == heads_BLHV.dtype
    assert relative_error(got, want) < (1e-6 if dtype == "float32" else 2**-8)


def test_what_a_normalizer_says_of_its_weights_is_so():
    """Weights that need not sum to 1, or be positive, are refused where probabilities are read."""
    assert {name for name, entry in NORMALIZERS.items() if not entry.sums_to_1} == {
        "sink",
        "talking_heads",
        "differential",
    }
    signed = {name for name, entry in NORMALIZERS.items() if entry.signed}
    assert signed == {"talking_heads", "differential"}


@pytest.mark.parametrize(
    ("normalize", "params"),
    [(differential, LAMBDA), (talking_heads, MIXED)],
    ids=["pairs", "talking"],
)
def test_gradients_are_finite_differences(normalize, params):
    """Of the scores and of the parameters together, in double precision."""
    with jax.enable_x64(True):
        first = {name: np.float64(value) for name, value in params.items()}
        heads = len(next(iter(first.values())))
        scores, upstream, move = (DRAW.normal(size=(B, heads, L, M)) for _ in range(3))
        moves = {name: DRAW.normal(size=value.shape) for name, value in first.items()}

        def total(step):
            moved = {name: first[name] + step * moves[name] for name in first}
            return (normalize(moved, scores + step * move, MASK) * upstream).sum()

        slope = (total(1e-5) - total(-1e-5)) / 2e-5
        assert float(jax.grad(total)(0.0)) == pytest.approx(float(slope), rel=1e-6)
