"""Attention against slow float64 references, one query at a time; every dimension differs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import dot_by_hand, softmax_by_hand, values_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.attention_sublayer import for_every_head
from transformer_jax.model.attention.multi_head import MultiHeadAttention, attend
from transformer_jax.model.attention.scores import dot

B, L, M, H, K, V, D, E = 2, 3, 4, 5, 6, 7, 8, 9
DRAW = np.random.default_rng(1)
QUERY, KEY, VALUE = (
    DRAW.normal(size=shape).astype(np.float32)
    for shape in [(B, L, H, K), (B, M, H, K), (B, M, H, V)]
)
MASK = DRAW.random((B, 1, L, M)) < 0.6
MASK[:, :, np.arange(L), np.arange(L)] = True  # each query may attend to something
EVERYTHING = np.ones((1, 1, 1, 1), bool)


def weights_by_hand(query, key, mask, factor=K**-0.5):
    return softmax_by_hand(dot_by_hand(query, key, factor), mask)


def attention_by_hand(query, key, value, mask, factor=K**-0.5):
    return values_by_hand(weights_by_hand(query, key, mask, factor), value)


@pytest.mark.parametrize("mask", [MASK, DRAW.random((B, H, L, M)) < 0.9, EVERYTHING])
def test_attention_equals_equation_1(mask):
    got, _ = attend(QUERY, KEY, VALUE, mask)
    assert relative_error(got, attention_by_hand(QUERY, KEY, VALUE, mask)) < 1e-6


def test_attention_without_scaling_equals_equation_1_without_its_root():
    got, weights = attend(QUERY, KEY, VALUE, MASK, score=functools.partial(dot, None))
    assert relative_error(got, attention_by_hand(QUERY, KEY, VALUE, MASK, factor=1.0)) < 1e-6
    assert relative_error(weights, weights_by_hand(QUERY, KEY, MASK, factor=1.0)) < 1e-6


def test_a_bias_is_added_to_the_scaled_scores():
    bias = DRAW.normal(size=(H, L, M)).astype(np.float32)
    got, weights = attend(QUERY, KEY, VALUE, MASK, bias=bias)
    want = softmax_by_hand(dot_by_hand(QUERY, KEY, K**-0.5) + bias, MASK)
    assert relative_error(weights, want) < 1e-6
    assert relative_error(got, values_by_hand(want, VALUE)) < 1e-6


def test_weights_sum_to_1_and_are_0_where_masked():
    got = np.asarray(attend(QUERY, KEY, VALUE, MASK)[1])
    assert relative_error(got, weights_by_hand(QUERY, KEY, MASK)) < 1e-6
    np.testing.assert_allclose(got.sum(-1), 1.0, rtol=1e-6)
    assert (got[~np.broadcast_to(MASK, got.shape)] == 0).all()


@pytest.mark.parametrize("size", [1e2, 1e3, 1e6])
def test_a_masked_weight_is_0_however_much_larger_its_score_is(size):
    query = np.full((B, L, H, K), size, np.float32)
    mask = np.broadcast_to(MASK[:, :, :1], (B, 1, L, M))
    # Masked scores are size^2 sqrt(K), all others minus that.
    key = np.where(mask[:, 0, 0, :, None, None], -size, size) * np.ones((B, M, H, K), np.float32)
    heads, weights = attend(query, key, VALUE, mask)
    masked = ~np.broadcast_to(mask, weights.shape)
    assert masked.any() and (np.asarray(weights)[masked] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-6)
    equal = mask / mask.sum(-1, keepdims=True) * np.ones((B, H, L, M))
    assert relative_error(heads, values_by_hand(equal, VALUE)) < 1e-6


def test_a_hand_worked_softmax():
    query = jnp.full((1, 1, 1, 4), 2.0)
    key = jnp.array([[1.0, 0, 0, 0], [0, 0, 0, 0]]).reshape(1, 2, 1, 4) * np.log(3)
    value = jnp.array([4.0, 0.0]).reshape(1, 2, 1, 1)
    # Scores 2 ln 3 / sqrt(4) = ln 3 and 0: weights 3/4 and 1/4.
    got, _ = attend(query, key, value, EVERYTHING)
    assert float(got[0, 0, 0, 0]) == pytest.approx(3.0, rel=1e-6)


def test_a_query_that_may_attend_to_nothing_gives_the_mean_and_a_finite_gradient():
    mask = np.array(MASK)
    mask[1, :, 2] = False

    def total(query, key, value):
        return attend(query, key, value, mask)[0].sum()

    got, _ = attend(QUERY, KEY, VALUE, mask)
    np.testing.assert_allclose(got[1, 2], VALUE[1].mean(0), rtol=1e-5)
    for grad in jax.grad(total, argnums=(0, 1, 2))(QUERY, KEY, VALUE):
        assert np.isfinite(grad).all()


def test_bfloat16_inputs_still_get_a_float32_softmax():
    query, key, value = (jnp.asarray(x, jnp.bfloat16) for x in (QUERY, KEY, VALUE))
    rounded = (np.asarray(x.astype(jnp.float32)) for x in (query, key))
    heads, weights = attend(query, key, value, MASK)
    assert weights.dtype == jnp.float32
    assert relative_error(weights, weights_by_hand(*rounded, MASK)) < 1e-6
    assert heads.dtype == jnp.bfloat16


def multi_head(module, x, memory, mask):
    heads, _ = attend(module.queries(x), *module.keys_values(memory), mask, score=module.scores)
    return module.joined(heads, x)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("score", "factor"), [("scaled_dot", K**-0.5), ("dot", 1.0)])
def test_multi_head_attention_concatenates_its_heads(score, factor, has_bias):
    config = ModelConfig(d_model=D, num_heads=H, d_k=K, d_v=V, attention_bias=has_bias)
    shapes = {"query": (D, H, K), "key": (E, H, K), "value": (E, H, V), "out": (H, V, D)}
    biases = {"query_bias": (H, K), "key_bias": (H, K), "value_bias": (H, V), "out_bias": (D,)}
    shapes |= biases if has_bias else {}
    params = {name: DRAW.normal(size=shape) for name, shape in shapes.items()}
    bias = {name: params.get(name, np.zeros(shape)) for name, shape in biases.items()}
    x_BLD, memory_BME = DRAW.normal(size=(B, L, D)), DRAW.normal(size=(B, M, E))
    # Section 3.2.2: head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), then Concat(...) W^O.
    query, key, value = (
        np.stack([x @ params[name][:, h] + bias[f"{name}_bias"][h] for h in range(H)], axis=2)
        for name, x in (("query", x_BLD), ("key", memory_BME), ("value", memory_BME))
    )
    heads = attention_by_hand(query, key, value, MASK, factor)
    want = np.concatenate([heads[:, :, h] for h in range(H)], -1) @ params["out"].reshape(H * V, D)
    want += bias["out_bias"]
    f32 = jax.tree.map(jnp.float32, ({"params": params}, x_BLD, memory_BME))
    module = MultiHeadAttention(config, score, memory_features=E)
    assert relative_error(module.apply(*f32, MASK, method=multi_head), want) < 1e-5


def test_a_gate_multiplies_every_feature_of_every_head_before_the_joined_product():
    """Qiu et al. 2025, section 2.2, one query and head at a time; x is the queries' input."""
    config = ModelConfig(d_model=D, num_heads=H, d_k=K, d_v=V, attention_gate=True)
    shapes = {"query": (D, H, K), "key": (E, H, K), "value": (E, H, V), "out": (H, V, D)}
    shapes |= {"gate": (D, H, V)}
    params = {name: DRAW.normal(size=shape) for name, shape in shapes.items()}
    x_BLD, memory_BME = DRAW.normal(size=(B, L, D)), DRAW.normal(size=(B, M, E))
    query, key, value = (
        np.stack([x @ params[name][:, h] for h in range(H)], axis=2)
        for name, x in (("query", x_BLD), ("key", memory_BME), ("value", memory_BME))
    )
    heads = attention_by_hand(query, key, value, MASK)
    want = np.zeros((B, L, D))
    for b, i, h in np.ndindex(B, L, H):
        gate = 1 / (1 + np.exp(-x_BLD[b, i] @ params["gate"][:, h]))
        want[b, i] += (gate * heads[b, i, h]) @ params["out"][h]
    f32 = jax.tree.map(jnp.float32, ({"params": params}, x_BLD, memory_BME))
    module = MultiHeadAttention(config, memory_features=E)
    assert relative_error(module.apply(*f32, MASK, method=multi_head), want) < 1e-5


def test_queries_and_keys_are_normed_head_by_head_after_their_biases():
    """Values are not; a tenth of the mean square shows where epsilon is added."""
    config = ModelConfig(
        d_model=D, num_heads=H, d_k=K, d_v=V, attention_bias=True, qk_norm=True, norm_epsilon=0.1
    )
    shapes = {"query": (D, H, K), "key": (E, H, K), "value": (E, H, V), "out": (H, V, D)}
    shapes |= {f"{name}_bias": (H, shapes[name][-1]) for name in ("query", "key", "value")}
    shapes |= {"out_bias": (D,), "query_gain": (K,), "key_gain": (K,)}
    params = {name: DRAW.normal(size=shape) for name, shape in shapes.items()}
    x_BLD, memory_BME = DRAW.normal(size=(B, L, D)), DRAW.normal(size=(B, M, E))

    def made(name, x):
        heads = np.stack(
            [x @ params[name][:, h] + params[f"{name}_bias"][h] for h in range(H)], axis=2
        )
        for index in np.ndindex(heads.shape[:3]) if name != "value" else ():
            vector = heads[index]
            mean_square = sum(number**2 for number in vector) / K
            heads[index] = params[f"{name}_gain"] * vector / np.sqrt(mean_square + 0.1)
        return heads

    want = made("query", x_BLD), made("key", memory_BME), made("value", memory_BME)
    f32 = jax.tree.map(jnp.float32, ({"params": params}, x_BLD, memory_BME))
    module = MultiHeadAttention(config, memory_features=E)

    def projected(module, x_BLD, memory_BME):
        return module.queries(x_BLD), *module.keys_values(memory_BME)

    for one, other in zip(module.apply(*f32, method=projected), want, strict=True):
        assert relative_error(one, other) < 1e-5
    narrow = MultiHeadAttention(dataclasses.replace(config, dtype="bfloat16"), memory_features=E)
    types = {str(x.dtype) for x in narrow.apply(*f32, method=projected)}
    assert types == {"bfloat16"}


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
def test_neighboring_heads_share_keys_and_values(key_heads):
    """As if each head had its own matrices, and those of a group were equal."""
    heads = 6
    config = ModelConfig(
        d_model=D, num_heads=heads, num_key_heads=key_heads, d_k=K, d_v=V, attention_bias=True
    )
    own = {"query": (D, heads, K), "query_bias": (heads, K), "out": (heads, V, D), "out_bias": (D,)}
    shared = {"key": (E, key_heads, K), "value": (E, key_heads, V)}
    shared |= {"key_bias": (key_heads, K), "value_bias": (key_heads, V)}
    params = {
        name: DRAW.normal(size=shape).astype(np.float32) for name, shape in (own | shared).items()
    }
    group = [h * key_heads // heads for h in range(heads)]
    every = {name: x[..., group, :] if name in shared else x for name, x in params.items()}
    x, memory = (DRAW.normal(size=shape).astype(np.float32) for shape in ((B, L, D), (B, M, E)))

    def apply(params, config):
        def run(module):
            shared = module.keys_values(memory)
            key, value = (for_every_head(config, x) for x in shared)
            heads, _ = attend(module.queries(x), key, value, MASK)
            return module.joined(heads, x)

        module = MultiHeadAttention(config, memory_features=E)
        assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, unboxed(module, run))
        return module.apply({"params": params}, method=run)

    without = dataclasses.replace(config, num_key_heads=None)
    assert relative_error(apply(params, config), apply(every, without)) < 1e-6


def unboxed(module, run):
    init = jax.eval_shape(functools.partial(module.init, method=run), jax.random.key(0))["params"]
    return jax.tree.map(lambda box: box.value, init, is_leaf=lambda x: hasattr(x, "value"))


def initial(config):
    module = MultiHeadAttention(config)
    x = jnp.ones((1, 1, config.d_model))
    return module.init(jax.random.key(0), x, x, EVERYTHING, method=multi_head)["params"]


def test_projections_start_as_xavier_uniform_over_all_heads_together():
    init = initial(ModelConfig(d_model=40, num_heads=H, d_k=30, d_v=50))
    init = jax.tree.map(lambda box: box.value, init, is_leaf=lambda x: hasattr(x, "value"))
    assert set(init) == {"query", "key", "value", "out"}  # and no bias
    for name, columns in {"query": 150, "key": 150, "value": 250, "out": 250}.items():
        bound = np.sqrt(6 / (40 + columns))  # Glorot and Bengio 2010, equation 16
        assert 0.99 * bound < np.abs(init[name]).max() <= bound
        assert float(init[name].std()) == pytest.approx(bound / np.sqrt(3), rel=0.05)
    assert not np.allclose(init["query"], init["key"])


@pytest.mark.parametrize(
    ("d_k", "d_v", "sizes"),
    [(5, None, (5, 5)), (None, None, (4, 4)), (None, 7, (4, 7)), (5, 7, (5, 7))],
)
def test_d_k_is_d_model_over_heads_unless_set_and_d_v_is_d_k_unless_set(d_k, d_v, sizes):
    config = ModelConfig(d_model=12, num_heads=3, d_k=d_k, d_v=d_v)
    assert config.head_sizes == sizes
    assert {name: box.value.shape for name, box in initial(config).items()} == {
        "query": (12, 3, sizes[0]),
        "key": (12, 3, sizes[0]),
        "value": (12, 3, sizes[1]),
        "out": (3, sizes[1], 12),
    }
