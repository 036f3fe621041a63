"""The decoder's input, the padded vocabulary and the embedding's scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import (
    VOCABULARY,
    batch_of,
    lay_out,
    model_inputs,
    of_each_pair,
    random_pairs,
    random_params,
    relative_error,
    tiny_and_params,
    tiny_model,
)
from transformer_jax.model.axes import unboxed
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params, parameter_count
from transformer_jax.model.sides.embeddings import Embedding, padded_vocabulary
from transformer_jax.text.vocabulary import BOS, Sizes


def test_the_vocabulary_is_padded_to_a_multiple_of_128():
    sizes = (1, 127, 128, 129, 32_000, 37_000)
    assert [padded_vocabulary(n) for n in sizes] == [128, 128, 128, 256, 32_000, 37_120]


def test_embeddings_are_scaled_to_unit_variance():
    module = Embedding(tiny_model(d_model=64).config, 1000)
    ids = jnp.arange(1000)[None]
    table = unboxed(module.init(jax.random.key(0), ids, 0.0, None)["params"]["table"])
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


def test_fix_norm_makes_every_vector_1_long_as_input_and_for_logits():
    module = Embedding(tiny_model(fix_norm=True).config, VOCABULARY)
    table = jnp.asarray(np.random.default_rng(0).normal(size=(128, 12)), jnp.float32)
    got = module.apply({"params": {"table": table}}, jnp.array([[3, 7]]), 0.0, None)
    want = table / np.linalg.norm(table, axis=1, keepdims=True)
    np.testing.assert_allclose(got[0], 12**0.5 * want[jnp.array([3, 7])], rtol=1e-5)
    rows = module.apply({"params": {"table": table}}, method="for_output")
    np.testing.assert_allclose(rows, want, rtol=1e-5)


def test_each_side_has_a_table_of_its_size_and_the_output_is_the_target_s():
    config = tiny_model(tie_embeddings=False, tie_output=True, num_layers=1).config
    model = make_model(config, Sizes(200, 150))
    params = random_params(model)
    assert params["embedding"]["table"].shape == (256, 12)
    assert params["tgt_embedding"]["table"].shape == (256, 12) and "output" not in params
    batch = batch_of((9, 7))
    inputs = model_inputs(batch)
    apply = jax.jit(model.apply)
    logits = apply({"params": params}, *inputs)
    table_VD = params["tgt_embedding"]["table"].at[140].mul(3)
    tripled = {**params, "tgt_embedding": {"table": table_VD}}
    got = apply({"params": tripled}, *inputs)
    assert not (batch.tgt.ids == 140).any()  # so it is changed as an output alone
    assert relative_error(got[..., 140], 3 * logits[..., 140]) < 1e-5
    assert relative_error(got[..., :140], logits[..., :140]) < 1e-6
    assert (np.asarray(logits[..., 150:]) < -1e8).all() and (logits[..., 149] > -1e8).all()
    assert parameter_count(model) == parameter_count(make_model(config, 150)) + 50 * 12


def test_an_attention_memory_reads_the_source_s_words_without_their_positions():
    model, params = tiny_and_params(attention_memory="coverage_embedding", num_layers=1)
    source, _ = model_inputs(batch_of((9, 7)))
    words = model.apply({"params": params}, source, method="source_place").words
    want = params["embedding"]["table"][source.ids] * 12**0.5
    np.testing.assert_allclose(words, want, rtol=1e-6)


def test_numbers_that_are_0_but_for_the_subword_s_own_give_the_text_model():
    """The matrix of features is then the table of embeddings, times sqrt(d_model)."""
    text = tiny_model(tie_embeddings=False, tie_output=True)
    params = random_params(text)
    batch = lay_out(random_pairs(0, [(5, 4), (3, 6)]), [[0, 1]], 9, 11)
    want = jax.jit(text.apply)({"params": params}, *model_inputs(batch))[..., :VOCABULARY]
    numbers = tiny_model(tie_embeddings=False, tie_output=True, features=VOCABULARY)
    table = params["embedding"]["table"][:VOCABULARY] * text.config.d_model**0.5
    shift = jnp.arange(12.0)
    projection = {"kernel": table - shift, "bias": shift}
    others = {name: own for name, own in params.items() if name != "embedding"}
    assert abstract_params(numbers).keys() == {*others, "projection"}
    one_hot = np.eye(VOCABULARY, dtype=np.float32)[batch.src.ids]
    source, target = model_inputs(batch)
    given = {"params": {**others, "projection": projection}}
    got = jax.jit(numbers.apply)(given, source._replace(features=one_hot), target)[..., :VOCABULARY]
    assert relative_error(got, want) < 1e-5


def test_a_code_in_the_decoder_is_its_bos_and_not_in_the_source():
    """The model without it, whose table has the code's vector for BOS, and sources without it."""
    keys = {"tie_embeddings": False, "tie_output": True, "positions": "rotary", "d_k": 6}
    moved = tiny_model(**keys, code_in_decoder=True)
    params = random_params(moved)
    pairs = random_pairs(0, [(5, 4), (3, 6), (4, 3)])
    codes = [9, 11, 9]
    with_code = [([code, *src], tgt) for code, (src, tgt) in zip(codes, pairs, strict=True)]
    batch = lay_out(with_code, [[0, 1], [2]], 12, 11)
    found = jax.jit(moved.apply)({"params": params}, *model_inputs(batch))[..., :VOCABULARY]
    got = of_each_pair(found, batch, [[0, 1], [2]])
    plain = jax.jit(tiny_model(**keys).apply)
    for number, code in enumerate(codes):
        alone = lay_out(pairs, [[number]], 12, 11)
        table = params["tgt_embedding"]["table"]
        own = {**params, "tgt_embedding": {"table": table.at[BOS].set(table[code])}}
        want = plain({"params": own}, *model_inputs(alone))[..., :VOCABULARY]
        [want] = of_each_pair(want, alone, [[0]]).values()
        # As an output, BOS keeps its own vector.
        np.testing.assert_allclose(
            np.delete(got[number], BOS, -1), np.delete(want, BOS, -1), atol=2e-5
        )
