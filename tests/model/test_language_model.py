"""Decoders without encoder-decoder attention: language models, and those that read a source.

A language model is compared with an encoder-decoder whose attention to the source is cut; one that
reads a source (model.encoder=prefix) with the language model of both texts, and with an encoder.
"""

import jax
import numpy as np
import pytest

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import VOCABULARY, lay_out, model_inputs, random_pairs, tiny_model
from tests.fixtures.tiny import random_params as random_params_of
from transformer_jax.model.attention.maps import attention_maps
from transformer_jax.model.interfaces import PREFIXES
from transformer_jax.text.batches import Packed, packed_sentences
from transformer_jax.text.vocabulary import EOS

PAIRS = random_pairs(5, [(9, 7), (4, 5), (2, 3)])
ROWS = [[1, 0], [2]]


def test_it_is_the_decoder_whose_attention_to_the_source_adds_nothing():
    """With pre-norm a sub-layer that adds 0 leaves its input as it is, so the logits are equal."""
    whole = tiny_model(norm="pre", num_layers=2)
    alone = tiny_model(norm="pre", num_layers=2, encoder="none")
    params = random_params_of(whole)
    own = {name: x for name, x in params.items() if not name.startswith("encoder")}
    for n in range(2):
        layer = dict(own[f"decoder_{n}"])
        cut = jax.tree.map(np.zeros_like, layer.pop("cross_attention"))
        layer.pop("cross_attention_residual")
        params[f"decoder_{n}"]["cross_attention"] = cut
        own[f"decoder_{n}"] = layer
    assert jax.tree.map(np.shape, own) == jax.tree.map(np.shape, random_params_of(alone))
    batch = model_inputs(lay_out(PAIRS, ROWS, 16, 16))
    want = jax.jit(whole.apply)({"params": params}, *batch)[..., :VOCABULARY]
    got = jax.jit(alone.apply)({"params": own}, *batch)[..., :VOCABULARY]
    real = batch[1].segments != 0
    np.testing.assert_allclose(got[real], want[real], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_causal_prefix_gives_what_a_language_model_of_both_texts_gives(positions):
    """The language model reads each source, then BOS, then the target, one text in a row."""
    sizes = {"num_layers": 2, "positions": positions, "d_k": 6}
    translating = tiny_model(encoder="causal_prefix", **sizes)
    alone = tiny_model(encoder="none", **sizes)
    params, compute = random_params_of(alone), jax.jit(alone.apply)
    source, target = model_inputs(lay_out(PAIRS, ROWS, 16, 16))
    got = jax.jit(translating.apply)({"params": params}, source, target)
    for row, number in ((0, 1), (0, 2), (1, 1)):
        parts = [(side, side.segments[row] == number) for side in (source, target)]
        text = np.concatenate([side.ids[row][own] for side, own in parts])
        places = np.ones(len(text), np.int32), np.arange(len(text), dtype=np.int32)
        read = Packed(*(x[None] for x in (text, *places)))
        want = compute({"params": params}, packed_sentences([[EOS]], 1, 4), read)
        np.testing.assert_allclose(
            got[row][parts[1][1]][:, :VOCABULARY],
            want[0, -parts[1][1].sum() :, :VOCABULARY],
            rtol=2e-5,
            atol=2e-5,
        )


def test_a_prefix_is_read_as_by_an_encoder():
    """The second layer's keys are those of what an encoder of one layer gives."""
    model = tiny_model(encoder="prefix", num_layers=2)
    params = random_params_of(model)
    encoder = tiny_model(num_layers=1)
    own = random_params_of(encoder) | {"embedding": params["embedding"]}
    own["encoder_0"] = params["decoder_0"]
    source, _ = model_inputs(lay_out(PAIRS, [[0], [2]], 16, 16))

    def remembered(model):
        return model.remember(model.encode(source), source)

    memory = jax.jit(lambda: model.apply({"params": params}, method=remembered))()
    encoded_BMD = jax.jit(lambda: encoder.apply({"params": own}, source, method="encode"))()
    matrix_DGK = params["decoder_1"]["self_attention"]["key"]
    want_BGMK = np.einsum("BMD,DGK->BGMK", encoded_BMD, matrix_DGK)
    got_BGMK = memory.decoder[1]["self_attention"][0]
    real_BM = np.asarray(source.segments) != 0
    for got, want, real in zip(got_BGMK, want_BGMK, real_BM, strict=True):
        np.testing.assert_allclose(got[:, real], want[:, real], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("encoder", first_quick(PREFIXES, 1))
def test_the_fused_kernel_reads_a_prefix_as_the_plain_one(encoder):
    fused = tiny_model(encoder=encoder, num_layers=2, attention_kernel="fused")
    plain = tiny_model(encoder=encoder, num_layers=2)
    params = random_params_of(plain)
    batch = model_inputs(lay_out(PAIRS, ROWS, 32, 16))  # more than a block
    got, want = (jax.jit(model.apply)({"params": params}, *batch) for model in (fused, plain))
    real = batch[1].segments != 0
    np.testing.assert_allclose(got[real], want[real], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("encoder", PREFIXES)
def test_the_three_uses_of_attention_are_blocks_of_one(encoder):
    model = tiny_model(encoder=encoder, num_layers=2)
    source, target = model_inputs(lay_out(PAIRS, [[0], [2]], 16, 12))
    maps = attention_maps(model, random_params_of(model), source, target)
    sums = {use: np.asarray(weights.sum(-1)) for use, weights in maps.items()}
    own = [np.asarray(side.segments)[0] != 0 for side in (source, target)]
    np.testing.assert_allclose(sums["encoder"][0][:, :, own[0]], 1, rtol=1e-5)
    np.testing.assert_allclose((sums["decoder"] + sums["cross"])[0][:, :, own[1]], 1, rtol=1e-5)
    source_NHMM, target_NHLL = (
        np.asarray(maps[use])[0][:, :, real] for use, real in zip(maps, own, strict=False)
    )
    seen = [np.triu(x, 1).max() > 0 for x in (source_NHMM, target_NHLL)]
    assert seen == [encoder == "prefix", False]
    assert maps["cross"].shape[:2] == (2, 2) and maps["cross"].shape[3:] == (12, 16)
