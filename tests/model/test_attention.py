"""Attention against slow float64 references, one query at a time; every dimension differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import relative_error
from transformer_jax.model.attention import (
    MultiHeadAttention,
    attend_to_cache,
    attention_weights,
    causal_mask,
    dot_product_attention,
    segment_mask,
)

B, L, M, H, K, V, D = 2, 3, 4, 5, 6, 7, 8
DRAW = np.random.default_rng(1)
QUERY, KEY, VALUE = (
    DRAW.normal(size=shape).astype(np.float32)
    for shape in [(B, L, H, K), (B, M, H, K), (B, M, H, V)]
)
MASK = DRAW.random((B, 1, L, M)) < 0.6
MASK[:, :, np.arange(L), np.arange(L)] = True  # each query may attend to something


def weights_by_hand(query, key, mask):
    """Equation 1's softmax, one query at a time, over what it may attend to."""
    mask = np.broadcast_to(mask, (B, H, L, M))
    want = np.zeros((B, H, L, M))
    for b, h, i in np.ndindex(B, H, L):
        scores = key[b, :, h].astype(np.float64) @ query[b, i, h].astype(np.float64) / np.sqrt(K)
        weight = np.where(mask[b, h, i], np.exp(scores), 0.0)
        want[b, h, i] = weight / weight.sum()
    return want


def attention_by_hand(query, key, value, mask):
    weights, want = weights_by_hand(query, key, mask), np.zeros((B, L, H, V))
    for b, h, i in np.ndindex(B, H, L):
        want[b, i, h] = sum(
            weights[b, h, i, j] * value[b, j, h].astype(np.float64) for j in range(M)
        )
    return want


@pytest.mark.parametrize("ends", [[M], [1, M], [2, 3, M]])
def test_attention_to_a_cache_in_blocks_equals_equation_1(ends):
    head_by_head = [np.swapaxes(x, 1, 2) for x in (KEY, VALUE)]
    blocks = list(zip(*(np.split(x, ends[:-1], axis=2) for x in head_by_head), strict=True))
    mask_B1ML = np.pad(np.swapaxes(MASK, 2, 3), ((0, 0), (0, 0), (0, 2), (0, 0)))  # of a longer one
    got = jax.jit(attend_to_cache)(QUERY, blocks, mask_B1ML)
    assert relative_error(got, attention_by_hand(QUERY, KEY, VALUE, MASK)) < 1e-6


@pytest.mark.parametrize(
    "mask", [MASK, DRAW.random((B, H, L, M)) < 0.9, np.ones((1, 1, 1, 1), bool)]
)
def test_attention_equals_equation_1(mask):
    got = dot_product_attention(QUERY, KEY, VALUE, mask)
    assert relative_error(got, attention_by_hand(QUERY, KEY, VALUE, mask)) < 1e-6


def test_weights_sum_to_1_and_are_0_where_masked():
    got = np.asarray(attention_weights(QUERY, KEY, MASK))
    assert relative_error(got, weights_by_hand(QUERY, KEY, MASK)) < 1e-6
    np.testing.assert_allclose(got.sum(-1), 1.0, rtol=1e-6)
    assert (got[~np.broadcast_to(MASK, got.shape)] == 0).all()


def test_a_hand_worked_softmax():
    query = jnp.full((1, 1, 1, 4), 2.0)
    key = jnp.array([[1.0, 0, 0, 0], [0, 0, 0, 0]]).reshape(1, 2, 1, 4) * np.log(3)
    value = jnp.array([4.0, 0.0]).reshape(1, 2, 1, 1)
    # Scores 2 ln 3 / sqrt(4) = ln 3 and 0: weights 3/4 and 1/4.
    got = dot_product_attention(query, key, value, np.ones((1, 1, 1, 1), bool))
    assert float(got[0, 0, 0, 0]) == pytest.approx(3.0, rel=1e-6)


def test_a_query_that_may_attend_to_nothing_gives_the_mean_and_a_finite_gradient():
    mask = np.array(MASK)
    mask[1, :, 2] = False

    def total(query, key, value):
        return dot_product_attention(query, key, value, mask).sum()

    got = dot_product_attention(QUERY, KEY, VALUE, mask)
    np.testing.assert_allclose(got[1, 2], VALUE[1].mean(0), rtol=1e-5)
    for grad in jax.grad(total, argnums=(0, 1, 2))(QUERY, KEY, VALUE):
        assert np.isfinite(grad).all()


def test_bfloat16_inputs_still_get_a_float32_softmax():
    query, key, value = (jnp.asarray(x, jnp.bfloat16) for x in (QUERY, KEY, VALUE))
    rounded = (np.asarray(x.astype(jnp.float32)) for x in (query, key))
    weights = attention_weights(query, key, MASK)
    assert weights.dtype == jnp.float32
    assert relative_error(weights, weights_by_hand(*rounded, MASK)) < 1e-6
    assert dot_product_attention(query, key, value, MASK).dtype == jnp.bfloat16


def test_segments_attend_within_themselves_and_never_to_padding():
    mask = segment_mask(jnp.array([[1, 2, 2, 0]]), jnp.array([[1, 1, 2, 0, 0]]))
    assert mask.shape == (1, 1, 4, 5)
    assert mask[0, 0].astype(int).tolist() == [
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0],
    ]


def test_the_causal_mask_shows_a_position_itself_and_its_past():
    assert causal_mask(3)[0, 0].astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


@pytest.fixture(scope="module")
def multi_head():
    module = MultiHeadAttention(D, H, K, V, jnp.dtype("float32"))
    shapes = {"query": (D, H, K), "key": (D, H, K), "value": (D, H, V), "out": (H, V, D)}
    return module, {name: DRAW.normal(size=shape) for name, shape in shapes.items()}


def test_multi_head_attention_concatenates_its_heads(multi_head):
    module, params = multi_head
    x_BLD, memory_BMD = DRAW.normal(size=(B, L, D)), DRAW.normal(size=(B, M, D))
    # Section 3.2.2: head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), then Concat(...) W^O.
    query, key, value = (
        np.stack([x @ params[name][:, h] for h in range(H)], axis=2)
        for name, x in (("query", x_BLD), ("key", memory_BMD), ("value", memory_BMD))
    )
    heads = attention_by_hand(query, key, value, MASK)
    want = np.concatenate([heads[:, :, h] for h in range(H)], -1) @ params["out"].reshape(H * V, D)

    def apply(module, x, memory):
        return module(x, *module.keys_values(memory), MASK)

    f32 = jax.tree.map(jnp.float32, ({"params": params}, x_BLD, memory_BMD))
    got, aside = module.apply(f32[0], *f32[1:], method=apply, mutable="intermediates")
    assert relative_error(got, want) < 1e-5
    (weights,) = aside["intermediates"]["attention_weights"]  # what plots of attention read
    assert relative_error(weights, weights_by_hand(query, key, MASK)) < 1e-5


def test_projections_start_as_xavier_uniform_over_all_heads_together():
    module = MultiHeadAttention(40, H, 30, 50, jnp.dtype("float32"))
    x, mask = jnp.ones((1, 1, 40)), jnp.ones((1, 1, 1, 1), bool)

    def apply(module, x):
        return module(x, *module.keys_values(x), mask)

    init = module.init(jax.random.key(0), x, method=apply)["params"]
    assert set(init) == {"query", "key", "value", "out"}  # and no bias
    for name, columns in {"query": 150, "key": 150, "value": 250, "out": 250}.items():
        bound = np.sqrt(6 / (40 + columns))  # Glorot and Bengio 2010, equation 16
        assert 0.99 * bound < np.abs(init[name]).max() <= bound
        assert float(init[name].std()) == pytest.approx(bound / np.sqrt(3), rel=0.05)
    assert not np.allclose(init["query"], init["key"])
