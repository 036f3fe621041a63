"""Score functions against slow float64 loops; every dimension differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import SCORES_BY_HAND
from tests.fixtures.tiny import drawn_params, relative_error
from transformer_jax.model.attention.cached_attention import cached_score
from transformer_jax.model.attention.scores import SCORES, dot
from transformer_jax.model.positions.choices import rotated

B, L, M, H, K = 2, 3, 4, 5, 6
DRAW = np.random.default_rng(6)
QUERY, KEY = (DRAW.normal(size=(B, length, H, K)).astype(np.float32) for length in (L, M))
PARAMS = {
    name: drawn_params(score.parameters, {"heads": H, "d_k": K}, DRAW)
    for name, score in SCORES.items()
}
EVERY = pytest.mark.parametrize("score", SCORES)


@EVERY
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_a_score_equals_its_equation(score, size):
    """Also where the lengths of the vectors differ."""
    query, key = size * QUERY, KEY / size
    want = SCORES_BY_HAND[score](PARAMS[score], query, key)
    assert relative_error(SCORES[score].compute(PARAMS[score], query, key), want) < 1e-6


@EVERY
def test_scores_of_bfloat16_are_summed_in_float32(score):
    """Those over the cache of search, whose keys are head by head, are the same."""
    query, key = (jnp.asarray(x, jnp.bfloat16) for x in (QUERY, KEY))
    got = SCORES[score].compute(PARAMS[score], query, key)
    assert got.dtype == jnp.float32
    want = SCORES_BY_HAND[score](PARAMS[score], *(np.asarray(x, np.float32) for x in (query, key)))
    # These two round the turned query, or both vectors of length 1, to bfloat16 again.
    assert relative_error(got, want) < (2**-7 if score in ("bilinear", "cosine") else 1e-6)
    cached = cached_score(SCORES[score], PARAMS[score])(query, jnp.swapaxes(key, 1, 2))
    assert cached.dtype == jnp.float32
    assert relative_error(cached, got) < 1e-6


def test_in_bfloat16_the_gradient_is_that_of_the_rounded_gradient_of_the_scores():
    """Every operand is rounded to bfloat16, and the products are sums in float64."""
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in (QUERY, KEY)]
    upstream = DRAW.normal(size=(B, H, L, M)).astype(np.float32)
    _, vjp = jax.vjp(lambda q, k: dot(None, q, k), *narrow)
    query, key, rounded = (
        np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (*narrow, upstream)
    )
    by_query, by_key = vjp(jnp.asarray(upstream))
    assert by_query.dtype == by_key.dtype == jnp.bfloat16
    want = np.zeros_like(query), np.zeros_like(key)
    for b, h, i, j in np.ndindex(rounded.shape):
        want[0][b, i, h] += rounded[b, h, i, j] * key[b, j, h]
        want[1][b, j, h] += rounded[b, h, i, j] * query[b, i, h]
    for got, sums in zip((by_query, by_key), want, strict=True):
        assert relative_error(got, jnp.asarray(sums, jnp.bfloat16)) < 1e-4


@EVERY
def test_which_scores_of_rotated_vectors_depend_on_the_distance_alone(score):
    """Both positions are 7 later; the scores are computed in double precision."""
    with jax.enable_x64(True):
        params = jax.tree.map(np.float64, PARAMS[score])

        def scores_at(first):
            sides = (
                rotated(jnp.float64(x), first + jnp.arange(x.shape[1])[None]) for x in (QUERY, KEY)
            )
            return SCORES[score].compute(params, *sides)

        error = relative_error(scores_at(7), scores_at(0))
    assert error < 1e-12 if SCORES[score].rotates else error > 1e-3


def test_bilinear_begins_as_the_scaled_dot_product():
    first = SCORES["bilinear"].parameters["matrix"].initializer(None, (H, K, K))
    got = SCORES["bilinear"].compute({"matrix": first}, QUERY, KEY)
    assert relative_error(got, SCORES_BY_HAND["scaled_dot"](None, QUERY, KEY)) < 1e-6


def test_the_gradient_of_the_cosine_of_a_zero_vector_is_a_number():
    def total(query):
        return SCORES["cosine"].compute({"gain": np.ones(H, np.float32)}, query, KEY).sum()

    value, gradient = jax.value_and_grad(total)(np.zeros_like(QUERY))
    assert value == 0 and np.all(np.isfinite(gradient))
