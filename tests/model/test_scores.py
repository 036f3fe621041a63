"""Score functions against slow float64 loops; every dimension differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import (
    additive_by_hand,
    bilinear_by_hand,
    cosine_by_hand,
    dot_by_hand,
    softmax_by_hand,
)
from tests.fixtures.tiny import relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.scores import (
    SCORES,
    additive,
    bilinear,
    cosine,
    dot,
    scaled_dot,
)
from transformer_jax.model.positions.choices import rotated
from transformer_jax.model.sides.gated_unit import project
from transformer_jax.model.sides.recurrent import AttendingUnit, RecurrentEncoder, Remembered

B, L, M, H, K = 2, 3, 4, 5, 6
RNG = np.random.default_rng(6)  # for constants; a test makes its own
QUERY, KEY, VECTOR, BIAS = (
    RNG.normal(size=shape).astype(np.float32)
    for shape in [(B, L, H, K), (B, M, H, K), (H, K), (H, K)]
)
PARAMS = {"vector": VECTOR, "bias": BIAS}


def test_dot_is_the_sum_of_products():
    assert relative_error(dot(None, QUERY, KEY), dot_by_hand(QUERY, KEY)) < 1e-6


def test_in_bfloat16_the_gradient_is_that_of_the_rounded_gradient_of_the_scores():
    """Every operand is rounded to bfloat16, and the products are sums in float64."""
    rng = np.random.default_rng(7)
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in (QUERY, KEY)]
    upstream = rng.normal(size=(B, H, L, M)).astype(np.float32)
    scores, vjp = jax.vjp(lambda q, k: dot(None, q, k), *narrow)
    query, key, rounded = (
        np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (*narrow, upstream)
    )
    assert scores.dtype == jnp.float32
    assert relative_error(scores, dot_by_hand(query, key)) < 1e-6
    by_query, by_key = vjp(jnp.asarray(upstream))
    assert by_query.dtype == by_key.dtype == jnp.bfloat16
    want = np.zeros_like(query), np.zeros_like(key)
    for b, h, i, j in np.ndindex(rounded.shape):
        want[0][b, i, h] += rounded[b, h, i, j] * key[b, j, h]
        want[1][b, j, h] += rounded[b, h, i, j] * query[b, i, h]
    # A bfloat16 has 8 significant bits.
    assert relative_error(by_query, want[0]) < 2**-8
    assert relative_error(by_key, want[1]) < 2**-8


@pytest.mark.parametrize("score", SCORES)
def test_which_scores_of_rotated_vectors_depend_on_the_distance_alone(score):
    """Both positions are 7 later; the scores are computed in double precision."""
    with jax.enable_x64(True):
        draw = np.random.default_rng(9)
        sizes = {"heads": H, "d_k": K}
        params = {
            name: draw.normal(size=[sizes[size] for size in parameter.sizes])
            for name, parameter in SCORES[score].parameters.items()
        }

        def scores_at(first):
            sides = (
                rotated(jnp.float64(x), first + jnp.arange(x.shape[1])[None]) for x in (QUERY, KEY)
            )
            return SCORES[score].compute(params, *sides)

        error = relative_error(scores_at(7), scores_at(0))
    assert error < 1e-12 if SCORES[score].rotates else error > 1e-3


def test_scaled_dot_is_divided_by_the_root_of_d_k():
    got = scaled_dot(None, QUERY, KEY)
    assert relative_error(got, dot_by_hand(QUERY, KEY) / np.sqrt(K)) < 1e-6


def test_additive_equals_its_equation():
    want = additive_by_hand(QUERY, KEY, VECTOR, BIAS)
    assert relative_error(additive(PARAMS, QUERY, KEY), want) < 1e-6


def test_additive_has_the_gradient_of_its_equation():
    """Along a random direction of each argument: central differences in float64 by NumPy."""
    rng = np.random.default_rng(7)
    arrays = (QUERY, KEY, VECTOR, BIAS)
    upstream = rng.normal(size=(B, H, L, M))

    def total(query, key, vector, bias):
        scores = additive({"vector": vector, "bias": bias}, query, key)
        return (scores * upstream.astype(np.float32)).sum()

    def total_by_hand(n, moved_by):
        moved = [x.astype(np.float64) for x in arrays]
        moved[n] += moved_by
        return (additive_by_hand(*moved) * upstream).sum()

    for n, gradient in enumerate(jax.grad(total, argnums=(0, 1, 2, 3))(*arrays)):
        direction = rng.normal(size=arrays[n].shape)
        slope = total_by_hand(n, 1e-5 * direction) - total_by_hand(n, -1e-5 * direction)
        got = (np.asarray(gradient, np.float64) * direction).sum()
        assert got == pytest.approx(slope / 2e-5, rel=1e-4)


def test_bilinear_equals_its_equation_and_begins_as_the_scaled_dot_product():
    rng = np.random.default_rng(7)
    matrix = rng.normal(size=(H, K, K)).astype(np.float32)
    got = bilinear({"matrix": matrix}, QUERY, KEY)
    assert relative_error(got, bilinear_by_hand(QUERY, KEY, matrix)) < 1e-6
    first = SCORES["bilinear"].parameters["matrix"].initializer(None, (H, K, K))
    at_first = bilinear({"matrix": first}, QUERY, KEY)
    assert relative_error(at_first, scaled_dot(None, QUERY, KEY)) < 1e-6


def test_cosine_equals_its_equation_whatever_the_lengths_of_the_vectors():
    rng = np.random.default_rng(7)
    gain = rng.normal(size=H).astype(np.float32)
    want = cosine_by_hand(QUERY, KEY, gain)
    assert relative_error(cosine({"gain": gain}, QUERY, KEY), want) < 1e-6
    assert relative_error(cosine({"gain": gain}, 1e3 * QUERY, 1e-3 * KEY), want) < 1e-6


def test_the_gradient_of_the_cosine_of_a_zero_vector_is_a_number():
    def total(query):
        return cosine({"gain": np.ones(H, np.float32)}, query, KEY).sum()

    value, gradient = jax.value_and_grad(total)(np.zeros_like(QUERY))
    assert value == 0 and np.all(np.isfinite(gradient))


def test_scores_of_bfloat16_are_float32():
    query, key = (jnp.asarray(x, jnp.bfloat16) for x in (QUERY, KEY))
    rounded = [np.asarray(x, np.float32) for x in (query, key)]
    for score, want in (
        ("dot", dot_by_hand(*rounded)),
        ("scaled_dot", dot_by_hand(*rounded, K**-0.5)),
        ("additive", additive_by_hand(*rounded, VECTOR, BIAS)),
    ):
        got = SCORES[score].compute(PARAMS, query, key)
        assert got.dtype == jnp.float32
        assert relative_error(got, want) < 1e-6


def test_the_recurrent_decoder_attends_by_the_additive_score_with_one_head():
    rng = np.random.default_rng(7)
    d_model, hidden = 12, 7
    config = ModelConfig(d_model=d_model, d_hidden=hidden)
    unit = AttendingUnit(config, RecurrentEncoder)
    shapes = {
        "query": (hidden, hidden),
        "key": (2 * hidden, hidden),
        "score": (hidden,),
        "context": (2 * hidden, 3 * hidden),
        "start": (hidden, hidden),
        "readout": (3 * hidden + d_model, 2 * d_model),
        "readout_bias": (2 * d_model,),
    }
    gates = {"input": (d_model, 3 * hidden), "bias": (3 * hidden,)}
    gates |= {name: (hidden, hidden) for name in ("update", "reset", "candidate")}
    params = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    params["unit"] = {name: rng.normal(size=s).astype(np.float32) for name, s in gates.items()}
    annotation = rng.normal(size=(B, M, 2 * hidden)).astype(np.float32)
    state = rng.normal(size=(B, L, hidden)).astype(np.float32)  # of L beams
    mask = np.ones((B, 1, M), bool)

    def weights_of(unit):
        memory = Remembered(unit.keys(annotation), annotation, None)
        return unit.step(state, jnp.zeros((B, L, 3 * hidden)), memory, mask)[2]

    query = project(state, params["query"], "float32")[:, :, None]
    key = project(annotation, params["key"], "float32")[:, :, None]
    one_head = {"vector": params["score"][None], "bias": np.zeros((1, hidden), np.float32)}
    scores = np.asarray(additive(one_head, query, key), np.float64)
    want = softmax_by_hand(scores, True)[:, 0]
    assert relative_error(unit.apply({"params": params}, method=weights_of), want) < 1e-5
