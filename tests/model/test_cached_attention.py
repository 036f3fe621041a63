"""Attention over the cache of search against the references of equation 1."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import SCORES_BY_HAND, softmax_by_hand, values_by_hand
from tests.fixtures.tiny import drawn, relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.cached_attention import (
    attend_to_cache,
    cached_places,
    cached_score,
    empty_blocks,
    last_block,
    own_past,
    replaced,
    with_new_position,
)
from transformer_jax.model.attention.scores import SCORES

B, L, M, H, K, V = 2, 3, 4, 5, 6, 7
DRAW = np.random.default_rng(1)
QUERY, KEY, VALUE = (
    DRAW.normal(size=shape).astype(np.float32)
    for shape in [(B, L, H, K), (B, M, H, K), (B, M, H, V)]
)
PARAMS = {
    name: drawn(score.parameters, {"heads": H, "d_k": K}, DRAW) for name, score in SCORES.items()
}
MASK = DRAW.random((B, 1, L, M)) < 0.6
MASK[:, :, np.arange(L), np.arange(L)] = True  # each query may attend to something
LONGER = ((0, 0), (0, 0), (0, 0), (0, 2))  # a mask or bias of a longer cache


def attended(score, ends, bias=None):
    """Heads and weights over blocks of keys and values."""
    score = cached_score(SCORES[score], PARAMS[score])
    head_by_head = (np.split(np.swapaxes(x, 1, 2), ends[:-1], axis=2) for x in (KEY, VALUE))
    blocks = list(zip(*head_by_head, strict=True))
    attend = functools.partial(attend_to_cache, score=score, bias=bias)
    return jax.jit(attend)(QUERY, blocks, np.pad(MASK, LONGER))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("ends", [[M], [1, M], [2, 3, M]], ids=str)
def test_attention_to_a_cache_in_blocks_equals_equation_1(ends, score):
    heads, weights = attended(score, ends)
    want = softmax_by_hand(SCORES_BY_HAND[score](PARAMS[score], QUERY, KEY), MASK)
    assert relative_error(weights, want) < 1e-6
    assert relative_error(heads, values_by_hand(want, VALUE)) < 1e-6


def test_a_bias_is_added_to_the_scaled_scores():
    bias = DRAW.normal(size=(B, H, 1, M)).astype(np.float32)
    _, weights = attended("scaled_dot", [1, M], np.pad(bias, LONGER))
    want = softmax_by_hand(SCORES_BY_HAND["scaled_dot"](None, QUERY, KEY) + bias, MASK)
    assert relative_error(weights, want) < 1e-6


@pytest.mark.parametrize("score", SCORES)
def test_scores_of_bfloat16_keys_are_those_of_training(score):
    query, key = (jnp.asarray(x, jnp.bfloat16) for x in (QUERY, KEY))
    got = cached_score(SCORES[score], PARAMS[score])(query, jnp.swapaxes(key, 1, 2))
    assert got.dtype == jnp.float32
    assert relative_error(got, SCORES[score].compute(PARAMS[score], query, key)) < 1e-6


def test_a_hypothesis_sees_the_allowed_keys_of_its_own_ancestors():
    # Two beams, three positions: hypothesis 0 came from slots 0, 1, 0 and hypothesis 1 from
    # 0, 0, 1. The patterns allow positions 0 and 1. Keys are ordered by position, then by slot.
    ancestors = jnp.array([[[0, 1, 0], [0, 0, 1]]])
    allowed = jnp.array([True, True, False]).reshape(1, 1, 1, 3)
    mask = own_past(allowed, ancestors)
    assert mask.shape == (1, 1, 2, 6)
    assert mask[0, 0].astype(int).tolist() == [[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0]]


def test_the_newest_position_and_the_cache_are_of_one_sentence():
    newest, cached = cached_places(jnp.array([4, 0, 7]), 3)
    assert newest.positions.tolist() == [[4], [0], [7]]
    assert cached.positions.tolist() == [[0, 1, 2]]
    assert newest.segments.tolist() == [[1]] and cached.segments.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("length", "lengths"), [(5, [5]), (16, [16]), (20, [16, 4]), (70, [16, 16, 32, 6])]
)
def test_blocks_double_the_cache_and_the_last_one_is_cut(length, lengths):
    config = ModelConfig(d_model=12, num_heads=3, d_k=5, d_v=7)
    blocks = empty_blocks(config, batch=2, beams=4, length=length)
    assert [key.value.shape for key, _ in blocks] == [(2, 3, n, 4, 5) for n in lengths]
    assert [value.value.shape for _, value in blocks] == [(2, 3, n, 4, 7) for n in lengths]


@pytest.mark.parametrize("positions", [[0, 1], [1, 2], [3, 6]], ids=str)
def test_new_keys_and_values_are_written_at_each_row_s_position_and_nowhere_else(positions):
    lengths, beams = [2, 5], 4  # positions 0, 1 and 2 to 6
    blocks, want = [], []
    for length in lengths:
        block = [DRAW.normal(size=(B, H, length, beams, size)).astype("f") for size in (K, V)]
        blocks.append(tuple(block))
        want.append([np.array(x) for x in block])
    new = [DRAW.normal(size=(B, beams, H, size)).astype("f") for size in (K, V)]
    for b, position in enumerate(positions):
        block, place = (0, position) if position < 2 else (1, position - 2)
        for part in (0, 1):
            want[block][part][b, :, place] = np.swapaxes(new[part][b], 0, 1)
    got = with_new_position(
        [tuple(map(jnp.asarray, block)) for block in blocks], new, jnp.array(positions)
    )
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("new", [0, [[np.nan, 3.0], [-0.0, 1e-40], [7.0, 8.0]]], ids=["0", "rows"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_replaced_bit_by_bit_and_an_index_outside_is_dropped(dtype, new):
    old = np.array([[np.nan, -0.0], [1e-40, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype)
    new = np.array(new, dtype)
    want = old.copy()
    want[1], want[3] = (new, new) if new.ndim == 0 else (new[0], new[2])
    got = replaced(jnp.array(old), jnp.array([1, 4, 3]), jnp.array(new))
    assert got.dtype == dtype
    assert np.asarray(got).tobytes() == want.tobytes()


def test_a_bfloat16_cache_is_written_without_a_conversion_of_the_whole():
    def write(cache, new):
        return replaced(cache, (jnp.arange(2), slice(None), jnp.array([3, 1])), new)

    shapes = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in [(2, 8, 64, 4), (2, 8, 4)]]
    text = jax.jit(write, donate_argnums=0).lower(*shapes).compile().as_text()
    assert "f32[2,8,64,4]" not in text


@pytest.mark.parametrize(("position", "block"), [(0, 0), (15, 0), (16, 1), (31, 1), (32, 2)])
def test_the_last_block_has_the_furthest_position(position, block):
    positions_B = jnp.array([3, position, 0])
    assert last_block([16, 16, 32], positions_B) == block


def test_on_a_gpu_every_block_is_read_so_that_no_switch_is_left():
    traced = jax.jit(functools.partial(last_block, [16, 16, 32])).trace(jnp.zeros(2, jnp.int32))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.constant dense<2> : tensor<i32>" in text
    assert "stablehlo.compare" not in text
