"""Restricted self-attention block by block, against attention to the whole row with a mask."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from tests.fixtures.tiny import (
    VOCABULARY,
    lay_out,
    model_inputs,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
)
from tests.model.configs import DISTANCES
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.patterns import config_of_layer, self_patterns
from transformer_jax.model.attention.windows import SHORTEST_BLOCK, Blocks, blocks_of
from transformer_jax.model.interfaces import Place
from transformer_jax.model.parameters import abstract_params
from transformer_jax.text.batches import Packed

B, H, K = 2, 3, 4
SIDES = pytest.mark.parametrize("is_decoder", [False, True])


def place_of_sentences(lengths, length):
    """Sentences of these lengths one after the other, then padding, in each of two rows."""
    segments, positions = np.zeros((2, B, length), np.int32)
    for row, own in enumerate((lengths, lengths[::-1])):
        ends = np.cumsum([0, *own])
        for n, (begin, end) in enumerate(zip(ends[:-1], ends[1:], strict=True), start=1):
            segments[row, begin:end] = n
            positions[row, begin:end] = range(end - begin)
    return Place(jnp.asarray(segments), jnp.asarray(positions))


def test_blocks_by_hand():
    blocks = Blocks(length=6, queries=4, behind=2, ahead=1)
    x = jnp.arange(1, 7)[None]
    assert blocks.of_queries(x).tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]
    assert blocks.of_keys(x).tolist() == [[0, 0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 0, 0, 0]]
    assert blocks.joined(blocks.of_queries(x)).tolist() == x.tolist()
    assert blocks.distance()[0].tolist() == [-2, -1, 0, 1, 2, 3, 4]
    assert blocks.distance()[3].tolist() == [-5, -4, -3, -2, -1, 0, 1]


@SIDES
@pytest.mark.parametrize("length", [40, 75])
@pytest.mark.parametrize("window", [1, 5, 17, 35])
def test_blocks_give_what_a_mask_over_the_whole_row_gives(window, length, is_decoder):
    config = ModelConfig(window=window)
    draw = np.random.default_rng(window)
    query, key, value = (
        jnp.asarray(draw.normal(size=(B, length, H, K)), jnp.float32) for _ in range(3)
    )
    place = place_of_sentences([length // 2, length // 4, length // 5], length)
    blocks = blocks_of(config, length, is_decoder)
    assert blocks.number > 1 or length < 3 * window

    @functools.partial(jax.jit, static_argnums=0)
    def attended(blocks, *arrays):
        query, key, value = arrays
        mask = blocks.mask(self_patterns(config, is_decoder), place)
        cut = blocks.of_queries(query), blocks.of_keys(key), blocks.of_keys(value)
        return blocks.joined(attend(*cut, mask)[0])

    def total(blocks, *arrays):
        return (attended(blocks, *arrays)[real] ** 2).sum()

    real = np.asarray(place.segments) != 0
    whole = Blocks(length, length)
    want = attended(whole, query, key, value)[real]
    assert relative_error(attended(blocks, query, key, value)[real], want) < 1e-6
    gradient = jax.jit(jax.grad(total, (1, 2, 3)), static_argnums=0)
    gradients = (gradient(by, query, key, value) for by in (blocks, whole))
    for got, want in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)  # a window of 1 has gradients of 0


def shapes_of(jaxpr):
    for equation in jaxpr.eqns:
        yield from (x.aval.shape for x in (*equation.invars, *equation.outvars))
        for inner in jaxprs_in_params(equation.params):
            yield from shapes_of(inner)


@pytest.mark.slow("compiles training steps")
@pytest.mark.parametrize("positions", ["sinusoidal", *DISTANCES])
def test_no_array_of_a_training_step_has_a_number_for_each_pair_of_positions(positions):
    """The encoder's and the decoder's self-attention, forward and backward."""
    length = 64 * SHORTEST_BLOCK
    shape = jnp.zeros((1, length), jnp.int32)
    sizes = {"num_layers": 1, "window": 5, "positions": positions, "d_k": 6, "relative_distance": 3}

    def largest(**changes):
        model = tiny_model(**{**sizes, **changes})

        def loss(params):
            side = Packed(shape, shape, shape)
            # One source position: the cross-attention of a window is to the whole source.
            source = Packed(*(x[:, :1] for x in side))
            encoded = model.apply({"params": params}, side, method="encode").sum()
            return encoded + model.apply({"params": params}, source, side).sum()

        traced = jax.make_jaxpr(jax.grad(loss))(abstract_params(model))
        sizes_of_arrays = [int(np.prod(shape)) for shape in shapes_of(traced.jaxpr)]
        return max(sizes_of_arrays)

    assert largest() < length * length / 4 < length * length <= largest(window=None)


@pytest.mark.parametrize(("every", "furthest"), [(None, 4), (2, 19), (3, 4)])
def test_each_nth_layer_sees_the_whole_row(every, furthest):
    """Two layers with a window of 5 reach 4 positions; a global one reaches the row's end."""
    model = tiny_model(window=5, global_every=every, num_encoder_layers=2, num_decoder_layers=3)
    batch = lay_out(random_pairs(0, [(20, 3)]), [[0]], 20, 4)
    variables = {"params": random_params(model)}

    @jax.jit
    def first(ids):
        return model.apply(variables, batch.src._replace(ids=ids), method="encode")[0, 0]

    ids = jnp.asarray(batch.src.ids)
    seen = [
        n for n in range(20) if (first(ids.at[0, n].set(4)) != first(ids.at[0, n].set(5))).any()
    ]
    assert seen == list(range(furthest + 1))


@pytest.mark.parametrize(("every", "first"), [(None, 23), (2, 0), (3, 23)])
def test_each_nth_layer_of_the_decoder_sees_the_whole_past(every, first):
    """In blocks; two layers with a window of 5 see 8 positions before the last one, 31."""
    model = tiny_model(window=5, global_every=every, num_encoder_layers=3, num_decoder_layers=2)
    batch = lay_out(random_pairs(0, [(3, 32)]), [[0]], 4, 32)
    variables = {"params": random_params(model)}
    encoded = model.apply(variables, batch.src, method="encode")

    @jax.jit
    def last(ids):
        target = batch.tgt._replace(ids=ids)
        return model.apply(variables, encoded, batch.src, target, method="decode")[0][0, 31]

    ids = jnp.asarray(batch.tgt.ids)
    both = [[last(ids.at[0, n].set(word)) for word in (4, 5)] for n in range(32)]
    assert [n for n, (x, y) in enumerate(both) if (x != y).any()] == list(range(first, 32))


def test_the_number_of_a_global_layer_counts_from_1():
    config = ModelConfig(window=5, global_every=3)
    assert [config_of_layer(config, n).window for n in range(6)] == [5, 5, None, 5, 5, None]


@pytest.mark.slow("compiles models twice")
@pytest.mark.parametrize("positions", DISTANCES)
def test_the_model_in_blocks_equals_the_model_whose_weights_are_asked_for(positions):
    """Plots make self-attention compute whole rows."""
    sizes = {"num_layers": 1, "d_k": 6, "relative_distance": 3}
    model = tiny_model(window=5, positions=positions, **sizes)
    batch = lay_out(random_pairs(0, [(20, 30), (25, 15)]), [[0, 1]], 48, 48)
    variables = {"params": random_params(model)}
    blocks = jax.jit(model.apply)(variables, *model_inputs(batch))
    apply = functools.partial(model.apply, mutable=["intermediates"])
    whole, sown = jax.jit(apply)(variables, *model_inputs(batch))
    real = batch.tgt.segments != 0
    assert relative_error(blocks[real][:, :VOCABULARY], whole[real][:, :VOCABULARY]) < 1e-5
    (weights,) = sown["intermediates"]["encoder_0"]["self_attention"]["attention_weights"]
    assert weights.shape == (1, 3, 48, 48)


def test_each_block_of_each_row_has_a_number_of_its_own():
    blocks = Blocks(40, 16, 2, 2)
    numbers = blocks.of_rows(jnp.array([0, 1, 2, 7]))
    assert blocks.number == 3 and len(set(numbers.tolist())) == 12
