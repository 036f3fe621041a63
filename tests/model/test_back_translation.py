"""Learning without pairs: the noise, the sources that are made, and the loss by another path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.cases import refused
from tests.fixtures.tiny import lay_out, random_pairs, tiny_and_params
from transformer_jax.decoding.candidates import draw_translations
from transformer_jax.errors import ConfigError
from transformer_jax.model.layers.dropout import NoiseSource
from transformer_jax.model.outputs.back_translation import (
    BACK_TRANSLATION,
    CODES,
    DROPPED,
    MOVED,
    check_two_codes,
    noised,
    to_other_language,
)
from transformer_jax.text.batches import packed_sentences
from transformer_jax.text.vocabulary import EOS
from transformer_jax.training.step import make_loss_fn

TARGETS = [tgt for _, tgt in random_pairs(0, [(1, 7), (1, 4), (1, 9)])]
OWN = [CODES[0], CODES[1], CODES[0]]
BATCH = lay_out(
    [([code, EOS], tgt) for code, tgt in zip(OWN, TARGETS, strict=True)], [[0], [1], [2]], 5, 12
)


def lines(side):
    """The sentences of the rows of a side, as lists of ids."""
    return [
        np.asarray(ids)[np.asarray(segments) != 0].tolist()
        for ids, segments in zip(side.ids, side.segments, strict=True)
    ]


def test_what_is_translated_is_the_target_with_the_code_of_the_other_language():
    source = to_other_language(BATCH.map(jnp.asarray))
    others = [sum(CODES) - code for code in OWN]
    assert lines(source) == [[code, *tgt] for code, tgt in zip(others, TARGETS, strict=True)]
    assert source.positions[2, :10].tolist() == list(range(10))


def test_an_empty_row_stays_empty():
    empty = lay_out([([CODES[0], EOS], [7, EOS])], [[0], []], 5, 4)
    assert lines(to_other_language(empty.map(jnp.asarray))) == [[CODES[1], 7, EOS], []]


def test_noise_leaves_out_a_tenth_and_moves_subwords_a_little():
    words, draws = 20, 2_000
    text = packed_sentences([[*range(10, 10 + words), EOS], [9, EOS]], 2, words + 3)
    bits = np.random.default_rng(0).integers(0, 2**32, (draws, 3), dtype=np.uint32)
    draw = jax.vmap(lambda bits: noised(text.map(jnp.asarray), NoiseSource(bits, jnp.arange(2))))
    found = jax.jit(draw)(bits)
    kept, far = np.zeros(words), []
    for ids, segments in zip(found.ids[:, 0], found.segments[:, 0], strict=True):
        *own, end = np.asarray(ids)[np.asarray(segments) != 0]
        assert end == EOS and len(set(own)) == len(own)
        places = np.array(own) - 10
        kept[places] += 1
        ranks = np.argsort(np.argsort(places))
        far.append(np.abs(ranks - np.arange(len(own))))
    np.testing.assert_allclose(kept / draws, 1 - DROPPED, atol=0.03)
    far = np.concatenate(far)
    assert far.max() == MOVED and 0.7 < far.mean() < 1.3


def translated_by(model, params):
    """The model's greedy translation of each target into the other language."""
    asked = BATCH.map(jnp.asarray)
    asked = asked._replace(src=to_other_language(asked))
    return draw_translations(model, params, asked, jax.random.key(0), 1, 0.0)


def test_the_loss_is_that_of_two_ordinary_batches():
    """Of the target given itself, and given its translation, each a batch for plain training."""
    model, params = tiny_and_params(num_layers=1)
    drawn = jax.jit(lambda params: translated_by(model, params))(params)
    weights = {BACK_TRANSLATION: 0.5}
    loss = jax.jit(make_loss_fn(model, 0.1, auxiliary=weights))
    got = loss(params, BATCH._replace(drawn=drawn))
    plain = jax.jit(make_loss_fn(model, 0.1))
    translations = [
        ids[0, : lengths[0]].tolist()
        for ids, lengths in zip(np.asarray(drawn.ids), np.asarray(drawn.lengths), strict=True)
    ]
    assert all(one[-1] == EOS for one in translations)
    wanted = []
    for sources in (TARGETS, translations):
        pairs = [([code, *src], tgt) for code, src, tgt in zip(OWN, sources, TARGETS, strict=True)]
        wanted.append(plain(params, lay_out(pairs, [[0], [1], [2]], 13, 12)))
    np.testing.assert_allclose(got.smoothed_nats, wanted[0].smoothed_nats, rtol=1e-5)
    np.testing.assert_allclose(got.nats, wanted[0].nats, rtol=1e-5)
    np.testing.assert_allclose(
        got.auxiliary[BACK_TRANSLATION], 0.5 * wanted[1].smoothed_nats, rtol=1e-5
    )
    assert abs(wanted[0].nats - wanted[1].nats) > 0.1


def test_greedy_translations_are_the_likeliest_subwords():
    model, params = tiny_and_params(num_layers=1)
    drawn = jax.jit(lambda params: translated_by(model, params))(params)
    asked = to_other_language(BATCH.map(jnp.asarray))
    for row in range(3):
        text = drawn.ids[row, 0, : drawn.lengths[row, 0]].tolist()
        target = packed_sentences([[2, *text[:-1]]], 1, len(text))  # 2: BOS
        source = asked.map(lambda x, row=row: x[row : row + 1])
        logits = jax.jit(model.apply)({"params": params}, source, target)[0]
        best = logits.argmax(-1).tolist()
        is_cut = len(text) == BATCH.tgt.ids.shape[1]
        assert best[: len(text) - is_cut] == text[: len(text) - is_cut]


@pytest.mark.parametrize("codes", [{}, {">>a<<": 4}, {">>a<<": 4, ">>b<<": 5, ">>c<<": 6}])
def test_a_vocabulary_with_other_codes_is_refused(codes):
    with refused(ConfigError, "the codes of two languages", "c<<" if len(codes) > 2 else ""):
        check_two_codes(codes)
    check_two_codes({">>b<<": 5, ">>a<<": 4})
