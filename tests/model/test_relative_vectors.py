"""Vectors of distances (Shaw et al. 2018), against loops over every pair in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import softmax_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.windows import Blocks
from transformer_jax.model.positions.query_distances import (
    in_row,
    products,
    spread_in_cache,
    spread_in_row,
    with_term,
)
from transformer_jax.model.positions.relative_vectors import RELATIVE

B, H, K, V = 2, 3, 4, 5
DRAW = np.random.default_rng(2)


@pytest.mark.parametrize(
    ("queries", "keys", "behind", "reach"),
    [(5, 5, 0, 2), (5, 5, 0, 9), (1, 1, 0, 1), (4, 9, 3, 2), (4, 9, 5, 30), (7, 2, 0, 3)],
)
def test_a_row_s_keys_get_the_number_of_their_distance(queries, keys, behind, reach):
    x = DRAW.normal(size=(B, H, queries, 2 * reach + 1)).astype(np.float32)
    got = spread_in_row(jnp.asarray(x), keys, behind)
    assert got.shape == (B, H, queries, keys)
    for i, m in np.ndindex(queries, keys):
        distance = np.clip(m - i - behind, -reach, reach)
        np.testing.assert_array_equal(got[:, :, i, m], x[:, :, i, distance + reach])


def test_a_cache_s_keys_get_the_number_of_their_distance():
    x = DRAW.normal(size=(B, H, 2, 5)).astype(np.float32)
    distance = np.array([[-4, -1, 0, 1], [-2, 3, 2, -1]])
    got = spread_in_cache(jnp.asarray(x), jnp.asarray(distance))
    for b, m in np.ndindex(B, 4):
        want = x[b, :, :, np.clip(distance[b, m], -2, 2) + 2]
        np.testing.assert_array_equal(got[b, :, :, m], want)


def test_products_of_bfloat16_are_float32():
    query, vectors = (DRAW.normal(size=shape) for shape in ((B, 3, H, K), (5, K)))
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in (query, vectors)]
    got = products(*narrow)
    exact = [np.asarray(x, np.float64) for x in narrow]
    assert got.dtype == jnp.float32
    assert relative_error(got, np.einsum("blhk,ck->bhlc", *exact)) < 1e-6


@pytest.mark.parametrize("with_values", [True, False])
def test_attention_with_vectors_equals_a_loop_over_every_pair(with_values):
    """Equations 3 and 4: keys k + a and values v + a, where a belongs to the distance."""
    length, reach = 6, 2
    query, key = (DRAW.normal(size=(B, length, H, K)) for _ in range(2))
    value = DRAW.normal(size=(B, length, H, V))
    params = {"relative_keys": DRAW.normal(size=(2 * reach + 1, K))}
    own_values = np.zeros((2 * reach + 1, V))
    if with_values:
        own_values = params["relative_values"] = DRAW.normal(size=(2 * reach + 1, V))
    mask = np.tril(np.ones((1, 1, length, length), bool))
    scores, want = np.zeros((B, H, length, length)), np.zeros((B, length, H, V))
    near = np.clip(np.arange(length) - np.arange(length)[:, None], -reach, reach) + reach
    for b, h, i, m in np.ndindex(*scores.shape):
        vector = key[b, m, h] + params["relative_keys"][near[i, m]]
        scores[b, h, i, m] = query[b, i, h] @ vector * K**-0.5
    weights = softmax_by_hand(scores, mask)
    for b, h, i, m in np.ndindex(*scores.shape):
        want[b, i, h] += weights[b, h, i, m] * (value[b, m, h] + own_values[near[i, m]])

    f32 = functools.partial(jax.tree.map, jnp.float32)
    query, key, value, params = f32((query, key, value, params))
    of_keys = in_row(Blocks(length, length))
    normalize = with_term(RELATIVE, params, query * K**-0.5, of_keys, softmax)
    heads, got = attend(query, key, value, mask, normalize=normalize)
    heads = RELATIVE.values(params, heads, got, of_keys)
    assert relative_error(got, weights) < 1e-6
    assert relative_error(heads, want) < 1e-6
