"""Initial parameters: their shapes, and that no two matrices are drawn alike."""

import functools
import itertools

import jax
import numpy as np
import pytest

from tests.fixtures.tiny import tiny_model
from transformer_jax.model.parameters import abstract_params, init_params
from transformer_jax.model.records import SearchSizes


def initial(model):
    """A compiled function of the key."""
    return jax.jit(functools.partial(init_params, model))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 3, "tie_embeddings": False, "positions": "learned", "score": "additive"},
        {"encoder": "recurrent", "decoder": "recurrent"},
    ],
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


def test_initial_parameters_are_a_pure_function_of_the_key_with_known_shapes():
    model = tiny_model()
    draw = initial(model)
    one, again, other = (draw(jax.random.key(seed)) for seed in (1, 1, 2))
    assert all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(again)))
    assert not np.array_equal(one["embedding"]["table"], other["embedding"]["table"])
    for stack in ("encoder_0", "decoder_1"):
        first, second = (params[stack]["self_attention"]["query"] for params in (one, other))
        assert not np.array_equal(first, second)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), abstract_params(model)) == jax.tree.map(
        lambda x: (x.shape, x.dtype), one
    )


def test_d_v_is_d_k_in_parameters_and_cache_when_d_k_alone_is_set():
    model = tiny_model(d_k=5, d_v=None)
    params = abstract_params(model)
    for mixer in ("self_attention", "cross_attention"):
        shapes = {name: leaf.shape for name, leaf in params["decoder_0"][mixer].items()}
        assert shapes == {**dict.fromkeys(("query", "key", "value"), (12, 3, 5)), "out": (3, 5, 12)}
    sizes = SearchSizes(batch=2, beams=4, length=6, src_length=8)
    (key, value), *_ = model.empty_cache(sizes).written[0]["self_attention"]
    assert key.shape == value.shape == (2, 3, 6, 4, 5)
    (key, value), _ = model.empty_memory(sizes).decoder[0]["cross_attention"]
    assert key.shape == value.shape == (2, 3, 8, 5)
