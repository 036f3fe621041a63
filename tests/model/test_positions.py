"""Each kind of positions and biases of distances, by hand and against the authors' formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import rotated_by_hand
from tests.fixtures.tiny import (
    batch_of,
    model_inputs,
    random_params,
    relative_error,
    tiny_and_params,
    tiny_model,
)
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import unboxed
from transformer_jax.model.positions.biases import (
    BUCKETS,
    POSITION_BIASES,
    bucket_bias,
    bucket_of,
    linear_bias,
    logarithmic_bias,
    slopes,
)
from transformer_jax.model.positions.choices import (
    StackPositions,
    paper_wavelengths,
    rotated,
    sinusoids,
    t2t_wavelengths,
)
from transformer_jax.text.batches import Packed


def test_sinusoids_equal_the_equation_far_out_too():
    length, d_model = 5001, 6
    got = sinusoids(length, d_model)
    assert got.dtype == np.float32
    for pos in (0, 1, 2, 17, 499, 5000):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            assert got[pos, 2 * i] == pytest.approx(math.sin(angle), abs=1e-7)
            assert got[pos, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-7)


def test_the_wavelengths_of_tensor2tensor_end_at_10000():
    got = sinusoids(51, 512, t2t_wavelengths)
    for pos, i in [(1, 0), (3, 50), (50, 50), (50, 255)]:
        # get_timing_signal_1d: log_timescale_increment = log(10000) / (num_timescales - 1)
        angle = pos * math.exp(-i * math.log(10000.0) / (512 / 2 - 1))
        assert got[pos, 2 * i] == pytest.approx(math.sin(angle), abs=1e-7)
        assert got[pos, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-7)
    assert t2t_wavelengths(512)[-1] == pytest.approx(10_000)
    # Relative to the paper's, the last phase differs by 3.7 % and the 50th by 0.7 %.
    ratio = paper_wavelengths(512) / t2t_wavelengths(512)
    assert ratio[255] == pytest.approx(1 / 1.0366, rel=1e-4)
    assert ratio[50] == pytest.approx(1 / 1.0071, rel=1e-4)


def test_an_odd_number_of_features_is_refused():
    with pytest.raises(ValueError, match="d_model=7 is odd"):
        sinusoids(3, 7)


def positions_of(kind, positions, length, **variables):
    module = StackPositions(tiny_model(positions=kind).config)
    return module.apply(variables, jnp.asarray(positions), length)


def test_a_position_takes_the_row_of_its_number():
    places = [[0, 1, 2, 0, 1], [3, 0, 0, 0, 0]]  # packed: the second sentence starts again at 0
    table = np.random.default_rng(0).normal(size=(18, 12)).astype(np.float32)
    for kind, want in (
        ("sinusoidal", sinusoids(5, 12)),
        ("sinusoidal_t2t", sinusoids(5, 12, t2t_wavelengths)),
        ("learned", table),
    ):
        got = positions_of(kind, places, 5, params={"table": table})
        np.testing.assert_array_equal(got, want[np.array(places)])
    got = positions_of("index", places, 5, params={"direction": table[0]})
    np.testing.assert_allclose(got, np.array(places)[..., None] * table[0], rtol=1e-6)


@pytest.mark.parametrize(("kind", "name"), [("learned", "table"), ("index", "direction")])
def test_learned_vectors_start_with_the_size_of_embeddings(kind, name):
    config = tiny_model(positions=kind, d_model=1_024, max_positions=64).config
    positions = jnp.zeros((1, 1), jnp.int32)
    made = unboxed(StackPositions(config).init(jax.random.key(0), positions, 1))
    assert np.std(made["params"][name]) == pytest.approx(1_024**-0.5, rel=0.1)


def test_learned_positions_refuse_what_they_have_not_learned():
    table = jnp.zeros((18, 12))
    assert positions_of("learned", [[0]], 18, params={"table": table}).shape == (1, 1, 12)
    with pytest.raises(ValueError, match="19 positions .* model.max_positions=18 .* no limit"):
        positions_of("learned", [[0]], 19, params={"table": table})


@pytest.mark.parametrize(("positions", "is_a_bag"), [("none", True), ("sinusoidal", False)])
def test_without_positions_the_encoder_sees_a_bag_of_subwords(positions, is_a_bag):
    model = tiny_model(positions=positions)
    ids = np.arange(5, 14)[None]
    order = np.random.default_rng(0).permutation(9)
    places = np.arange(9)[None]

    def encoded(ids):
        variables = {"params": random_params(model)}
        source = Packed(ids, np.ones_like(ids), places)
        return model.apply(variables, source, method="encode")[0]

    close = np.allclose(encoded(ids[:, order]), encoded(ids)[order], atol=1e-5)
    assert close == is_a_bag


B, L, H, K = 2, 5, 3, 6
DRAW = np.random.default_rng(5)


def test_rotated_features_are_complex_numbers_times_a_turn():
    x = DRAW.normal(size=(B, L, H, K)).astype(np.float32)
    positions = np.array([[0, 1, 2, 3, 4], [0, 1, 0, 100, 7]])
    got = rotated(jnp.asarray(x), jnp.asarray(positions))
    assert relative_error(got, rotated_by_hand(x, positions)) < 1e-5
    np.testing.assert_array_equal(got[:, 0], x[:, 0])  # position 0 turns nothing


def test_turned_bfloat16_features_are_computed_in_float32_and_stay_bfloat16():
    x = jnp.asarray(DRAW.normal(size=(1, 1, H, K)), jnp.bfloat16)
    got = rotated(x, jnp.array([[301]]))  # bfloat16 has no 301
    assert got.dtype == jnp.bfloat16
    want = rotated_by_hand(np.asarray(x, np.float64), np.array([[301]]))
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2**-8)


@pytest.mark.parametrize(
    ("num_heads", "want"),
    [
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        (3, [1 / 16, 1 / 256, 1 / 4]),
        (1, [1 / 256]),
    ],
)
def test_slopes_by_hand(num_heads, want):
    got = slopes(num_heads)
    assert got.dtype == np.float32
    assert got.tolist() == want


def test_linear_bias_by_hand_is_symmetric():
    config = ModelConfig(num_heads=3)  # slopes 1/16, 1/256 and 1/4
    got = linear_bias(config, {}, jnp.array([[0, 1, -2]]), causal=False)
    assert got.tolist() == [[[0, -1 / 16, -1 / 8]], [[0, -1 / 256, -1 / 128]], [[0, -1 / 4, -0.5]]]


def authors_bucket(distance, causal):
    """The formula of the authors' code: a logarithm, rounded down."""
    buckets = BUCKETS
    far = -min(distance, 0)
    offset = 0
    if not causal:
        buckets = BUCKETS // 2
        far = abs(distance)
        offset = BUCKETS // 2 * (distance > 0)
    exact = buckets // 2
    if far < exact:
        return offset + far
    # The epsilon makes up for powers that are whole numbers and rounded to a little less.
    share = math.log(far / exact) / math.log(128 / exact) * (buckets - exact)
    return offset + min(exact + math.floor(share + 1e-9), buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_the_authors(causal):
    distance = np.arange(-600, 600)
    got = np.asarray(bucket_of(jnp.asarray(distance), causal))
    assert got.tolist() == [authors_bucket(d, causal) for d in distance]
    assert set(got) == set(range(BUCKETS)) - ({BUCKETS // 2} if not causal else set())


def test_a_bucket_s_bias_is_its_row_of_the_table():
    table = np.random.default_rng(0).normal(size=(BUCKETS, 3)).astype(np.float32)
    distance = jnp.array([[-200, -9, 0, 1, 9]])
    got = bucket_bias(ModelConfig(num_heads=3), {"buckets": table}, distance, causal=False)
    assert got.shape == (3, 1, 5)
    np.testing.assert_array_equal(got[:, 0].T, table[[15, 8, 0, 17, 24]])
    decoder = bucket_bias(ModelConfig(num_heads=3), {"buckets": table}, distance, causal=True)
    np.testing.assert_array_equal(decoder[:, 0].T, table[[31, 9, 0, 0, 0]])


@pytest.mark.parametrize("causal", [False, True])
def test_the_logarithmic_bias_equals_its_equation(causal):
    """Chi et al. 2022: -r1 log(1 + r2 |i - j|), with r1 and r2 of each head."""
    height, rate = np.random.default_rng(1).normal(size=(2, 3))
    positions = np.array([[0, 1, 2, 3], [7, 0, 5, 90]])
    params = {"height": jnp.float32(height), "rate": jnp.float32(rate)}
    distance = positions[:, None] - positions[:, :2, None]  # of 2 queries, of 4 keys
    got = logarithmic_bias(ModelConfig(num_heads=3), params, jnp.asarray(distance), causal)
    assert got.shape == (2, 3, 2, 4)
    for b, h, i, j in np.ndindex(got.shape):
        r1, r2 = (math.log(1 + math.exp(x[h])) for x in (height, rate))
        want = -r1 * math.log(1 + r2 * abs(positions[b, i] - positions[b, j]))
        assert got[b, h, i, j] == pytest.approx(want, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("name", "high"), [("height", 2.0), ("rate", 1.0)])
def test_the_logarithmic_bias_begins_with_uniform_numbers(name, high):
    initializer, *_ = POSITION_BIASES["kerple"].parameters[name]
    positive = jax.nn.softplus(initializer(jax.random.key(0), (4_000,)))
    quantiles = np.quantile(positive, [0.0, 0.25, 0.5, 0.75, 1.0])
    want = 0.01 + (high - 0.01) * np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(quantiles, want, atol=0.03 * high)


def test_the_encoder_s_buckets_are_of_both_sides_and_the_decoder_s_of_the_past():
    """Distance 8 is in bucket 8 of 16 on each side, or of 32; distance 9 is in 8 or in 9."""
    model, params = tiny_and_params(positions="t5", num_layers=1)
    inputs = model_inputs(batch_of((11, 10)))

    def total(params):
        return (model.apply({"params": params}, *inputs) ** 2).sum()

    gradient = jax.jit(jax.grad(total))(params)
    used = {
        side: np.flatnonzero(np.abs(gradient[f"{side}_positions"]["buckets"]).max(1)).tolist()
        for side in ("src", "tgt")
    }
    assert used == {"src": [*range(9), *range(17, 25)], "tgt": [*range(10)]}
