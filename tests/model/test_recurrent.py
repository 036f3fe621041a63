"""The recurrent model against its equations, one sentence and one position after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from tests.fixtures.references import gated_unit_by_hand
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
    from_inputs = w["bias"] + sum(x @ weights for x, weights in inputs)
    return gated_unit_by_hand(state, from_inputs, (w["update"], w["reset"], w["candidate"]))


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
        dropped, of_other = np.asarray(x) == 0, np.asarray(y) == 0
        assert 0.4 < dropped.mean() < 0.6
        assert np.array_equal(x[0], y[0])
        assert (dropped[1] != of_other[1]).any() and (dropped[0] != dropped[1]).any()


@functools.cache
def parameters_and_outputs():
    """Parameters, and a compiled function of them that returns the outputs of each side."""
    model, params = model_and_params(tie_embeddings=False)

    def both(model, source, target):
        encoded = model.encode(source)
        return {"src": [encoded], "tgt": model.decode(encoded, source, target)}

    apply = functools.partial(model.clone(watch=True).apply, method=both)
    return params, jax.jit(lambda params: apply({"params": params}, *model_inputs(BATCH)))


@pytest.mark.parametrize(("side", "segment"), [("src", 1), ("src", 2), ("tgt", 1)])
def test_a_sentence_s_nan_vectors_do_not_reach_its_neighbors_in_the_row(side, segment):
    params, outputs = parameters_and_outputs()
    ids, segments, *_ = getattr(BATCH, side)
    own = (segments == segment) & (np.arange(len(ids))[:, None] == 1)
    name = {"src": "embedding", "tgt": "tgt_embedding"}[side]
    of_no_other = np.setdiff1d(ids[own], ids[~own])
    table = jnp.asarray(params[name]["table"]).at[of_no_other].set(np.nan)
    want, got = (outputs(p)[side] for p in (params, {**params, name: {"table": table}}))
    assert np.isnan(np.asarray(got[0])[own][-1]).any(), "NaN goes on to the sentence's end"
    others = (segments != 0) & ~own
    for one, other in zip(got, want, strict=True):  # vectors, and the decoder's weights
        np.testing.assert_array_equal(np.asarray(one)[others], np.asarray(other)[others])
