"""Initial parameters: how they are drawn, and stacked by layer."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import tiny_model
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.memories import ATTENTION_MEMORIES
from transformer_jax.model.attention.monotonic import MONOTONIC
from transformer_jax.model.attention.normalizers import NORMALIZERS
from transformer_jax.model.attention.projections import BIASES, GAINS, GATE, PROJECTIONS
from transformer_jax.model.attention.scores import SCORES
from transformer_jax.model.axes import DISTANCES, FEATURES, HEADS, HIDDEN, KEY_HEADS
from transformer_jax.model.layers.feed_forward import NETWORK
from transformer_jax.model.outputs.choices import OUTPUTS
from transformer_jax.model.outputs.ctc import PARAMETERS as CTC
from transformer_jax.model.parameters import abstract_params, init_params
from transformer_jax.model.positions.biases import POSITION_BIASES
from transformer_jax.model.positions.choices import POSITIONS
from transformer_jax.model.stacked_params import split_array, stacked, unstacked


def initial(model):
    """A compiled function of the key."""
    return jax.jit(functools.partial(init_params, model))


@pytest.mark.parametrize(
    "changes",
    first_quick(
        [
            {"num_layers": 3, "tie_embeddings": False, "positions": "learned", "score": "additive"},
            {"encoder": "recurrent", "decoder": "recurrent"},
        ],
        1,
    ),
    ids=["Transformer", "recurrent"],
)
def test_no_two_matrices_of_the_model_are_drawn_alike(changes):
    """All pairs of one shape: of layers, of encoder and decoder, and of one layer's parts."""
    params = initial(tiny_model(**changes))(jax.random.key(0))
    matrices = [
        (jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if leaf.ndim > 1 and leaf.any()  # not what starts at 0
    ]
    assert len(matrices) >= 10
    for (name, one), (other_name, other) in itertools.combinations(matrices, 2):
        # Two random numbers in float32 may be equal by chance.
        assert one.shape != other.shape or (one == other).mean() < 0.1, (name, other_name)


def test_each_stack_has_as_many_layers_as_its_depth():
    model = tiny_model(num_layers=3, num_encoder_layers=1, num_decoder_layers=2)
    layers = {name for name in abstract_params(model) if name[-1].isdigit()}
    assert layers == {"encoder_0", "decoder_0", "decoder_1"}


# Rows and columns of each matrix together; of all heads where heads have matrices of their own.
LARGE = {"d_model": 60, "num_heads": 3, "d_k": 40, "d_v": 50, "d_ff": 200, "max_positions": 70}
SUMS = {
    **dict.fromkeys(("query", "key"), 60 + 3 * 40),
    **dict.fromkeys(("value", "out"), 60 + 3 * 50),
    **dict.fromkeys(("inner", "linear", "outer"), 60 + 200),
    **dict.fromkeys(("input", "forget"), 60 + 60),
    "gates": 120 + 120,
    "table": 40 + 70,
}


@pytest.mark.parametrize(
    "changes",
    first_quick(
        [
            {"decoder": "average", "activation": "glu"},
            {"encoder": "synthesizer", "decoder": "ssru"},
        ],
        1,
    ),
    ids=str,
)
def test_matrices_of_layers_start_as_xavier_uniform_and_biases_at_0(changes):
    """Glorot and Bengio 2010, equation 16."""
    params = initial(tiny_model(**LARGE, **changes))(jax.random.key(0))
    layers = {name: layer for name, layer in params.items() if name[-1].isdigit()}
    for path, leaf in jax.tree_util.tree_leaves_with_path(layers):
        where = jax.tree_util.keystr(path)
        if path[-1].key.endswith("bias"):
            assert not leaf.any(), where
        elif path[-1].key != "scale":
            bound = (6 / SUMS[path[-1].key]) ** 0.5
            assert 0.99 * bound < np.abs(leaf).max() <= bound, where
            assert np.std(leaf) == pytest.approx(bound / 3**0.5, rel=0.05), where
            assert np.mean(leaf) == pytest.approx(0, abs=0.05 * bound), where


TABLES = {
    "projections": PROJECTIONS,
    "biases": BIASES,
    "gate": GATE,
    "gains": GAINS,
    "network": NETWORK,
    "ctc": CTC,
    **{
        name: kind.by_query.parameters(ModelConfig())
        for name, kind in POSITIONS.items()
        if kind.by_query is not None
    },
    **{name: make(ModelConfig()).parameters for name, make in MONOTONIC.items()},
    **{
        name: entry.parameters
        for registry in (SCORES, NORMALIZERS, POSITION_BIASES, ATTENTION_MEMORIES, OUTPUTS)
        for name, entry in registry.items()
    },
}


def test_axes_are_named_by_what_their_sizes_are():
    wanted = {
        ("projections", "query"): (FEATURES, HEADS, None),
        ("projections", "key"): (FEATURES, KEY_HEADS, None),
        ("projections", "out"): (HEADS, None, FEATURES),
        ("biases", "out_bias"): (None,),
        ("talking_heads", "mix_scores"): (None, HEADS),  # a mesh divides one axis of a name
        ("contextual", "contextual_keys"): (DISTANCES, None),
        ("t5", "buckets"): (DISTANCES, HEADS),
        ("chunkwise", "stop_key"): (FEATURES, HEADS, None),
        ("history", "history_query"): (FEATURES, HIDDEN),
        ("network", "outer"): (HIDDEN, FEATURES),
        ("network", "inner_bias"): (HIDDEN,),
    }
    assert {where: TABLES[where[0]][where[1]].names for where in wanted} == wanted


HEADS_, D_K, D_MODEL, ENCODED, PLACES = 40, 50, 70, 80, 41
AXES = {"heads": HEADS_, "key_heads": 20, "d_k": D_K, "d_v": 60, "d_model": D_MODEL}
AXES |= {"encoded": ENCODED, "distances": PLACES, "buckets": 32, "neighbors": 3, "states": 3}
AXES |= {"coverage": 10, "gates": 30, "hidden": D_MODEL}


# What changes nothing at 0 starts at 0.
NEUTRAL = {
    "biases": ["query_bias", "key_bias", "value_bias", "out_bias"],
    "t5": ["buckets"],
    "contextual": ["contextual_keys"],
    "additive": ["bias"],
    "sink": ["sink"],
    "coverage": ["coverage", "fertility"],
    "coverage_gru": ["coverage", "gate_bias"],
    "coverage_embedding": ["coverage", "gate_bias"],
    "markov": ["markov"],
    "copy": ["copy_gate_bias"],
    "history": ["history_query_bias", "history_sentinel"],
}


@pytest.mark.parametrize(
    ("table", "name", "mean", "deviation"),
    [
        *((table, name, 0.0, 0.0) for table, names in NEUTRAL.items() for name in names),
        ("gate", "gate", 0.0, (2 / (D_MODEL + HEADS_ * 60)) ** 0.5),
        ("cosine", "gain", 10.0, 0.0),
        ("differential", "lambda", 0.8, 0.0),
        ("differential", "gain", 1.0, 0.0),
        ("additive", "vector", 0.0, D_K**-0.5),
        ("relative", "relative_keys", 0.0, (2 / (PLACES + D_K)) ** 0.5),
        ("relative", "relative_values", 0.0, (2 / (PLACES + 60)) ** 0.5),
        *((name, "stop_bias", -1.0, 0.0) for name in MONOTONIC),
        ("chunkwise", "stop_key", 0.0, (2 / (ENCODED + HEADS_ * D_K)) ** 0.5),
        ("coverage_gru", "from_weight", 0.0, 1.0),
        # Xavier, except that the heads count as places that a unit sees; so it was at first, and a
        # seed keeps its initial values.
        ("coverage_gru", "from_state", 0.0, (2 / HEADS_ / (10 + 30)) ** 0.5),
        ("coverage_gru", "from_source", 0.0, (2 / HEADS_ / (ENCODED + 30)) ** 0.5),
        ("coverage_gru", "from_query", 0.0, (2 / HEADS_ / (D_K + 30)) ** 0.5),
        ("coverage_embedding", "from_word", 0.0, (2 / HEADS_ / (D_MODEL + 30)) ** 0.5),
        ("coverage_embedding", "from_source_word", 0.0, (2 / HEADS_ / (D_MODEL + 10)) ** 0.5),
        ("copy", "copy_gate", 0.0, 0.02),
        ("history", "history_query", 0.0, D_MODEL**-0.5),
        ("ctc", "states", 0.0, ENCODED**-0.5),
        ("marginal", "marginal_context", 0.0, (2 / (ENCODED + D_MODEL)) ** 0.5),
    ],
)
def test_initial_values_have_their_mean_and_deviation(table, name, mean, deviation):
    initializer, sizes, *_ = TABLES[table][name]
    shape = [AXES[size] for size in sizes]
    drawn = [initializer(jax.random.key(seed), shape) for seed in range(8)]
    assert np.std(drawn) == pytest.approx(deviation, rel=0.1, abs=1e-6)
    assert np.mean(drawn) == pytest.approx(mean, abs=0.15 * deviation + 1e-6)


class State(NamedTuple):
    step: Any
    moments: Any
    others: Any


def tree(depth=11):  # two digits: encoder_10 comes after encoder_9, not after encoder_1
    layers = {
        f"encoder_{n}": {"w": np.full((2, 3), n), "deep": {"b": n * 1.0}} for n in range(depth)
    }
    return layers | {"decoder_0": {"w": np.ones(4)}, "decoder_norm": 7, "decoder": {"gru": 8}}


def test_layers_are_stacked_in_their_order_and_everything_else_stays():
    found = stacked(tree())
    assert set(found) == {"encoder_layers", "decoder_layers", "decoder_norm", "decoder"}
    np.testing.assert_array_equal(found["encoder_layers"]["deep"]["b"], range(11))
    assert found["encoder_layers"]["w"].shape == (11, 2, 3)
    assert found["decoder_layers"]["w"].shape == (1, 4)
    assert found["decoder_norm"] == 7 and found["decoder"] == {"gru": 8}


def test_unstacked_is_the_inverse_for_whole_states():
    by_group = {"matrices": State(0, tree(2), ()), "others": (tree(1), 5)}
    state = State(3, (State(0, tree(), ()), by_group), {})
    assert "encoder_layers" in stacked(state).moments[1]["others"][0]
    back = unstacked(stacked(state))
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)


def test_the_gradient_of_the_parts_is_joined():
    x = jnp.arange(12.0).reshape(3, 4)

    def weighted(x):
        return sum((n + 1) * (part**2).sum() for n, part in enumerate(split_array(x)))

    np.testing.assert_allclose(jax.grad(weighted)(x), 2 * x * jnp.array([[1.0], [2.0], [3.0]]))
