"""What replaces self-attention in a decoder, against loops over positions in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import context_of, relative_error, tiny_model
from transformer_jax.config.checks import check
from transformer_jax.config.data import DataConfig
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.model.attention.affine_scan import affine_scan
from transformer_jax.model.axes import unboxed
from transformer_jax.model.interfaces import Now, Place, SearchSizes
from transformer_jax.model.layers.running_mixers import (
    AverageAttention,
    LinearAttention,
    SimplerUnit,
    linear_attention,
    phi,
)
from transformer_jax.model.layers.sublayer import Sublayer
from transformer_jax.model.parameters import abstract_params
from transformer_jax.training.cost import product_flops

B, L, D, F = 2, 7, 4, 6
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(B, L, D))
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0]])
CONTEXT = context_of(Place(jnp.array(SEGMENTS), jnp.array(POSITIONS)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def params_of(shapes):
    return {name: DRAW.normal(size=shape) for name, shape in shapes.items()}


def applied(module: Sublayer, params):
    f32 = jax.tree.map(jnp.float32, params)
    y, weights = module.apply({"params": f32}, jnp.float32(X), CONTEXT)
    assert weights is None
    return y


GATES = {"gates": (2 * D, 2 * D), "gates_bias": (2 * D,)}
NETWORK = {"inner": (D, F), "inner_bias": (F,), "outer": (F, D), "outer_bias": (D,)}


@pytest.mark.parametrize("d_ff", [F, 0])
def test_average_attention_equals_its_equations(d_ff):
    params = params_of(GATES)
    if d_ff:
        params["feed_forward"] = params_of(NETWORK)
    want = np.zeros(X.shape)
    for b, t in np.argwhere(SEGMENTS):
        begin = t - POSITIONS[b, t]
        g = X[b, begin : t + 1].mean(0)
        if d_ff:
            p = params["feed_forward"]
            hidden = np.maximum(0, g @ p["inner"] + p["inner_bias"])
            g = hidden @ p["outer"] + p["outer_bias"]
        gates = sigmoid(np.concatenate([X[b, t], g]) @ params["gates"] + params["gates_bias"])
        want[b, t] = gates[:D] * X[b, t] + gates[D:] * g
    got = applied(AverageAttention(ModelConfig(d_model=D, d_ff=d_ff)), params)
    assert relative_error(got[SEGMENTS != 0], want[SEGMENTS != 0]) < 1e-6


def test_the_simpler_unit_equals_its_equations():
    params = params_of({"input": (D, D), "forget": (D, D), "forget_bias": (D,)})
    want = np.zeros(X.shape)
    for b, t in np.argwhere(SEGMENTS):
        c = np.zeros(D) if POSITIONS[b, t] == 0 else c  # noqa: F821 (of the position before)
        f = sigmoid(X[b, t] @ params["forget"] + params["forget_bias"])
        c = f * c + (1 - f) * (X[b, t] @ params["input"])
        want[b, t] = np.maximum(0, c)
    got = applied(SimplerUnit(ModelConfig(d_model=D)), params)
    assert relative_error(got[SEGMENTS != 0], want[SEGMENTS != 0]) < 1e-6


H, G, K, V = 4, 2, 3, 5
LINEAR = ModelConfig(d_model=D, num_heads=H, num_key_heads=G, d_k=K, d_v=V)
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


def test_linear_attention_equals_its_equations_and_restarts_at_each_sentence():
    params = params_of(SHAPES)
    want = np.zeros(X.shape)
    for row, sentence in [(0, slice(0, 3)), (0, slice(3, 7)), (1, slice(0, 5))]:
        want[row, sentence] = linear_by_hand(X[row, sentence], params)
    got = applied(LinearAttention(LINEAR), params)
    assert relative_error(got[SEGMENTS != 0], want[SEGMENTS != 0]) < 1e-6


def test_linear_attention_step_by_step_equals_its_equations():
    """Two hypotheses; search has them in changed order after every step."""
    params = params_of(SHAPES)
    module = LinearAttention(LINEAR)
    want = np.stack([linear_by_hand(x_LD, params) for x_LD in X])
    f32 = jax.tree.map(jnp.float32, params)
    cache = unboxed(module.empty(SearchSizes(1, B, L, 5)))
    for t in range(L):
        order = [t % 2, 1 - t % 2]
        x_BJD = jnp.float32(X[None, order, t])
        got, cache, _ = module.apply({"params": f32}, x_BJD, None, (), cache, method="step")
        assert relative_error(got[0], want[order, t]) < 1e-6
        cache = jax.tree.map(lambda x: x[:, ::-1], cache)


@pytest.mark.parametrize("size", [1.0, 200.0])
def test_linear_attention_and_its_gradient_are_finite_where_every_phi_is_0(size):
    """exp(-200) is 0 in float32, and padding has no key."""
    x_BLHK = -size * jnp.ones((B, L, H, K))

    def total(x_BLHK):
        return linear_attention(x_BLHK, x_BLHK, x_BLHK, CONTEXT.place).sum()

    value, gradient = jax.value_and_grad(total)(x_BLHK)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_phi_is_exact_for_large_negative_numbers():
    x = np.array([-80.0, -40.0, -17.5, -1.0, 0.0, 2.0], np.float32)
    want = np.where(x > 0, x + 1.0, np.exp(np.float64(x)))
    np.testing.assert_allclose(phi(jnp.asarray(x)), want, rtol=1e-6)
    slopes = jax.vmap(jax.grad(phi))(jnp.asarray(x))
    np.testing.assert_allclose(slopes, np.minimum(want, 1.0), rtol=1e-6)


def test_features_of_bfloat16_are_float32():
    x = jnp.array([-3.0, 0.3, 2.0], jnp.bfloat16)
    got = phi(x)
    exact = np.asarray(x, np.float64)
    assert got.dtype == jnp.float32
    want = np.where(exact > 0, exact + 1, np.exp(exact))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_small_scores_of_linear_attention_are_normalized_too():
    """phi(-5) is 0.0067, so a sum of scores is 1.4e-4, and equal scores give the mean so far."""
    same_BLHK = -5.0 * jnp.ones((B, L, H, K))
    value_BLHV = DRAW.normal(size=(B, L, H, V))
    got = linear_attention(same_BLHK, same_BLHK, jnp.float32(value_BLHV), CONTEXT.place)
    for b, t in np.argwhere(SEGMENTS):
        begin = t - POSITIONS[b, t]
        assert relative_error(got[b, t], value_BLHV[b, begin : t + 1].mean(0)) < 1e-5


def test_a_step_of_linear_attention_is_finite_where_every_phi_is_0():
    params = {name: jnp.full(shape, -200.0) for name, shape in SHAPES.items()}
    module = LinearAttention(LINEAR)
    cache = unboxed(module.empty(SearchSizes(1, B, L, 5)))
    x_BJD = jnp.ones((1, B, D))
    got, _, _ = module.apply({"params": params}, x_BJD, None, (), cache, method="step")
    assert np.isfinite(got).all()


@pytest.mark.parametrize("mixer", [AverageAttention, SimplerUnit])
def test_matrices_start_as_xavier_uniform_and_biases_at_0(mixer):
    module = mixer(ModelConfig(d_model=60, d_ff=0))
    x = jnp.ones((B, L, 60))
    for name, leaf in unboxed(module.init(jax.random.key(0), x, CONTEXT)["params"]).items():
        spread = 0 if leaf.ndim == 1 else (2 / sum(leaf.shape)) ** 0.5
        assert np.std(leaf) == pytest.approx(spread, rel=0.05), name
        assert abs(np.mean(leaf)) < 0.01, name


def test_a_scan_in_parallel_gives_what_a_loop_gives():
    kept = DRAW.random((B, 300, D))
    added = DRAW.normal(size=(B, 300, D))
    kept[0, 100] = 0  # a sentence begins
    c = np.zeros((B, D))
    want = np.zeros(added.shape)
    for t in range(300):
        c = want[:, t] = kept[:, t] * c + added[:, t]
    got = affine_scan(jnp.float32(kept), jnp.float32(added), axis=1)
    assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize("mixer", [AverageAttention, SimplerUnit])
def test_a_step_of_search_does_not_depend_on_the_length_of_the_translation(mixer):
    """What a hypothesis carries is one vector, however long the longest hypothesis may be."""
    module = mixer(ModelConfig(d_model=D, d_ff=F))
    shapes = []
    for length in (8, 512):
        cache = jax.eval_shape(lambda n=length: module.empty(SearchSizes(B, 3, n, 5)))
        assert cache.written == ()
        (state,) = jax.tree.leaves(cache)
        shapes.append(state.shape)
    assert shapes == [(B, 3, D)] * 2


def test_the_state_of_linear_attention_does_not_depend_on_the_length_of_the_translation():
    module = LinearAttention(LINEAR)
    for length in (8, 512):
        cache = jax.eval_shape(lambda n=length: unboxed(module.empty(SearchSizes(B, 3, n, 5))))
        shapes = [x.shape for x in jax.tree.leaves(cache)]
        assert shapes == [(B, 3, H, K, V), (B, 3, H, K)] and cache.written == ()


def flops_of_a_step(length, decoder):
    model = tiny_model(decoder=decoder)
    sizes = SearchSizes(B, 3, length, 5)
    now = Now(*(jnp.zeros(shape, jnp.int32) for shape in ((B,), (B, 3), (B, 3, length))))

    def step(params, now):
        def logits(model):
            prepared = model.prepare_output()
            memory = model.empty_memory(sizes)
            cache = model.empty_cache(sizes)
            return model.decode_step(now, memory, cache, prepared).logits_BKV

        return model.apply({"params": params}, method=logits)

    return product_flops(step, abstract_params(model), now)


def test_the_flops_of_a_step_are_constant_in_length():
    for decoder in ("average", "ssru", "linear"):
        assert flops_of_a_step(512, decoder) == flops_of_a_step(8, decoder) > 0
    assert flops_of_a_step(512, "transformer") > 2 * flops_of_a_step(8, "transformer")


@pytest.mark.parametrize("name", ["window", "positions"])
def test_keys_of_self_attention_are_refused_where_there_is_none(name):
    values = {"window": 3, "positions": "rotary"}
    model = ModelConfig(encoder="recurrent", decoder="ssru", **{name: values[name]})
    with pytest.raises(ConfigError, match=f"model.{name}=.* changes nothing"):
        check(Config(model=model, data=DataConfig(source="grammar")))
    model = ModelConfig(decoder="ssru", **{name: values[name]})  # the encoder has it
    check(Config(model=model, data=DataConfig(source="grammar")))


@pytest.mark.parametrize(("name", "value"), [("score", "dot"), ("normalizer", "sparsemax")])
def test_what_encoder_decoder_attention_does_not_inherit_is_refused(name, value):
    changes = {"encoder": "recurrent", "decoder": "ssru", name: value}
    check(Config(model=ModelConfig(**changes), data=DataConfig(source="grammar")))
    changes[f"cross_{name}"] = getattr(ModelConfig, name)
    with pytest.raises(ConfigError, match=f"model.{name}='{value}' changes nothing"):
        check(Config(model=ModelConfig(**changes), data=DataConfig(source="grammar")))
