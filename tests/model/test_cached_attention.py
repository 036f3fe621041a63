"""The cache of search: its blocks and writes.

tests/model/test_harness.py compares search's steps with all positions at once, for every score;
tests/model/test_scores.py has the scores of narrow keys.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.cached_attention import (
    empty_blocks,
    last_block,
    replaced,
    with_new_position,
)

B, H, K = 2, 5, 6
DRAW = np.random.default_rng(1)


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
        block = [DRAW.normal(size=(B, H, length, beams, size)).astype("f") for size in (K, 7)]
        blocks.append(tuple(block))
        want.append([np.array(x) for x in block])
    new = [DRAW.normal(size=(B, beams, H, size)).astype("f") for size in (K, 7)]
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
