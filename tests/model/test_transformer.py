"""What must never change: causality, padding, packing, and decoding step by step or all at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tiny import (
    VOCABULARY,
    lay_out,
    model_inputs,
    of_each_pair,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
)
from transformer_jax.model.encoder_decoder import Embedding, padded_vocabulary, shift_right
from transformer_jax.text.vocabulary import BOS

SRC_LENGTH, TGT_LENGTH = 18, 16
FEW = settings(max_examples=12, deadline=None, derandomize=True)


def test_the_decoder_s_input_is_each_sentence_one_later_bos_first():
    ids = jnp.array([[11, 12, 1, 21, 1, 0], [31, 32, 33, 34, 35, 1]])
    positions = jnp.array([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]])
    assert shift_right(ids, positions, BOS).tolist() == [
        [BOS, 11, 12, BOS, 21, BOS],
        [BOS, 31, 32, 33, 34, 35],
    ]


def test_the_vocabulary_is_padded_to_a_multiple_of_128():
    sizes = (1, 127, 128, 129, 32_000, 37_000)
    assert [padded_vocabulary(n) for n in sizes] == [128, 128, 128, 256, 32_000, 37_120]


def test_embeddings_are_scaled_to_unit_variance():
    module = Embedding(tiny_model(d_model=64).config, 1000)
    ids = jnp.arange(1000)[None]
    table = module.init(jax.random.key(0), ids, 0.0, None)["params"]["table"]
    assert table.shape == (1024, 64)
    assert float(table.std()) == pytest.approx(64**-0.5, rel=0.02)
    got = module.apply({"params": {"table": table}}, ids, 0.5, None)
    np.testing.assert_allclose(got[0], 8 * table[:1000] + 0.5, rtol=1e-5, atol=1e-6)


def test_dropout_falls_on_the_sum_of_embedding_and_position():
    module = Embedding(tiny_model(dropout=0.5, d_model=64).config, VOCABULARY)
    params = {"table": 1.0 + jnp.arange(128 * 64.0).reshape(128, 64)}
    arguments = jnp.arange(VOCABULARY)[None], 0.5
    whole = module.apply({"params": params}, *arguments, None)
    rngs = {"dropout": jax.random.key(0)}
    got = np.asarray(module.apply({"params": params}, *arguments, jnp.arange(1), rngs=rngs))
    assert (got == 0).mean() == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(got[got != 0], 2 * whole[got != 0], rtol=1e-6)


@functools.cache
def model_and_params(**changes):
    model = tiny_model(**changes)
    return model, random_params(model)


@functools.cache
def compiled(norm):
    model, params = model_and_params(norm=norm, num_layers=2)
    apply = jax.jit(model.apply)
    return lambda batch: np.asarray(apply({"params": params}, *model_inputs(batch)))


def lengths():
    return st.tuples(st.integers(1, SRC_LENGTH // 2), st.integers(1, TGT_LENGTH // 2))


@pytest.mark.parametrize("norm", ["post", "pre"])
@FEW
@given(seed=st.integers(0, 99), changed=st.integers(0, TGT_LENGTH - 2), token=st.integers(4, 40))
def test_a_later_target_subword_changes_no_earlier_logits(norm, seed, changed, token):
    batch = lay_out(random_pairs(seed, [(9, TGT_LENGTH)] * 2), [[0], [1]], SRC_LENGTH, TGT_LENGTH)
    before = compiled(norm)(batch)
    batch.tgt_ids[0, changed] = token if token != batch.tgt_ids[0, changed] else 3
    after = compiled(norm)(batch)
    # The subword at `changed` is the decoder's input at changed + 1.
    np.testing.assert_array_equal(before[0, : changed + 1], after[0, : changed + 1])
    assert (before[0, changed + 1 :] != after[0, changed + 1 :]).any(-1).all()
    np.testing.assert_array_equal(before[1], after[1])


@FEW
@given(seed=st.integers(0, 99), pairs=st.lists(lengths(), min_size=4, max_size=4))
def test_a_sentence_has_the_same_logits_alone_and_packed_with_others(seed, pairs):
    pairs = random_pairs(seed, pairs)
    results = []
    for rows in ([[0], [1], [2], [3]], [[2, 0], [], [1, 3], []]):
        batch = lay_out(pairs, rows, SRC_LENGTH, TGT_LENGTH)
        results.append(of_each_pair(compiled("post")(batch), batch, rows))
    for number in range(4):
        alone, packed = (logits[number][:, :VOCABULARY] for logits in results)
        assert relative_error(packed, alone) < 1e-5


@FEW
@given(seed=st.integers(0, 99), pairs=st.lists(lengths(), min_size=4, max_size=4))
def test_what_stands_in_the_padding_changes_nothing(seed, pairs):
    rows = [[0], [1], [2], [3]]
    batch = lay_out(random_pairs(seed, pairs), rows, SRC_LENGTH, TGT_LENGTH)
    before = of_each_pair(compiled("post")(batch), batch, rows)
    for ids, segments in ((batch.src_ids, batch.src_segments), (batch.tgt_ids, batch.tgt_segments)):
        ids[segments == 0] = np.random.default_rng(seed).integers(4, VOCABULARY)
    after = of_each_pair(compiled("post")(batch), batch, rows)
    for number in range(4):
        np.testing.assert_array_equal(before[number], after[number])


def test_more_padding_changes_nothing():
    pairs, rows = random_pairs(3, [(9, 7), (4, 5)]), [[0], [1]]
    short, long = (lay_out(pairs, rows, *shape) for shape in ((9, 7), (SRC_LENGTH, TGT_LENGTH)))
    want = of_each_pair(compiled("post")(short), short, rows)
    got = of_each_pair(compiled("post")(long), long, rows)
    for number in range(2):
        assert relative_error(got[number], want[number]) < 1e-5


def test_logits_of_the_vocabulary_s_padding_are_out_of_reach():
    batch = lay_out(random_pairs(0, [(9, 7)] * 2), [[0], [1]], SRC_LENGTH, TGT_LENGTH)
    logits = compiled("post")(batch)
    assert logits.shape == (2, TGT_LENGTH, 128)
    assert (logits[..., VOCABULARY:] <= -1e8).all() and np.isfinite(logits).all()
    assert (logits[..., :VOCABULARY] > -1e4).all()


@pytest.mark.parametrize(
    "norm, positions, tied",
    [
        ("post", "sinusoidal", True),
        ("pre", "learned", True),
        ("pre", "sinusoidal", False),
        ("post", "learned", False),
    ],
)
def test_decoding_step_by_step_equals_decoding_all_at_once(norm, positions, tied):
    """Rows of different positions, whose hypotheses change places in the beam at every step."""
    settings = {"norm": norm, "positions": positions, "tie_embeddings": tied, "max_positions": 24}
    model, params = model_and_params(**settings)
    variables = {"params": params}
    beams, length, max_length, late = 3, 20, 24, 2  # the cache has blocks of 16 and 8 positions
    pairs = random_pairs(4, [(9, length), (5, length)] * beams)  # 6 hypotheses of 2 sources
    pairs = [(pairs[n % 2][0], tgt) for n, (_, tgt) in enumerate(pairs)]
    batch = lay_out(pairs, [[n] for n in range(6)], 9, length)
    inputs = model_inputs(batch)
    want = np.asarray(jax.jit(model.apply)(variables, *inputs)).reshape(beams, 2, length, -1)
    ids_JBL = np.asarray(inputs[3]).reshape(beams, 2, length)

    source = [x[:2] for x in batch[:3]]

    @jax.jit
    def start(*source):
        encoded = model.apply(variables, *source, method="encode")
        return model.apply(variables, encoded, source[1], method="start_decoding")

    step = jax.jit(functools.partial(model.apply, variables, method="decode_step"))
    memory, cache = start(*source), model.empty_cache(2, beams, max_length)
    output = model.apply(variables, method="output_embedding")
    assert jax.tree.map(jnp.shape, memory) == jax.tree.map(
        jnp.shape, model.empty_memory(2, source[0].shape[1])
    )
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(cache))
    # What stands at or after the position is not read, so search may leave anything there.
    cache = jax.tree.map(lambda x: x + 1e3, cache)
    draw = np.random.default_rng(0)
    parents = np.zeros((2, beams), np.int32)  # a Transformer looks its ancestors up
    place_BLJ = draw.permuted(np.tile(np.arange(beams), (2, length, 1)), axis=2)  # of hypothesis J
    for steps in range(length + late):
        position_B = np.clip([steps, steps - late], 0, length - 1)
        ids_BK = np.zeros((2, beams), np.int32)
        ancestors_BKT = np.full((2, beams, max_length), beams - 1)
        for b, j in np.ndindex(2, beams):
            place_L = place_BLJ[b, : position_B[b] + 1, j]
            ids_BK[b, place_L[-1]] = ids_JBL[j, b, position_B[b]]
            ancestors_BKT[b, place_L[-1], : len(place_L)] = place_L
        logits, cache = step(ids_BK, position_B, parents, ancestors_BKT, memory, cache, output)
        for b, j in np.ndindex(2, beams):
            got = logits[b, place_BLJ[b, position_B[b], j]]
            assert relative_error(got, want[j, b, position_B[b], :VOCABULARY]) < 1e-5


def equations(jaxpr):
    """Every primitive operation of a traced function, inner functions too."""
    for equation in jaxpr.eqns:
        inner = [p for p in equation.params.values() if hasattr(p, "jaxpr")]
        if inner:
            for closed in inner:
                yield from equations(closed.jaxpr)
        else:
            yield equation


def test_bfloat16_is_for_matrix_products_and_float32_for_all_that_adds_up():
    model, params = model_and_params(dtype="bfloat16")
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
    batch = lay_out(random_pairs(0, [(9, 7)] * 2), [[0], [1]], SRC_LENGTH, TGT_LENGTH)
    traced = jax.make_jaxpr(model.apply)({"params": params}, *model_inputs(batch))
    kinds: dict[str, set[str]] = {}
    for equation in equations(traced.jaxpr):
        types = {str(v.aval.dtype) for v in equation.invars if hasattr(v, "aval")}
        kinds.setdefault(equation.primitive.name, set()).update(types)
    assert kinds["dot_general"] == {"bfloat16"}
    for name in ("exp", "reduce_sum", "rsqrt"):  # softmax and layer normalisation
        assert kinds[name] == {"float32"}
    assert traced.out_avals[0].dtype == jnp.float32


def test_a_model_trains_the_same_parameters_whatever_the_precision():
    shapes = [
        jax.tree.map(lambda x: (x.shape, x.dtype), random_params(tiny_model(dtype=dtype)))
        for dtype in ("float32", "bfloat16")
    ]
    assert shapes[0] == shapes[1]
