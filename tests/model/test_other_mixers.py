"""What replaces self-attention, against loops over positions in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

from tests.fixtures.tiny import (
    VOCABULARY,
    context_of,
    lay_out,
    model_inputs,
    place_of,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
)
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import unboxed
from transformer_jax.model.interfaces import SearchSizes
from transformer_jax.model.layers.encoder_mixers import DenseSynthesizer
from transformer_jax.model.layers.running_mixers import (
    AverageAttention,
    LinearAttention,
    SimplerUnit,
    linear_attention,
    phi,
)
from transformer_jax.model.layers.sublayer import Sublayer
from transformer_jax.model.parameters import abstract_params

B, L, D, F = 2, 7, 4, 6
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(B, L, D))
PLACE = place_of([3, 4], [5])
CONTEXT = context_of(PLACE)
SENTENCES = [(0, slice(0, 3)), (0, slice(3, 7)), (1, slice(0, 5))]


def params_of(shapes):
    return {name: DRAW.normal(size=shape) for name, shape in shapes.items()}


def assert_equals(module: Sublayer, params, by_hand):
    """The sub-layer gives `by_hand(sentence [L, D], params)` for each sentence of a packed row."""
    f32 = jax.tree.map(jnp.float32, params)
    y, weights = module.apply({"params": f32}, jnp.float32(X), CONTEXT)
    assert weights is None
    for row, sentence in SENTENCES:
        assert relative_error(y[row, sentence], by_hand(X[row, sentence], params)) < 1e-6


def average_by_hand(x_LD, params):
    want = np.zeros(x_LD.shape)
    for t, x in enumerate(x_LD):
        g = x_LD[: t + 1].mean(0)
        if p := params.get("feed_forward"):
            hidden = np.maximum(0, g @ p["inner"] + p["inner_bias"])
            g = hidden @ p["outer"] + p["outer_bias"]
        gates = expit(np.concatenate([x, g]) @ params["gates"] + params["gates_bias"])
        want[t] = gates[:D] * x + gates[D:] * g
    return want


@pytest.mark.parametrize("d_ff", [F, 0])
def test_average_attention_equals_its_equations(d_ff):
    params = params_of({"gates": (2 * D, 2 * D), "gates_bias": (2 * D,)})
    if d_ff:
        network = {"inner": (D, F), "inner_bias": (F,), "outer": (F, D), "outer_bias": (D,)}
        params["feed_forward"] = params_of(network)
    assert_equals(AverageAttention(ModelConfig(d_model=D, d_ff=d_ff)), params, average_by_hand)


def simpler_unit_by_hand(x_LD, params):
    c = np.zeros(D)
    want = np.zeros(x_LD.shape)
    for t, x in enumerate(x_LD):
        f = expit(x @ params["forget"] + params["forget_bias"])
        c = f * c + (1 - f) * (x @ params["input"])
        want[t] = np.maximum(0, c)
    return want


def test_the_simpler_unit_equals_its_equations():
    params = params_of({"input": (D, D), "forget": (D, D), "forget_bias": (D,)})
    assert_equals(SimplerUnit(ModelConfig(d_model=D)), params, simpler_unit_by_hand)


H, G, K, V = 4, 2, 3, 5
SIZES = ModelConfig(d_model=D, num_heads=H, num_key_heads=G, d_k=K, d_v=V)
SHAPES = {"query": (D, H, K), "key": (D, G, K), "value": (D, G, V), "out": (H, V, D)}


def elu_and_1(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def linear_by_hand(x_LD, params):
    """One sentence: equations 8 and 9, one query at a time."""
    query, key, value = (
        np.einsum("LD,DHK->LHK", x_LD, params[name]) for name in ("query", "key", "value")
    )
    heads = np.zeros((len(x_LD), H, V))
    for t, h in np.ndindex(len(x_LD), H):
        g = h // (H // G)
        scores = elu_and_1(key[: t + 1, g]) @ elu_and_1(query[t, h])
        heads[t, h] = scores @ value[: t + 1, g] / scores.sum()
    return np.einsum("LHV,HVD->LD", heads, params["out"])


def test_linear_attention_equals_its_equations():
    assert_equals(LinearAttention(SIZES), params_of(SHAPES), linear_by_hand)


@pytest.mark.parametrize("size", [1.0, 200.0])
def test_linear_attention_and_its_gradient_are_finite_where_every_phi_is_0(size):
    """exp(-200) is 0 in float32, and padding has no key."""
    x_BLHK = -size * jnp.ones((B, L, H, K))

    def total(x_BLHK):
        return linear_attention(x_BLHK, x_BLHK, x_BLHK, PLACE).sum()

    value, gradient = jax.value_and_grad(total)(x_BLHK)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    params = {name: jnp.full(shape, -size) for name, shape in SHAPES.items()}
    module = LinearAttention(SIZES)
    cache = unboxed(module.empty(SearchSizes(1, B, L, 5)))
    args = jnp.ones((1, B, D)), None, (), cache
    assert np.isfinite(module.apply({"params": params}, *args, method="step")[0]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_phi_is_exact_for_large_negative_numbers(dtype):
    x = jnp.array([-80.0, -40.0, -17.5, -1.0, 0.0, 2.0], dtype)
    got = phi(x)
    assert got.dtype == jnp.float32
    want = elu_and_1(np.asarray(x, np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    slopes = jax.vmap(jax.grad(phi))(jnp.float32(x))
    np.testing.assert_allclose(slopes, np.minimum(want, 1.0), rtol=1e-6)


def test_small_scores_of_linear_attention_are_normalized_too():
    """phi(-5) is 0.0067, so a sum of scores is 1.4e-4, and equal scores give the mean so far."""
    same_BLHK = -5.0 * jnp.ones((B, L, H, K))
    value_BLHV = DRAW.normal(size=(B, L, H, V)).astype(np.float32)
    got = linear_attention(same_BLHK, same_BLHK, value_BLHV, PLACE)
    for row, sentence in SENTENCES:
        value_LHV = value_BLHV[row, sentence]
        want = np.cumsum(value_LHV, 0) / np.arange(1, 1 + len(value_LHV))[:, None, None]
        assert relative_error(got[row, sentence], want) < 1e-5


@pytest.mark.parametrize(
    ("mixer", "shapes"),
    [
        (AverageAttention, [(B, 3, D)]),
        (SimplerUnit, [(B, 3, D)]),
        (LinearAttention, [(B, 3, H, K, V), (B, 3, H, K)]),
    ],
)
def test_what_a_hypothesis_carries_does_not_depend_on_the_length_of_the_translation(mixer, shapes):
    module = mixer(SIZES)
    for length in (8, 512):
        cache = jax.eval_shape(lambda n=length: unboxed(module.empty(SearchSizes(B, 3, n, 5))))
        assert [x.shape for x in jax.tree.leaves(cache)] == shapes and cache.written == ()


P = 8  # columns of the table
TABLES = {
    "query": (D, H, K),
    "query_bias": (H, K),
    "table": (H, K, P),
    "table_bias": (H, P),
    "value": (D, H, V),
    "out": (H, V, D),
}


def synthesizer_by_hand(x_LD, params):
    want = np.zeros(x_LD.shape)
    for i, h in np.ndindex(len(x_LD), H):
        hidden = np.maximum(0, x_LD[i] @ params["query"][:, h] + params["query_bias"][h])
        scores = hidden @ params["table"][h] + params["table_bias"][h]
        weights = softmax(scores[: len(x_LD)])
        head = sum(w * x_LD[p] @ params["value"][:, h] for p, w in enumerate(weights))
        want[i] += head @ params["out"][h]
    return want


@pytest.mark.parametrize("columns", [P, 5])  # more than the row has positions, and fewer
def test_the_dense_synthesizer_equals_its_equations(columns):
    params = params_of(TABLES)
    params |= {name: params[name][..., :columns] for name in ("table", "table_bias")}
    module = DenseSynthesizer(dataclasses.replace(SIZES, max_positions=columns))
    assert_equals(module, params, synthesizer_by_hand)


def test_its_table_limits_the_source_and_positions_of_scores_are_no_parameters_of_its_stack():
    assert tiny_model(encoder="synthesizer").longest() == 18
    params = abstract_params(tiny_model(encoder="synthesizer", positions="t5"))
    assert "src_positions" not in params
    assert "tgt_positions" in params


@pytest.mark.slow("compiles models in another type")
def test_a_synthesizer_runs_in_bfloat16_and_gives_nearly_the_same():
    """Traced and run: XLA for a CPU refuses some products of bfloat16 only when they run."""
    batch = lay_out(random_pairs(0, [(5, 4), (3, 6)]), [[0, 1]], 12, 14)
    found = []
    for dtype in ("bfloat16", "float32"):
        model = tiny_model(encoder="synthesizer", dtype=dtype)

        def loss(params, model=model):
            logits = model.apply({"params": params}, *model_inputs(batch)).astype(jnp.float32)
            return jnp.sin(logits[..., :VOCABULARY]).sum()

        gradient = jax.jit(jax.grad(loss))(random_params(model))
        found.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient)]))
    assert 1e-4 < relative_error(*found) < 0.1
