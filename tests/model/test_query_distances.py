"""Vectors of distances (Shaw et al. 2018) and contextual positions (Golovneva et al. 2024).

tests/model/test_mixers.py has attention with vectors of distances.
"""

import math

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
    CONTEXTUAL,
    Pairs,
    between,
    in_row,
    products,
    spread_in_row,
)

B, L, H, K, REACH = 2, 6, 3, 4, 2
DRAW = np.random.default_rng(4)
SENTENCES = np.array([1, 1, 1, 1, 2, 2])  # two in one row
ONE_ROW = SENTENCES[:, None] == SENTENCES
DISTANCE = np.arange(L) - np.arange(L)[:, None]
MASKS = {"both ways": ONE_ROW, "causal": np.tril(ONE_ROW), "window": ONE_ROW & (abs(DISTANCE) < 3)}


def counted(scores_M: np.ndarray, mask_M: np.ndarray, query: int) -> list[float]:
    """The position of each key for one query, by a loop over the keys in between."""
    gates = [
        1 / (1 + math.exp(-score)) * seen for score, seen in zip(scores_M, mask_M, strict=True)
    ]
    found = []
    for key in range(len(gates)):
        low, high = sorted((key, query))
        total = sum(gates[low : high + 1])
        found.append(total if key > query else -total)
    return found


@pytest.mark.parametrize("name", MASKS)
def test_attention_equals_a_loop_over_every_pair(name):
    query, key, value = (DRAW.normal(size=(B, L, H, K)) for _ in range(3))
    vectors = DRAW.normal(size=(2 * REACH + 1, K))
    mask = MASKS[name]
    scores = np.einsum("blhk,bmhk->bhlm", query, key) * K**-0.5
    want = np.array(scores)
    for b, h, i in np.ndindex(B, H, L):
        for m, position in enumerate(counted(scores[b, h, i], mask[i], i)):
            at = min(max(position, -REACH), REACH) + REACH
            low, share = math.floor(at), at - math.floor(at)
            vector = (1 - share) * vectors[low] + share * vectors[min(low + 1, 2 * REACH)]
            want[b, h, i, m] += query[b, i, h] @ vector * K**-0.5
    want = softmax_by_hand(want, mask[None, None])

    query, key, value, vectors = map(jnp.float32, (query, key, value, vectors))
    of_keys = in_row(Blocks(L, L))
    params = {"contextual_keys": vectors}

    def normalize(scores, mask):
        pairs = Pairs(query * K**-0.5, scores, mask, of_keys)
        return softmax(scores + CONTEXTUAL.term(params, pairs), mask)

    _, got = attend(query, key, value, mask[None, None], normalize=normalize)
    assert relative_error(got, want) < 1e-6
    assert CONTEXTUAL.values is None, "values get nothing"


def test_positions_between_whole_numbers_are_interpolated_and_those_beyond_are_clipped():
    x = jnp.asarray([10.0, 20.0, 40.0, 80.0, 160.0])[None, None, None]
    at = jnp.asarray([-9.0, -2.0, -1.75, -0.5, 0.0, 0.25, 1.5, 2.0, 3.0])[None, None, None]
    want = [10.0, 10.0, 12.5, 30.0, 40.0, 50.0, 120.0, 160.0, 160.0]
    np.testing.assert_allclose(between(x, at)[0, 0, 0], want)
    slope = jax.grad(lambda at: between(x, at).sum())(at)[0, 0, 0]
    np.testing.assert_allclose(slope[jnp.array([2, 3, 5, 6])], [10.0, 20.0, 40.0, 80.0])
    np.testing.assert_allclose(slope[jnp.array([0, 8])], 0)


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


def test_products_of_bfloat16_are_float32():
    query, vectors = (DRAW.normal(size=shape) for shape in ((B, 3, H, K), (5, K)))
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in (query, vectors)]
    got = products(*narrow)
    exact = [np.asarray(x, np.float64) for x in narrow]
    assert got.dtype == jnp.float32
    assert relative_error(got, np.einsum("blhk,ck->bhlc", *exact)) < 1e-6
