"""Sinusoids against the equation and values worked by hand; learned positions' limit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import lay_out, model_inputs, random_pairs, random_params, tiny_model
from transformer_jax.model.positions import sinusoids
from transformer_jax.model.transformer import Positions


def test_sinusoids_worked_by_hand():
    want = [
        [0.0, 1.0, 0.0, 1.0],
        [0.84147098, 0.54030231, 0.00999983, 0.99995000],  # sin 1, cos 1, sin 0.01, cos 0.01
        [0.90929743, -0.41614684, 0.01999867, 0.99980001],
    ]
    got = sinusoids(3, 4)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-7)


def test_sinusoids_equal_the_equation_far_out_too():
    length, d_model = 5001, 6
    got = sinusoids(length, d_model)
    for pos in (0, 1, 2, 17, 499, 5000):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            assert got[pos, 2 * i] == pytest.approx(math.sin(angle), abs=1e-7)
            assert got[pos, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-7)


def test_sine_and_cosine_interleave_and_do_not_stand_in_halves():
    start = sinusoids(1, 8)[0]  # sines of 0 are 0, cosines 1
    assert start.tolist() == [0, 1] * 4


def test_an_odd_number_of_features_is_refused():
    with pytest.raises(ValueError, match="d_model=7 is odd"):
        sinusoids(3, 7)


def positions_of(kind, positions, length, **variables):
    module = Positions(tiny_model(positions=kind).config)
    return module.apply(variables, jnp.asarray(positions), length)


def test_a_position_takes_the_row_of_its_number():
    places = [[0, 1, 2, 0, 1], [3, 0, 0, 0, 0]]  # packed: the second sentence starts again at 0
    got = positions_of("sinusoidal", places, 5)
    np.testing.assert_array_equal(got, sinusoids(5, 12)[np.array(places)])
    table = np.random.default_rng(0).normal(size=(18, 12)).astype(np.float32)
    got = positions_of("learned", places, 5, params={"table": table})
    np.testing.assert_array_equal(got, table[np.array(places)])


def test_learned_positions_refuse_what_they_have_not_learned():
    table = jnp.zeros((18, 12))
    assert positions_of("learned", [[0]], 18, params={"table": table}).shape == (1, 1, 12)
    with pytest.raises(ValueError, match="19 positions .* model.max_positions=18 .* no limit"):
        positions_of("learned", [[0]], 19, params={"table": table})


def test_without_positions_the_order_of_the_source_is_not_seen():
    pairs = random_pairs(0, [(9, 7)])
    shuffled = [(pairs[0][0][::-1], pairs[0][1])]
    differences = {}
    for kind in ("none", "sinusoidal"):
        model = tiny_model(positions=kind, num_layers=1)
        params = random_params(model)
        one, other = (
            jax.jit(model.apply)({"params": params}, *model_inputs(lay_out(p, [[0]], 9, 7)))
            for p in (pairs, shuffled)
        )
        differences[kind] = np.abs(one - other).max()
    assert differences["none"] < 1e-4 < 0.01 < differences["sinusoidal"]


@pytest.mark.parametrize(("positions", "is_a_bag"), [("none", True), ("sinusoidal", False)])
def test_without_positions_the_encoder_sees_a_bag_of_subwords(positions, is_a_bag):
    model = tiny_model(positions=positions)
    ids = np.arange(5, 14)[None]
    order = np.random.default_rng(0).permutation(9)
    places = np.arange(9)[None]

    def encoded(ids):
        variables = {"params": random_params(model)}
        return model.apply(variables, ids, np.ones_like(ids), places, method="encode")[0]

    close = np.allclose(encoded(ids[:, order]), encoded(ids)[order], atol=1e-5)
    assert close == is_a_bag
