"""Who may attend to whom, by hand, and windows in blocks against a mask over the whole row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import (
    VOCABULARY,
    batch_of,
    equations,
    lay_out,
    model_inputs,
    place_of,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
)
from tests.model.configs import DISTANCES
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.patterns import (
    causal,
    mask_of,
    same_sentence,
    self_patterns,
    within,
)
from transformer_jax.model.attention.windows import SHORTEST_BLOCK, Blocks, blocks_of
from transformer_jax.model.interfaces import Place
from transformer_jax.model.parameters import abstract_params
from transformer_jax.text.batches import Packed

B, H, K = 2, 3, 4
SIDES = pytest.mark.parametrize("is_decoder", [False, True])


@SIDES
@pytest.mark.parametrize("length", [40, 75])
@pytest.mark.parametrize("window", [1, 5, 17, 35])
def test_blocks_give_what_a_mask_over_the_whole_row_gives(window, length, is_decoder):
    config = ModelConfig(window=window)
    draw = np.random.default_rng(window)
    query, key, value = (
        jnp.asarray(draw.normal(size=(B, length, H, K)), jnp.float32) for _ in range(3)
    )
    lengths = [length // 2, length // 4, length // 5]
    place = place_of(lengths, lengths[::-1], length=length)
    blocks = blocks_of(config, length, is_decoder)
    assert blocks.number > 1 or length < 3 * window

    real = np.asarray(place.segments) != 0

    def total(blocks, query, key, value):
        mask = blocks.mask(self_patterns(config, is_decoder), place)
        cut = blocks.of_queries(query), blocks.of_keys(key), blocks.of_keys(value)
        found = blocks.joined(attend(*cut, mask)[0])
        return (jnp.where(real[:, :, None, None], found, 0) ** 2).sum(), found

    run = jax.jit(jax.grad(total, (1, 2, 3), has_aux=True), static_argnums=0)
    whole = Blocks(length, length)
    (got, found), (want, over_whole) = (run(by, query, key, value) for by in (blocks, whole))
    assert relative_error(np.asarray(found)[real], np.asarray(over_whole)[real]) < 1e-6
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)  # a window of 1 has gradients of 0


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
            source = Packed(shape[:, :1], shape[:, :1], shape[:, :1])
            encoded = model.apply({"params": params}, side, method="encode").sum()
            return encoded + model.apply({"params": params}, source, side).sum()

        traced = jax.make_jaxpr(jax.grad(loss))(abstract_params(model))
        arrays = (x for one in equations(traced.jaxpr) for x in (*one.invars, *one.outvars))
        return max(int(np.prod(x.aval.shape)) for x in arrays)

    assert largest() < length * length / 4 < length * length <= largest(window=None)


@SIDES
@pytest.mark.parametrize(("every", "reach"), [(None, 8), (2, 31), (3, 8)])
def test_each_nth_layer_from_the_first_sees_the_whole_row(every, reach, is_decoder):
    """The past of the last position, in blocks: two layers with a window of 5 see 8 before it.

    A layer of the encoder sees 2 of them, and as many after it.
    """
    depths = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    model = tiny_model(window=5, global_every=every, **depths)
    batch = batch_of((32, 32))
    variables = {"params": random_params(model)}

    @jax.jit
    def last(ids):
        if not is_decoder:
            return model.apply(variables, batch.src._replace(ids=ids), method="encode")[0, 31]
        target = batch.tgt._replace(ids=ids)
        encoded = jnp.zeros((1, 32, 12))
        return model.apply(variables, encoded, batch.src, target, method="decode")[0][0, 31]

    ids = jnp.asarray(batch[is_decoder].ids)
    both = [[last(ids.at[0, n].set(word)) for word in (4, 5)] for n in range(32)]
    first = 31 - (reach if is_decoder or reach == 31 else reach // 2)
    assert [n for n, (x, y) in enumerate(both) if (x != y).any()] == list(range(first, 32))


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


PACKED = place_of([3, 2], length=6)  # then padding
ONE = place_of([5])
SEVEN = place_of([7])
NEWEST = Place(jnp.array([[1]]), jnp.array([[2]]))  # what search asks for, at position 2
PAST = "10000 11000 11100 11110 11111"


def patterns_of(is_decoder, **changes):
    return self_patterns(ModelConfig(**changes), is_decoder)


AROUND, BEHIND = (patterns_of(side, pattern="strided", stride=3) for side in (False, True))


def rows(mask):
    """The keys that each query sees, of one row: a word of 0 and 1 for each query."""
    assert mask.ndim == 4 and mask.shape[:2] == (1, 1)
    return " ".join("".join(map(str, query)) for query in mask[0, 0].astype(int).tolist())


@pytest.mark.parametrize(
    ("patterns", "query", "key", "want"),
    [
        ([same_sentence], place_of([1, 2], length=4), PACKED, "111000 000110 000110 000000"),
        ([causal], ONE, ONE, PAST),
        ([causal], NEWEST, ONE, "11100"),
        ([same_sentence, causal], PACKED, PACKED, "100000 110000 111000 000100 000110 000000"),
        ([within(0)], ONE, ONE, "10000 01000 00100 00010 00001"),
        ([within(3)], ONE, ONE, "11110 11111 11111 11111 01111"),
        (patterns_of(False), PACKED, PACKED, "111000 111000 111000 000110 000110 000000"),
        (patterns_of(True), ONE, ONE, PAST),
        (patterns_of(False, window=3), ONE, ONE, "11000 11100 01110 00111 00011"),
        (patterns_of(True, window=3), ONE, ONE, "10000 11000 11100 01110 00111"),
        (patterns_of(False, window=3), PACKED, PACKED, "110000 111000 011000 000110 000110 000000"),
        # The two positions beside a query, and those 3 and 6 away.
        (AROUND, SEVEN, SEVEN, "1111001 1111100 1111110 1111111 0111111 0011111 1001111"),
        (BEHIND, SEVEN, SEVEN, "1000000 1100000 1110000 1111000 0111100 0011110 1001111"),
    ],
)
def test_the_keys_that_each_query_sees(patterns, query, key, want):
    """A window is around the query in the encoder and ends at it in the decoder."""
    assert rows(mask_of(patterns, query, key)) == want
