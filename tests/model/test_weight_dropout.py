"""Dropout of attention weights and of hidden units, with parameters that show the masks.

Scores are 0 and values are one-hot, so a head's output is its row of weights.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import context_of
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.cross_attention import CrossAttention
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.patterns import self_patterns
from transformer_jax.model.attention.self_attention import SelfAttention
from transformer_jax.model.attention.windows import blocks_of
from transformer_jax.model.interfaces import Attended, Place, Side, Sight
from transformer_jax.model.layers.encoder_mixers import SYNTHESIZER, DenseSynthesizer
from transformer_jax.model.layers.feed_forward import FeedForward
from transformer_jax.model.layers.running_mixers import AverageAttention

B, L, H, K = 12, 40, 2, 3
RATE = 0.3
SIGMAS = 5.0
ONE_HOT = jnp.eye(L, H * L)  # of each position
X = jnp.broadcast_to(ONE_HOT, (B, L, H * L))
OUT = np.zeros((H, L, H * L), np.float32)  # the weights of head h are features h L, h L + 1, ...
for head in range(H):
    OUT[head, :, head * L : (head + 1) * L] = np.eye(L)
PARAMS = {
    "query": jnp.zeros((H * L, H, K)),
    "key": jnp.zeros((H * L, H, K)),
    "value": jnp.broadcast_to(ONE_HOT.T[:, None], (H * L, H, L)),
    "out": jnp.asarray(OUT),
}
ROWS = jnp.arange(B)
PLACE = Place(jnp.ones((B, L), jnp.int32), jnp.broadcast_to(jnp.arange(L), (B, L)))


def config_of(**changes):
    sizes = {"d_model": H * L, "num_heads": H, "d_k": K, "d_v": L, "d_ff": L, "max_positions": L}
    return ModelConfig(**{**sizes, "attention_dropout": RATE, **changes})


def by_head(output):
    """The weights `[batch, heads, query_len, key_len]` in a sub-layer's output."""
    return np.asarray(output).reshape(B, L, H, L).swapaxes(1, 2)


def dropped_in(kind, rows, seed=0, params=None, **changes):
    """The weights of a sub-layer after dropout; the rows' numbers are None outside training."""
    config = config_of(**changes)
    mask = blocks_of(config, L, False).mask(self_patterns(config, False), PLACE)
    attended = Attended(X, PLACE, PLACE, jnp.ones((B, 1, L, L), bool))
    context = context_of(PLACE, rows, Sight(mask, None), attended)
    own = dict(PARAMS)
    if kind is DenseSynthesizer:
        own = {name: own.get(name) for name in SYNTHESIZER}
        own |= {"query_bias": jnp.zeros((H, K)), "table_bias": jnp.zeros((H, L))}
        own |= {"table": jnp.zeros((H, K, L))}
    keys = {"dropout": jax.random.key(seed)}
    side = Side(is_decoder=True, encoded=H * L) if kind is CrossAttention else Side()
    module = kind(config, side)
    # Every array is an argument: if XLA for a CPU computes products of constants while it compiles
    # (JAX 0.10), the result is NaN in about one program of 25.
    apply = jax.jit(lambda *args: module.apply(*args, rngs=keys)[0])
    return by_head(apply({"params": own | (params or {})}, X, context))


KINDS = pytest.mark.parametrize(
    ("kind", "changes", "keys"),
    [
        (SelfAttention, {}, L),
        (SelfAttention, {"attention_kernel": "fused"}, L),
        (SelfAttention, {"window": 5}, 5),
        (CrossAttention, {}, L),
        (CrossAttention, {"attention_kernel": "fused"}, L),
        (DenseSynthesizer, {}, L),
    ],
    ids=["self", "self, fused", "window", "cross", "cross, fused", "synthesizer"],
)


@KINDS
def test_a_share_of_the_weights_is_0_and_the_rest_is_scaled(kind, changes, keys):
    got = dropped_in(kind, ROWS, **changes)
    reach = keys // 2 if keys < L else L
    allowed = np.abs(np.subtract.outer(np.arange(L), np.arange(L))) <= reach
    inner = slice(2, L - 2)  # queries whose window is whole
    inside = got[:, :, inner][:, :, allowed[inner]]
    assert (got[:, :, ~allowed] == 0).all()
    is_0 = inside == 0
    np.testing.assert_allclose(inside[~is_0], 1 / keys / (1 - RATE), rtol=1e-5)
    assert abs(is_0.mean() - RATE) < SIGMAS * np.sqrt(RATE * (1 - RATE) / is_0.size)


@KINDS
def test_masks_belong_to_the_row_and_differ_between_rows_heads_and_keys(kind, changes, keys):
    got = dropped_in(kind, ROWS, **changes) > 0
    other = dropped_in(kind, ROWS[::-1], **changes) > 0
    np.testing.assert_array_equal(other[::-1], got)
    different_key = dropped_in(kind, ROWS, seed=1, **changes) > 0
    own = np.diagonal(got, axis1=2, axis2=3)  # of each position to itself
    for one, another in (
        (got, different_key),
        (own[1:], own[:-1]),
        (own[:, 1:], own[:, :-1]),
        (own[..., 1:], own[..., :-1]),
        (own[..., :16], own[..., 16:32]),  # the same places of two blocks of a window
    ):
        assert (one != another).any()


def test_relative_values_get_the_weights_that_the_values_get():
    reach = 6
    distances = 2 * reach + 1
    changes = {"positions": "relative", "relative_distance": reach}
    zeros = {"relative_keys": jnp.zeros((distances, K))}
    none = {**zeros, "relative_values": jnp.zeros((distances, L))}
    want = dropped_in(SelfAttention, ROWS, params=none, **changes)
    one_hot = {
        **zeros,
        "value": jnp.zeros_like(PARAMS["value"]),
        "relative_values": jnp.eye(distances, L),
    }
    got = dropped_in(SelfAttention, ROWS, params=one_hot, **changes)
    for query in range(reach, L - reach):
        for distance in range(1 - reach, reach):  # those at the ends are sums
            by_distance = got[:, :, query, distance + reach]
            np.testing.assert_allclose(by_distance, want[:, :, query, query + distance], rtol=1e-5)
    assert 0.2 < (want == 0).mean() < 0.4


def test_the_weights_that_attend_returns_are_those_before_dropout():
    query, key, value = np.random.default_rng(0).normal(size=(3, B, L, H, K)).astype(np.float32)
    mask = jnp.ones((1, 1, 1, 1), bool)
    plain, weights = attend(query, key, value, mask)
    halved, same = attend(query, key, value, mask, drop=lambda weights: weights / 2)
    np.testing.assert_array_equal(weights, same)
    np.testing.assert_allclose(halved, plain / 2, rtol=1e-6, atol=1e-7)


def hidden_units(module, rows, params, x):
    """Outputs of a feed-forward network whose hidden units are all 1."""
    context = context_of(PLACE, rows)
    apply = jax.jit(
        lambda x: module.apply({"params": params}, x, context, rngs={"dropout": jax.random.key(0)})
    )
    return np.asarray(apply(x)[0])


@pytest.mark.parametrize("activation", ["relu", "reglu"])
def test_hidden_units_are_dropped_after_the_activation(activation):
    width = 24
    eye, zeros = jnp.eye(width), jnp.zeros(width)
    params = {"inner": eye, "inner_bias": zeros, "outer": eye, "outer_bias": zeros + 5}
    if activation == "reglu":
        params |= {"linear": eye, "linear_bias": zeros}
    config = ModelConfig(
        d_model=width, d_ff=width, activation=activation, activation_dropout=RATE, dropout=0.0
    )
    x = jnp.ones((B, L, width))
    got = hidden_units(FeedForward(config), ROWS, params, x) - 5
    is_0 = np.isclose(got, 0, atol=1e-6)
    np.testing.assert_allclose(got[~is_0], 1 / (1 - RATE), rtol=1e-5)
    assert abs(is_0.mean() - RATE) < SIGMAS * np.sqrt(RATE * (1 - RATE) / is_0.size)
    assert (is_0[1:] != is_0[:-1]).any() and (is_0[:, 1:] != is_0[:, :-1]).any()
    np.testing.assert_array_equal(hidden_units(FeedForward(config), None, params, x), 6)


def test_the_network_of_average_attention_drops_too():
    width = 6
    zeros, eye = jnp.zeros(width), jnp.eye(width)
    network = {"inner": eye, "inner_bias": zeros, "outer": eye, "outer_bias": zeros}
    gates = jnp.zeros((2 * width, 2 * width))
    params = {"feed_forward": network, "gates": gates, "gates_bias": jnp.zeros(2 * width)}
    config = ModelConfig(d_model=width, d_ff=width, activation_dropout=0.5, dropout=0.0)
    got = hidden_units(AverageAttention(config), ROWS, params, jnp.ones((B, L, width)))
    # (x + g) / 2, where x is 1 and g is 0 or 2.
    assert sorted(np.unique(got.round(5)).tolist()) == [0.5, 1.5]
