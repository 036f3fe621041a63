"""The recurrent model against its equations, one sentence and one position after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

from tests.fixtures.tiny import (
    SIZES,
    VOCABULARY,
    lay_out,
    model_inputs,
    of_each_pair,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
)
from transformer_jax.model.parameters import init_params
from transformer_jax.text.vocabulary import BOS

H = 17  # d_hidden
PAIRS = random_pairs(3, [(9, 7), (4, 5), (2, 3), (6, 2)])
ROWS = [[0, 2], [1, 3]]
KEY = jax.random.key(0)
BATCH = lay_out(PAIRS, ROWS, 13, 12)


def model_and_params(**changes):
    model = tiny_model(encoder="recurrent", decoder="recurrent", d_hidden=H, **changes)
    return model, random_params(model)


def unit(w, state, *inputs):
    """A gated unit's next state; `inputs` are pairs of a vector and its weights [.., 3 H]."""
    z_in, r_in, c_in = np.split(w["bias"] + sum(x @ weights for x, weights in inputs), 3)
    z = expit(z_in + state @ w["update"])
    r = expit(r_in + state @ w["reset"])
    return (1 - z) * state + z * np.tanh(c_in + (r * state) @ w["candidate"])


def reference(params, src, tgt):
    """Logits `[tgt_len, vocabulary]` of one sentence pair, float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    scale = np.sqrt(SIZES["d_model"])
    x = [p["embedding"]["table"][i] * scale for i in src]
    forward, backward = [np.zeros(H)], [np.zeros(H)]
    for vector in x:
        w = p["left_to_right"]
        forward.append(unit(w, forward[-1], (vector, w["input"])))
    for vector in reversed(x):
        w = p["right_to_left"]
        backward.insert(0, unit(w, backward[0], (vector, w["input"])))
    h = [np.concatenate(both) for both in zip(forward[1:], backward[:-1], strict=True)]
    d = p["decoder"]
    s = np.tanh(backward[0] @ d["start"])
    logits = []
    for before in [BOS, *tgt[:-1]]:
        y = p["tgt_embedding"]["table"][before] * scale
        e = np.array([np.tanh(s @ d["query"] + hj @ d["key"]) @ d["score"] for hj in h])
        c = sum(aj * hj for aj, hj in zip(softmax(e), h, strict=True))
        s = unit(d["unit"], s, (y, d["unit"]["input"]), (c, d["context"]))
        t = np.concatenate([s, c, y]) @ d["readout"] + d["readout_bias"]
        t = np.array([max(t[2 * j], t[2 * j + 1]) for j in range(len(t) // 2)])
        logits.append(p["output"]["table"][:VOCABULARY] @ t)
    return np.array(logits)


def test_packed_sentences_give_what_each_gives_alone_by_its_equations():
    model, params = model_and_params(tie_embeddings=False)
    logits = jax.jit(model.apply)({"params": params}, *model_inputs(BATCH))
    found = of_each_pair(logits, BATCH, ROWS)
    for number, (src, tgt) in enumerate(PAIRS):
        want = reference(params, src, tgt)
        assert relative_error(found[number][:, :VOCABULARY], want) < 1e-5


def test_initial_parameters_hold_gradients_in_range():
    model, _ = model_and_params()
    initial = jax.jit(functools.partial(init_params, model))
    drawn = [initial(jax.random.key(seed)) for seed in range(20)]
    recurrent, other = (np.asarray(params["left_to_right"]["update"]) for params in drawn[:2])
    assert np.allclose(recurrent @ recurrent.T, np.eye(H), atol=1e-5)
    assert not np.allclose(recurrent, other)
    scores = [params["decoder"]["score"] for params in drawn]
    assert np.std(scores) == pytest.approx(H**-0.5, rel=0.15)


def test_dropout_falls_on_annotations_and_on_what_is_before_the_vocabulary_by_row():
    model, params = model_and_params(dropout=0.5)
    source, target = model_inputs(lay_out(PAIRS, [[0], [0]], 9, 7))

    def both(model, rows):
        encoded = model.encode(source, rows)
        return encoded, model.decode(encoded, source, target, rows)[0]

    apply = jax.jit(functools.partial(model.apply, method=both, rngs={"dropout": KEY}))
    first, other = (apply({"params": params}, np.array(rows)) for rows in ([0, 1], [0, 2]))
    for x, y in zip(first, other, strict=True):
        assert 0.4 < np.mean(np.asarray(x) == 0) < 0.6
        assert np.array_equal(x[0], y[0])
        assert not np.allclose(x[1], y[1]) and not np.allclose(x[0], x[1])


@functools.cache
def encoded_and_decoded():
    """Parameters, and a function of (changes of them, batch).

    It returns the annotations, the decoder's output and its attention's weights.
    """
    model, params = model_and_params(tie_embeddings=False)
    model = model.clone(watch=True)

    def both(model, source, target):
        encoded = model.encode(source)
        return encoded, *model.decode(encoded, source, target)

    @jax.jit
    def compute(changes, batch):
        changed = {name: {**params[name], **new} for name, new in changes.items()}
        return model.apply({"params": {**params, **changed}}, *model_inputs(batch), method=both)

    return params, compute


def is_of(side, row, segment):
    """Booleans `[batch, length]`: where a sentence of the batch is."""
    return (np.arange(len(side.ids))[:, None] == row) & (side.segments == segment)


def with_nan(table, side, own):
    """The embedding table with NaN for subwords that are nowhere else in this side of BATCH."""
    ids = np.setdiff1d(side.ids[own], side.ids[~own])
    return {"table": jnp.asarray(table).at[ids].set(np.nan)}


@pytest.mark.parametrize("segment", [1, 2])
def test_a_sentence_s_nan_annotations_do_not_reach_its_neighbors_in_the_row(segment):
    params, compute = encoded_and_decoded()
    own = is_of(BATCH.src, 1, segment)
    changes = {"embedding": with_nan(params["embedding"]["table"], BATCH.src, own)}
    want, got = (np.asarray(compute(c, BATCH)[0]) for c in ({}, changes))
    assert np.isnan(got[own]).any(-1).all()
    others = (BATCH.src.segments != 0) & ~own
    np.testing.assert_array_equal(got[others], want[others])


def test_a_translation_s_nan_states_do_not_reach_the_next_one_of_the_row():
    params, compute = encoded_and_decoded()
    own = is_of(BATCH.tgt, 1, 1)
    changes = {"tgt_embedding": with_nan(params["tgt_embedding"]["table"], BATCH.tgt, own)}
    want, got = (compute(c, BATCH)[1:] for c in ({}, changes))
    assert np.isnan(np.asarray(got[0])[1, own[1].nonzero()[0].max()]).all()  # at its end
    others = (BATCH.tgt.segments != 0) & ~own
    for one, other in zip(got, want, strict=True):  # outputs, weights
        np.testing.assert_array_equal(np.asarray(one)[others], np.asarray(other)[others])
