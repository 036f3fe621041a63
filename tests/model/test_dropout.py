"""Dropout's masks: their rate, their independence, and the row they belong to."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import VOCABULARY, batch_of, model_inputs, random_params, tiny_model
from transformer_jax.model.layers import dropout
from transformer_jax.model.layers.dropout import (
    Dropout,
    NoiseSource,
    hashed,
    keep_from,
    mix,
    noise_bits,
    uniform_noise,
)
from transformer_jax.model.outputs.cross_entropy import LossSettings

ROWS, LENGTH, FEATURES = 48, 40, 56
AXES = pytest.mark.parametrize("axis", [0, 1, 2], ids=["rows", "positions", "features"])
DRAWN = jax.jit(keep_from, static_argnums=(0, 1, 3))
SIGMAS = 5.0  # of a normal deviate: one chance in a million each


def mask(seed=0, rows=range(ROWS), rate=0.5, length=LENGTH, features=FEATURES):
    key = jax.random.fold_in(hashed(jax.random.key(7)), seed)
    noise_source = NoiseSource(noise_bits(key), jnp.array(list(rows)))
    return np.asarray(DRAWN(0, (length, features), noise_source, rate))


def signs(*args, **kwargs):
    """+1 and -1 with equal odds: products of independent signs average to 0."""
    return mask(*args, **kwargs) * 2.0 - 1.0


def apply(module, x, rows, key=None):
    """The dropout of a module in the rows with these numbers."""

    def call(module):
        return module(x, module.noise_source(rows))

    return nn.apply(call, module)({}, rngs={} if key is None else {"dropout": key})


def assert_averages_to_0(products):
    assert abs(products.mean()) < SIGMAS / np.sqrt(products.size)


@AXES
def test_every_row_position_and_feature_is_dropped_at_the_rate(axis):
    rate = 0.1
    dropped = ~mask(rate=rate)
    counts = dropped.sum(tuple({0, 1, 2} - {axis}))
    trials = dropped.size / dropped.shape[axis]
    chi_square = ((counts - rate * trials) ** 2 / (trials * rate * (1 - rate))).sum()
    freedom = dropped.shape[axis]  # its mean; its standard deviation is sqrt(2 freedom)
    assert abs(chi_square - freedom) < SIGMAS * np.sqrt(2 * freedom)


@AXES
@pytest.mark.parametrize("distance", [1, 2, 8, 32, 256])
def test_neighbors_are_independent(axis, distance):
    sizes = [ROWS, LENGTH, FEATURES]
    sizes[axis] += distance
    rows, length, features = sizes
    s = np.moveaxis(signs(rows=range(rows), length=length, features=features), axis, 0)
    assert_averages_to_0(s[distance:] * s[:-distance])


def noise(rows=range(ROWS), heads=3, length=40, keys=19):
    words = noise_bits(hashed(jax.random.key(7)))
    shape = (len(rows), heads, length, keys)
    return np.asarray(uniform_noise(NoiseSource(words, jnp.array(list(rows))), shape))


def test_uniform_noise_has_every_value_between_0_and_1_as_often():
    counts, _ = np.histogram(noise(), bins=64, range=(0, 1))
    mean = counts.sum() / 64
    assert counts.sum() == ROWS * 3 * 40 * 19
    chi_square = ((counts - mean) ** 2 / mean).sum()
    assert abs(chi_square - 63) < SIGMAS * np.sqrt(2 * 63)
    assert 0 < noise().min() < 1e-4 and 1 - 1e-4 < noise().max() < 1


@pytest.mark.parametrize(("bits", "want"), [(0, 2**-24), (2**32 - 1, 1 - 2**-24)])
def test_uniform_noise_is_never_0_or_1_whatever_the_bits(bits, want, monkeypatch):
    monkeypatch.setattr(dropout, "mix", lambda x: jnp.full_like(x, bits))
    assert noise([0], 1, 1, 1).item() == want


def test_uniform_noise_belongs_to_row_head_position_and_key_whatever_the_shape():
    whole = noise()
    np.testing.assert_array_equal(noise([7, 2], 2, 9, 5), whole[[7, 2], :2, :9, :5])


@pytest.mark.parametrize("axis", [0, 1, 2, 3], ids=["rows", "heads", "positions", "keys"])
def test_neighbors_in_uniform_noise_are_independent(axis):
    centered = np.moveaxis(noise(), axis, 0) - 0.5
    products = centered[1:] * centered[:-1]
    assert abs(products.mean()) < SIGMAS * (1 / 12) / np.sqrt(products.size)


@pytest.mark.parametrize("distance", [65_536, 2**24])
def test_rows_that_share_their_low_bits_are_independent(distance):
    ahead = [row + distance for row in range(ROWS)]
    assert_averages_to_0(signs() * signs(rows=ahead))


@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1, 2)])
def test_corners_of_a_rectangle_are_independent(axes):
    # A hash that adds or xors its coordinates without mixing passes every test of pairs.
    s = np.moveaxis(signs(), axes, (0, 1))
    assert_averages_to_0(s[1:, 1:] * s[1:, :-1] * s[:-1, 1:] * s[:-1, :-1])


def test_keys_give_masks_whose_pairs_fill_their_four_cells_as_independent_ones_do():
    rate = 0.3
    one, other = mask(0, rate=rate), mask(1, rate=rate)
    expected = one.size * np.outer([rate, 1 - rate], [rate, 1 - rate])
    counts = np.histogram2d(one.ravel(), other.ravel(), bins=2)[0]
    chi_square = ((counts - expected) ** 2 / expected).sum()  # 3 degrees of freedom
    assert chi_square < 30.7  # exceeded once in a million


def test_a_row_has_its_mask_alone_or_in_any_batch():
    whole = mask()
    np.testing.assert_array_equal(mask(rows=[17]), whole[[17]])
    np.testing.assert_array_equal(mask(rows=[40, 3, 9]), whole[[40, 3, 9]])
    shorter = mask(length=LENGTH - 5, features=FEATURES - 3)
    np.testing.assert_array_equal(shorter, whole[:, :-5, :-3])


def test_what_is_kept_is_scaled_so_that_the_expectation_stays():
    x = jnp.full((ROWS, LENGTH, FEATURES), 3.0, jnp.bfloat16)
    got = apply(Dropout(0.25), x, jnp.arange(ROWS), jax.random.key(0))
    assert got.dtype == jnp.bfloat16
    values, counts = np.unique(np.asarray(got, np.float32), return_counts=True)
    assert values.tolist() == [0.0, 4.0]
    error = SIGMAS * np.sqrt(0.25 * 0.75 * x.size)
    assert counts[0] == pytest.approx(0.25 * x.size, abs=error)


def test_without_rows_or_at_rate_0_nothing_is_dropped():
    x = jnp.ones((2, 3, 4))
    assert apply(Dropout(0.9), x, None) is x
    assert apply(Dropout(0.0), x, jnp.arange(2)) is x


def test_mix_is_lowbias32_and_flips_half_of_the_bits():
    def by_hand(x):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ (x >> shift)) * factor % 2**32
        return x ^ (x >> 16)

    words = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    mixed = np.asarray(mix(jnp.asarray(words)))
    assert mixed[:9].tolist() == [by_hand(int(x)) for x in words[:9]]
    for bit in range(32):
        flipped = mixed ^ np.asarray(mix(jnp.asarray(words ^ np.uint32(1 << bit))))
        share = np.unpackbits(flipped[:, None].view(np.uint8), axis=1).mean(0)
        assert (abs(share - 0.5) < 0.05).all()


def outputs_of_dropout(model, *inputs, **kwargs):
    """The output `[rows, length, features]` of each dropout of the model."""

    def captured(params):
        return model.apply(
            {"params": params},
            *inputs,
            rngs={"dropout": jax.random.key(5)},
            capture_intermediates=lambda module, method: isinstance(module, Dropout),
            **kwargs,
        )[1]

    leaves = jax.tree.leaves(jax.jit(captured)(random_params(model))["intermediates"])
    return [np.asarray(x) for x in leaves if x.ndim == 3]  # not weights of attention


def test_every_dropout_of_the_model_has_a_mask_of_its_own():
    rows = length = 16
    sizes = {"d_model": 32, "d_ff": 32, "activation": "swish"}  # which makes no hidden unit 0
    model = tiny_model(dropout=0.5, activation_dropout=0.5, **sizes)
    batch = batch_of(*[(length, length)] * rows)
    outputs = outputs_of_dropout(model, *model_inputs(batch), jnp.arange(rows))
    # Source and target embedding share a module when tied; 2 and 3 sublayers in each of 2 layers,
    # whose feed-forward networks have hidden units.
    assert len(outputs) == 2 + 2 * (2 + 3) + 2 * 2
    masks = [np.where(x == 0, -1.0, 1.0) for x in outputs]
    assert {m.shape for m in masks} == {(rows, length, 32)}
    for i, one in enumerate(masks):
        assert_averages_to_0(one)
        for other in masks[:i]:
            assert_averages_to_0(one * other)


def test_every_dropout_of_a_convolutional_model_drops():
    """Of both embeddings, of the input of each layer, and of the decoder's output."""
    sides = {"encoder": "convolutional", "decoder": "convolutional", "d_hidden": 32}
    model = tiny_model(dropout=0.5, d_model=32, **sides)
    outputs = outputs_of_dropout(model, *model_inputs(batch_of((9, 9))), jnp.arange(1))
    assert len(outputs) == 2 + 2 * 2 + 1
    assert all(0.3 < (x == 0).mean() < 0.7 for x in outputs)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [({}, 1), ({"auxiliary": (("reinforce", 1.0),)}, 1), ({"full_context": True}, 2)],
    ids=["", "draws", "full context"],
)
def test_every_dropout_of_the_loss_drops(changes, passes):
    """The loss reads the source once and the target once, or twice with a second pass."""
    model = tiny_model(dropout=0.5, d_model=32, num_layers=1).clone(watch=True)
    settings = LossSettings(0.1, VOCABULARY, "float32", 2048, 1)._replace(**changes)
    inputs = batch_of((9, 9)), jnp.arange(1), settings, jnp.float32(3)
    outputs = outputs_of_dropout(model, *inputs, method="loss")
    assert len(outputs) == (1 + 2) + passes * (1 + 3)
    assert all(0.3 < (x == 0).mean() < 0.7 for x in outputs)
