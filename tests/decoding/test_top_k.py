"""The best entries of a row, chunk by chunk, against a stable sort."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding.top_k import top_k


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [8, 127, 256, 1000, 1024, 2113])
def test_top_k_is_exact_and_gives_equals_in_order(width, k):
    random = np.random.default_rng(width + k)
    x = random.normal(size=(40, 3, width)).astype(np.float32)
    x[10:20] = random.integers(-3, 3, (10, 3, width))  # mostly equals
    x[20:30] = random.choice([0.0, -0.0, -1.0], (10, 3, width), p=[0.01, 0.01, 0.98])
    x[30:40] = np.where(random.random((10, 3, width)) < 2 / width, -2.0, -np.inf)
    values, index = jax.jit(top_k, static_argnums=1)(x, k)
    want = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(index, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_no_row_is_sorted_even_if_the_caller_cuts_the_result(k):
    def cut(x):
        values, index = top_k(x, k)
        return values[..., :1], values, index

    compiled = jax.jit(cut).lower(jax.ShapeDtypeStruct((4, 3, 8000), jnp.float32)).compile()
    widths = re.findall(r"\[[\d,]*?(\d+)\]\S* sort\(", compiled.as_text())
    assert all(int(width) <= k for width in widths)  # only the numbers of the chunks
