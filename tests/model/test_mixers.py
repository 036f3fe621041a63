"""Self- and cross-attention as layers use them, against float64 references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import (
    SCORES_BY_HAND,
    rotated_by_hand,
    softmax_by_hand,
    values_by_hand,
)
from tests.fixtures.tiny import context_of, place_of, relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.cross_attention import CrossAttention
from transformer_jax.model.attention.self_attention import SelfAttention
from transformer_jax.model.interfaces import Attended, Side, Sight

B, L, M, D, H, K, V, E = 2, 3, 4, 10, 5, 6, 7, 9
DRAW = np.random.default_rng(9)
X, ENCODED = DRAW.normal(size=(B, L, D)), DRAW.normal(size=(B, M, E))
SELF_MASK, CROSS_MASK = (DRAW.random((B, 1, L, m)) < 0.6 for m in (L, M))
SELF_MASK[..., np.arange(L), np.arange(L)] = CROSS_MASK[..., 0] = True
SELF_BIAS = DRAW.normal(size=(H, L, L))
PLACE = place_of([3], [2, 1])
DECODER = Side(is_decoder=True, encoded=E)
ATTENDED = Attended(jnp.float32(ENCODED), place_of([M], [M]), PLACE, CROSS_MASK)
CONTEXT = context_of(PLACE, None, Sight(SELF_MASK, None), ATTENDED)


def config(**changes):
    return ModelConfig(d_model=D, num_heads=H, d_k=K, d_v=V, **changes)


def random_params(memory_features):
    shapes = {"query": (D, H, K), "key": (memory_features, H, K), "out": (H, V, D)}
    shapes |= {"value": (memory_features, H, V), "vector": (H, K), "bias": (H, K)}
    return {name: DRAW.normal(size=shape) for name, shape in shapes.items()}


def projected(params, memory):
    return (
        np.stack([x @ params[name][:, h] for h in range(H)], axis=2)
        for name, x in (("query", X), ("key", memory), ("value", memory))
    )


def joined(params, weights, value):
    heads = values_by_hand(weights, value)
    return np.concatenate([heads[:, :, h] for h in range(H)], -1) @ params["out"].reshape(-1, D)


def applied(module, params, context):
    """Output and weights; the weights that plots read are the same."""
    f32 = jax.tree.map(jnp.float32, params)
    (y, weights), aside = module.apply(
        {"params": f32}, jnp.float32(X), context, mutable="intermediates"
    )
    (sown,) = aside["intermediates"]["attention_weights"]
    np.testing.assert_array_equal(sown, weights)
    return y, weights


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("score", ["scaled_dot", "dot", "additive"])
def test_self_attention_equals_its_equations(score, biased, positions):
    params = random_params(D)
    query, key, value = projected(params, X)
    if positions == "rotary":
        query, key = (rotated_by_hand(x, np.asarray(PLACE.positions)) for x in (query, key))
    scores = SCORES_BY_HAND[score](params, query, key) + SELF_BIAS * biased
    want = softmax_by_hand(scores, SELF_MASK)
    context = CONTEXT._replace(sight=Sight(SELF_MASK, jnp.float32(SELF_BIAS) if biased else None))
    # The key of cross-attention's score has no effect here.
    module = SelfAttention(config(score=score, positions=positions, cross_score="additive"))
    y, weights = applied(module, params, context)
    assert relative_error(weights, want) < 1e-5
    assert relative_error(y, joined(params, want, value)) < 1e-5


@pytest.mark.parametrize("has_values", [True, False])
@pytest.mark.parametrize(("score", "factor"), [("scaled_dot", K**-0.5), ("dot", 1.0)])
def test_relative_positions_are_added_to_keys_and_values_before_scaling(score, factor, has_values):
    """Shaw et al. 2018, equations 3 and 4, with k = 1: vectors of the distances -1, 0 and 1."""
    params = random_params(D) | {"relative_keys": DRAW.normal(size=(3, K))}
    of_values = DRAW.normal(size=(3, V)) * has_values
    if has_values:
        params["relative_values"] = of_values
    query, key, value = projected(params, X)
    near = np.clip(np.arange(L) - np.arange(L)[:, None], -1, 1) + 1
    keys = key[:, None] + params["relative_keys"][near][None, :, :, None]  # [B, L, M, H, K]
    values = value[:, None] + of_values[near][None, :, :, None]
    want = softmax_by_hand(np.einsum("blhk,blmhk->bhlm", query, keys) * factor, SELF_MASK)
    heads = np.einsum("bhlm,blmhv->blhv", want, values)
    changes = {"positions": "relative", "relative_distance": 1, "relative_values": has_values}
    y, weights = applied(SelfAttention(config(score=score, **changes)), params, CONTEXT)
    assert relative_error(weights, want) < 1e-5
    assert relative_error(y, np.einsum("blhv,hvd->bld", heads, params["out"])) < 1e-5


@pytest.mark.parametrize(
    ("score", "cross_score"),
    [
        ("scaled_dot", None),
        ("dot", None),
        ("additive", None),
        ("scaled_dot", "dot"),
        ("dot", "scaled_dot"),
        ("dot", "additive"),
    ],
)
def test_cross_attention_equals_its_equations(score, cross_score):
    params = random_params(E)
    query, key, value = projected(params, ENCODED)
    want = softmax_by_hand(SCORES_BY_HAND[cross_score or score](params, query, key), CROSS_MASK)
    # Rotary positions and biases belong to self-attention alone.
    module = CrossAttention(
        config(score=score, cross_score=cross_score, positions="rotary"), DECODER
    )
    y, weights = applied(
        module, params, CONTEXT._replace(sight=Sight(SELF_MASK, jnp.float32(SELF_BIAS)))
    )
    assert relative_error(weights, want) < 1e-5
    assert relative_error(y, joined(params, want, value)) < 1e-5
