"""The dense synthesizer against loops over positions in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import softmax_by_hand
from tests.fixtures.tiny import (
    VOCABULARY,
    context_of,
    lay_out,
    model_inputs,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
)
from transformer_jax.config.checks import check
from transformer_jax.config.data import DataConfig
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.model.axes import unboxed
from transformer_jax.model.interfaces import Place
from transformer_jax.model.layers.encoder_mixers import DenseSynthesizer
from transformer_jax.model.parameters import abstract_params

B, L, D, H, K, V, P = 2, 7, 4, 3, 5, 6, 8
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(B, L, D))
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0]])
CONTEXT = context_of(Place(jnp.array(SEGMENTS), jnp.array(POSITIONS)))
SHAPES = {
    "query": (D, H, K),
    "query_bias": (H, K),
    "table": (H, K, P),
    "table_bias": (H, P),
    "value": (D, H, V),
    "out": (H, V, D),
}
SIZES = {"d_model": D, "num_heads": H, "d_k": K, "d_v": V}


@pytest.mark.parametrize("columns", [P, 5])  # more than the row has positions, and fewer
def test_the_dense_synthesizer_equals_its_equations(columns):
    params = {name: DRAW.normal(size=shape) for name, shape in SHAPES.items()}
    params |= {name: params[name][..., :columns] for name in ("table", "table_bias")}
    want = np.zeros(X.shape)
    for b, i in np.argwhere(SEGMENTS):
        begin = i - POSITIONS[b, i]
        end = begin + (SEGMENTS[b] == SEGMENTS[b, i]).sum()
        for h in range(H):
            hidden = np.maximum(0, X[b, i] @ params["query"][:, h] + params["query_bias"][h])
            scores = [
                sum(hidden[k] * params["table"][h, k, p] for k in range(K))
                + params["table_bias"][h, p]
                for p in range(end - begin)
            ]
            weights = softmax_by_hand(np.array(scores)[None], True)[0]
            head = sum(w * X[b, begin + p] @ params["value"][:, h] for p, w in enumerate(weights))
            want[b, i] += head @ params["out"][h]
    module = DenseSynthesizer(ModelConfig(**SIZES, max_positions=columns))
    got, _ = module.apply({"params": jax.tree.map(jnp.float32, params)}, jnp.float32(X), CONTEXT)
    assert relative_error(got[SEGMENTS != 0], want[SEGMENTS != 0]) < 1e-6


def test_matrices_start_as_xavier_uniform_and_biases_at_0():
    h, k, d = 3, 40, 60
    config = ModelConfig(d_model=d, num_heads=h, d_k=k, d_v=50, max_positions=70)
    fans = {"query": d + h * k, "table": k + 70, "value": d + h * 50, "out": h * 50 + d}
    init = DenseSynthesizer(config).init(jax.random.key(0), jnp.ones((B, L, d)), CONTEXT)
    for name, leaf in unboxed(init["params"]).items():
        spread = 0 if name.endswith("bias") else (2 / fans[name]) ** 0.5
        assert np.std(leaf) == pytest.approx(spread, rel=0.05), name


def checked(**changes):
    model = ModelConfig(encoder="synthesizer", **changes)
    check(Config(model=model, data=DataConfig(source="grammar")))


def test_source_sentences_are_limited_to_the_columns_of_the_table():
    checked()
    assert tiny_model(encoder="synthesizer").longest() == 18
    with pytest.raises(ConfigError, match="max_positions=100 is too small for data.max_length"):
        checked(max_positions=100)


@pytest.mark.parametrize("changes", [{"positions": "rotary"}, {"window": 3}, {"score": "dot"}])
def test_keys_of_self_attention_are_refused_where_there_is_none(changes):
    checked(**changes)  # the decoder has it
    with pytest.raises(ConfigError, match="changes nothing in this model"):
        checked(decoder="ssru", cross_score="scaled_dot", **changes)


def test_it_cannot_wait():
    with pytest.raises(ConfigError, match="not for an encoder of kind synthesizer"):
        checked(wait_k=2)


def test_positions_of_the_scores_are_no_parameters_of_its_stack():
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
