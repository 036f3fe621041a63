"""Attention against slow float64 references, one query at a time; every dimension differs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from tests.fixtures.references import dot_by_hand, softmax_by_hand, values_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.attention_sublayer import for_every_head
from transformer_jax.model.attention.multi_head import MultiHeadAttention, attend
from transformer_jax.model.axes import unboxed

B, L, M, H, K, V, D, E = 2, 3, 4, 5, 6, 7, 8, 9
DRAW = np.random.default_rng(1)
QUERY, KEY, VALUE = (
    DRAW.normal(size=shape).astype(np.float32)
    for shape in [(B, L, H, K), (B, M, H, K), (B, M, H, V)]
)
X, MEMORY = DRAW.normal(size=(B, L, D)), DRAW.normal(size=(B, M, E))
MASK = DRAW.random((B, 1, L, M)) < 0.6
MASK[:, :, np.arange(L), np.arange(L)] = True  # each query may attend to something
EVERYTHING = np.ones((1, 1, 1, 1), bool)


def weights_by_hand(query, key, mask, bias=0.0):
    return softmax_by_hand(dot_by_hand(query, key, K**-0.5) + bias, mask)


@pytest.mark.parametrize("bias", [None, DRAW.normal(size=(H, L, M)).astype(np.float32)])
@pytest.mark.parametrize("mask", [MASK, DRAW.random((B, H, L, M)) < 0.9, EVERYTHING])
def test_attention_equals_equation_1(mask, bias):
    """A bias is added to the scaled scores."""
    got, weights = attend(QUERY, KEY, VALUE, mask, bias=bias)
    want = weights_by_hand(QUERY, KEY, mask, bias=0.0 if bias is None else bias)
    assert relative_error(weights, want) < 1e-6
    assert relative_error(got, values_by_hand(want, VALUE)) < 1e-6


def test_a_mask_that_is_added_is_refused():
    with pytest.raises(TypeError, match="mask is of type float32: give booleans"):
        attend(QUERY, KEY, VALUE, np.where(MASK, 0, -1e9).astype(np.float32))


def multi_head(module, x, memory, mask):
    key, value = (for_every_head(module.config, x) for x in module.keys_values(memory))
    heads, _ = attend(module.queries(x), key, value, mask, score=module.scores)
    return module.joined(heads, x)


def module_and_params(features=E, num_heads=H, **changes):
    """Multi-head attention to `features`, with random parameters, float64."""
    sizes = {"d_model": D, "d_k": K, "d_v": V, **changes}
    module = MultiHeadAttention(
        ModelConfig(num_heads=num_heads, **sizes), "scaled_dot", memory_features=features
    )
    x, memory = jnp.ones((1, 1, sizes["d_model"])), jnp.ones((1, 1, features))
    init = functools.partial(module.init, method=multi_head)
    shapes = unboxed(jax.eval_shape(init, jax.random.key(0), x, memory, EVERYTHING))["params"]
    return module, {name: DRAW.normal(size=leaf.shape) for name, leaf in shapes.items()}


def applied(module, params, method=multi_head, mask=(MASK,)):
    f32 = jax.tree.map(jnp.float32, ({"params": params}, X, MEMORY))
    return module.apply(*f32, *mask, method=method)


def projected(params, name, x):
    """Queries, keys or values `[B, L, H, size]`, head by head."""
    bias = params.get(f"{name}_bias", np.zeros(params[name].shape[1:]))
    return np.stack([x @ params[name][:, h] + bias[h] for h in range(H)], axis=2)


def heads_by_hand(params):
    """Section 3.2.2: head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)."""
    query, key, value = (
        projected(params, name, x) for name, x in (("query", X), ("key", MEMORY), ("value", MEMORY))
    )
    return values_by_hand(weights_by_hand(query, key, MASK), value)


def test_a_gate_multiplies_every_feature_of_every_head_before_the_joined_product():
    """Qiu et al. 2025, section 2.2, one query and head at a time; x is the queries' input."""
    module, params = module_and_params(attention_gate=True)
    heads = heads_by_hand(params)
    want = np.zeros((B, L, D))
    for b, i, h in np.ndindex(B, L, H):
        gate = expit(X[b, i] @ params["gate"][:, h])
        want[b, i] += (gate * heads[b, i, h]) @ params["out"][h]
    assert relative_error(applied(module, params), want) < 1e-5


def test_queries_and_keys_are_normed_head_by_head_after_their_biases():
    """Values are not; a tenth of the mean square shows where epsilon is added."""
    keys = {"attention_bias": True, "qk_norm": True, "norm_epsilon": 0.1}
    module, params = module_and_params(**keys)
    wants = [projected(params, *of) for of in (("query", X), ("key", MEMORY), ("value", MEMORY))]
    for name, heads in zip(("query", "key"), wants, strict=False):
        for index in np.ndindex(heads.shape[:3]):
            mean_square = sum(number**2 for number in heads[index]) / K
            heads[index] *= params[f"{name}_gain"] / np.sqrt(mean_square + 0.1)

    def parts(module, x_BLD, memory_BME):
        return module.queries(x_BLD), *module.keys_values(memory_BME)

    for one, other in zip(applied(module, params, parts, mask=()), wants, strict=True):
        assert relative_error(one, other) < 1e-5
    narrow, _ = module_and_params(**keys, dtype="bfloat16")
    types = {str(x.dtype) for x in applied(narrow, params, parts, mask=())}
    assert types == {"bfloat16"}


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
def test_neighboring_heads_share_keys_and_values(key_heads):
    """As if each head had its own matrices, and those of a group were equal."""
    heads = 6
    keys = {"num_heads": heads, "attention_bias": True}
    module, params = module_and_params(**keys, num_key_heads=key_heads)
    group = [h * key_heads // heads for h in range(heads)]
    shared = ("key", "value", "key_bias", "value_bias")
    every = {name: x[..., group, :] if name in shared else x for name, x in params.items()}
    without, of_its_own = module_and_params(**keys)
    assert jax.tree.map(np.shape, every) == jax.tree.map(np.shape, of_its_own)
    assert relative_error(applied(module, params), applied(without, every)) < 1e-6


@pytest.mark.parametrize(
    ("d_k", "d_v", "sizes"),
    [(5, None, (5, 5)), (None, None, (4, 4)), (None, 7, (4, 7)), (5, 7, (5, 7))],
)
def test_d_k_is_d_model_over_heads_unless_set_and_d_v_is_d_k_unless_set(d_k, d_v, sizes):
    module, params = module_and_params(features=12, num_heads=3, d_model=12, d_k=d_k, d_v=d_v)
    assert module.config.head_sizes == sizes
    assert {name: x.shape for name, x in params.items()} == {
        "query": (12, 3, sizes[0]),
        "key": (12, 3, sizes[0]),
        "value": (12, 3, sizes[1]),
        "out": (3, sizes[1], 12),
    }
