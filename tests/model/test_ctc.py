"""CTC: the sum over all ways to write a text against Optax, the loss by hand, packed rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.fixtures.tiny import VOCABULARY, lay_out, random_pairs, relative_error, tiny_and_params
from transformer_jax.decoding.parallel import collapsed
from transformer_jax.model.outputs.ctc import BLANK, STATES, log_likelihood, possible_labels, states
from transformer_jax.text.batches import packed_sentences
from transformer_jax.text.vocabulary import EOS
from transformer_jax.training.step import make_loss_fn


def likelihood(log_p_BTV, sentences, frames=None):
    """`log_likelihood` of one sentence a row; `frames`: how many states of each row count."""
    labels = packed_sentences(sentences, len(sentences), max(map(len, sentences)))
    labels = labels.map(jnp.asarray)
    count_B = jnp.asarray([len(one) for one in sentences])
    emit_BTL = jnp.take_along_axis(log_p_BTV, labels.ids[:, None], axis=-1)
    emit_BTL = jnp.where((labels.segments != 0)[:, None], emit_BTL, -1e30)
    frames_B = jnp.full(len(sentences), log_p_BTV.shape[1]) if frames is None else frames
    counted_BT = jnp.arange(log_p_BTV.shape[1]) < frames_B[:, None]
    return log_likelihood(emit_BTL, log_p_BTV[..., BLANK], counted_BT, labels, count_B)


def test_likelihood_and_gradient_are_those_of_optax():
    draw = np.random.default_rng(1)
    sentences = [[5, 5, 9, EOS], [4, 9, 9, 9, 8, 8, EOS], [EOS]]
    frames = jnp.asarray([12, 20, 3])
    logits_BTV = draw.normal(size=(3, 20, VOCABULARY)).astype(np.float32)
    labels = packed_sentences(sentences, 3, 7)
    late = (jnp.arange(20) >= frames[:, None]).astype(jnp.float32)

    def ours(logits_BTV):
        return -likelihood(jax.nn.log_softmax(logits_BTV), sentences, frames).sum()

    def theirs(logits_BTV):
        padding = (labels.segments == 0).astype(np.float32)
        return optax.ctc_loss(logits_BTV, late, labels.ids, padding, blank_id=BLANK).sum()

    got, want = (jax.jit(jax.value_and_grad(loss))(logits_BTV) for loss in (ours, theirs))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    assert relative_error(got[1], want[1]) < 1e-4


PAIRS = random_pairs(0, [(9, 7), (3, 12), (6, 2), (5, 5), (2, 1), (1, 1)])
ROWS = [[0, 1, 2], [4, 5, 3]]  # the second pair does not fit into its states


def test_a_packed_row_has_the_loss_of_its_sentences_that_can_be_written():
    model, params = tiny_and_params(parallel="ctc", num_layers=1)
    loss = jax.jit(make_loss_fn(model, 0.1))
    packed = loss(params, lay_out(PAIRS, ROWS, 18, 24))
    alone = loss(params, lay_out(PAIRS, [[n] for n in range(6) if n != 1], 18, 24))
    for got, want in zip(packed[:4], alone[:4], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert packed.tokens == sum(len(PAIRS[n][1]) for n in range(6) if n != 1)


def test_a_text_fits_if_its_states_hold_it_and_a_blank_between_equal_subwords():
    for target, fits in (([7, 8, 9, 4, 5, EOS], True), ([7, 7, 9, 4, 5, EOS], False)):
        batch = lay_out([([4, EOS], target), ([4, EOS], [8, EOS])], [[0, 1]], 5, 9)
        source = batch.src.map(lambda x: jnp.repeat(x, STATES, axis=1))
        labels, count_B = possible_labels(batch.tgt.map(jnp.asarray), source)
        assert count_B[0] == 2 + 6 * fits
        kept = [*target, 8, EOS] if fits else [8, EOS]
        assert labels.ids[0, : len(kept)].tolist() == kept
        assert (labels.segments[0] != 0).tolist() == [n < len(kept) for n in range(9)]


def test_the_loss_by_hand():
    """Of one sentence, from the decoder's output at its states, with label smoothing."""
    model, params = tiny_and_params(parallel="ctc", num_layers=1, output_bias=True)
    sentence = [7, 8, 8, EOS]
    batch = lay_out([([5, 6, 9, EOS], sentence)], [[0]], 6, 5)
    sums = jax.jit(make_loss_fn(model, 0.25))(params, batch)

    def logits(model):
        x, _ = states(model, model.encode(batch.src), batch.src, None)
        return model.out().logits(x, model.given(None, x, batch.src, batch.tgt))

    applied = jax.jit(lambda params: model.apply({"params": params}, method=logits))
    found = applied(params)[:, : 4 * STATES, :VOCABULARY]
    log_p_BTV = jax.nn.log_softmax(found)
    nats = -likelihood(log_p_BTV, [sentence])[0]
    even = -np.asarray(log_p_BTV).mean(-1).sum() / STATES
    np.testing.assert_allclose(sums.nats, nats, rtol=1e-5)
    np.testing.assert_allclose(sums.smoothed_nats, 0.75 * nats + 0.25 * even, rtol=1e-5)
    named = set(np.asarray(found).argmax(-1).ravel().tolist())
    assert sums.tokens == 4 and sums.correct == sum(x in named for x in sentence)


def test_a_position_has_its_states_one_after_the_other():
    """Those of equal vectors differ by their positions."""
    model, params = tiny_and_params(parallel="ctc", num_layers=1)
    source = lay_out([([5, 6, EOS], [7, EOS]), ([4, EOS], [EOS])], [[0, 1]], 6, 3).src
    encoded = jnp.ones((1, 6, model.config.d_model))

    def of_source(model):
        return states(model, encoded, source, None)

    x_BTD, place = jax.jit(lambda: model.apply({"params": params}, method=of_source))()
    assert place.positions[0, :15].tolist() == [*range(9), *range(6)]
    assert place.segments.tolist() == [[1] * 9 + [2] * 6 + [0] * 3]
    assert np.abs(x_BTD[0, 0] - x_BTD[0, STATES]).max() > 0.1


@pytest.mark.parametrize(
    ("named", "written"),
    [
        ([7, 7, BLANK, 7, 8, EOS, BLANK], [7, 7, 8, EOS]),
        ([BLANK, BLANK], [EOS]),
        ([8, EOS, 9], [8, EOS]),
        ([8, 9, 9], [8, 9, EOS]),
    ],
)
def test_repeated_subwords_are_merged_and_blanks_left_out(named, written):
    assert collapsed(np.array(named, np.int32)).tolist() == written
