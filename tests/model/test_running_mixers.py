"""Average attention and the simpler unit, against loops over positions in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import relative_error, tiny_model
from transformer_jax.config.checks import check
from transformer_jax.config.data import DataConfig
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.model.axes import unboxed
from transformer_jax.model.parameters import abstract_params
from transformer_jax.model.records import Context, Now, Place, SearchSizes
from transformer_jax.model.running_mixers import AverageAttention, SimplerUnit, weighted_so_far
from transformer_jax.model.sublayer import Sublayer
from transformer_jax.training.cost import product_flops

B, L, D, F = 2, 7, 4, 6
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(B, L, D))
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0]])
CONTEXT = Context(Place(jnp.array(SEGMENTS), jnp.array(POSITIONS)), None, jnp.ones(()), None)


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
    got = weighted_so_far(jnp.float32(kept), jnp.float32(added))
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
    for decoder in ("average", "ssru"):
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
