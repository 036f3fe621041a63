"""Parameters stacked by layer and apart."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.model.stacked_params import split_array, stacked, unstacked


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
