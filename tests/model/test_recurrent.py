"""The recurrent model against its equations, one sentence and one position after the other."""

import functools

import jax
import numpy as np
import pytest

from tests.fixtures.tiny import (
    SIZES,
    VOCABULARY,
    lay_out,
    model_inputs,
    of_each_pair,
    random_pairs,
    random_params,
    relative_error,
)
from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.kinds import make_model
from transformer_jax.text.vocabulary import BOS

H = 17  # d_hidden
PAIRS = random_pairs(3, [(9, 7), (4, 5), (2, 3), (6, 2)])
ROWS = [[0, 2], [1, 3]]
BATCH = lay_out(PAIRS, ROWS, 13, 12)


def model_and_params(**changes):
    config = ModelConfig(**{**SIZES, "kind": "recurrent", "d_hidden": H, "dropout": 0.0, **changes})
    model = make_model(config, VOCABULARY)
    return model, random_params(model)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unit(w, state, *inputs):
    """A gated unit's next state; `inputs` are pairs of a vector and its weights [.., 3 H]."""
    z_in, r_in, c_in = np.split(w["bias"] + sum(x @ weights for x, weights in inputs), 3)
    z = sigmoid(z_in + state @ w["update"])
    r = sigmoid(r_in + state @ w["reset"])
    return (1 - z) * state + z * np.tanh(c_in + (r * state) @ w["candidate"])


def reference(params, src, tgt, tied=True):
    """Logits `[tgt_len, vocabulary]` of one sentence pair, float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    scale = np.sqrt(SIZES["d_model"])
    x = [p["embedding"]["table"][i] * scale for i in src]
    forward, backward = [], []
    state = np.zeros(H)
    for vector in x:
        state = unit(p["left_to_right"], state, (vector, p["left_to_right"]["input"]))
        forward.append(state)
    state = np.zeros(H)
    for vector in reversed(x):
        state = unit(p["right_to_left"], state, (vector, p["right_to_left"]["input"]))
        backward.insert(0, state)
    h = [np.concatenate(both) for both in zip(forward, backward, strict=True)]
    d = p["decoder"]
    s, logits = np.tanh(backward[0] @ d["start"]), []
    for before in [BOS, *tgt[:-1]]:
        y = p["embedding" if tied else "tgt_embedding"]["table"][before] * scale
        e = np.array([np.tanh(s @ d["query"] + hj @ d["key"]) @ d["score"] for hj in h])
        a = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
        c = sum(aj * hj for aj, hj in zip(a, h, strict=True))
        s = unit(d["unit"], s, (y, d["unit"]["input"]), (c, d["context"]))
        t = np.concatenate([s, c, y]) @ d["readout"] + d["readout_bias"]
        t = np.array([max(t[2 * j], t[2 * j + 1]) for j in range(len(t) // 2)])
        logits.append(p["embedding" if tied else "output"]["table"][:VOCABULARY] @ t)
    return np.array(logits)


@pytest.mark.parametrize("tied", [True, False])
def test_packed_sentences_give_what_each_gives_alone_by_its_equations(tied):
    model, params = model_and_params(tie_embeddings=tied)
    logits = jax.jit(model.apply)({"params": params}, *model_inputs(BATCH))
    found = of_each_pair(logits, BATCH, ROWS)
    for number, (src, tgt) in enumerate(PAIRS):
        want = reference(params, src, tgt, tied)
        assert relative_error(found[number][:, :VOCABULARY], want) < 1e-5


def test_computing_again_what_takes_memory_changes_no_gradient():
    model, params = model_and_params()

    def total(params, model):
        return (model.apply({"params": params}, *model_inputs(BATCH)) ** 2)[..., :VOCABULARY].sum()

    kept, again = (jax.grad(total)(params, m) for m in (model, model.clone(remat=True)))
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
        assert relative_error(other, one) < 1e-5
        assert np.abs(one).max() > 0  # nothing is without use


def test_padding_changes_nothing():
    model, params = model_and_params()
    wide = lay_out(PAIRS, ROWS, 20, 17)
    logits = [jax.jit(model.apply)({"params": params}, *model_inputs(b)) for b in (BATCH, wide)]
    found = [of_each_pair(x, b, ROWS) for x, b in zip(logits, (BATCH, wide), strict=True)]
    for number in found[0]:
        assert relative_error(found[1][number], found[0][number]) < 1e-6


def test_a_step_of_search_gives_what_training_gives_wherever_the_beam_moves_it():
    model, params = model_and_params()
    variables, beams, length = {"params": params}, 3, 7
    sources = [PAIRS[0][0], PAIRS[3][0]]
    pairs = random_pairs(5, [(2, length)] * 2 * beams)
    pairs = [(sources[n // beams], tgt) for n, (_, tgt) in enumerate(pairs)]
    batch = lay_out(pairs, [[n] for n in range(6)], 9, length)
    want = np.asarray(jax.jit(model.apply)(variables, *model_inputs(batch)))
    ids_JL = np.asarray(model_inputs(batch)[3])
    source = [x[::beams] for x in batch[:3]]
    encoded = model.apply(variables, *source, method="encode")
    memory = model.apply(variables, encoded, source[1], method="start_decoding")
    empty = jax.tree.map(np.shape, model.empty_memory(2, 9))
    assert jax.tree.map(np.shape, memory) == empty
    step = jax.jit(functools.partial(model.apply, variables, method="decode_step"))
    output = model.apply(variables, method="output_embedding")
    draw, place = np.random.default_rng(0), np.tile(np.arange(beams), (2, 1))
    cache = model.empty_cache(2, beams, length) + 1e3  # what stood there is not looked at
    for n in range(length):
        before, place = place, draw.permuted(place, axis=1)  # of hypotheses of each sentence
        ids, parents = np.zeros((2, beams), np.int32), np.zeros((2, beams), np.int32)
        for b, j in np.ndindex(2, beams):
            ids[b, place[b, j]] = ids_JL[b * beams + j, n]
            parents[b, place[b, j]] = before[b, j]
        nobody = np.zeros((2, beams, length), np.int32)
        position = np.full(2, n, np.int32)
        logits, cache = step(ids, position, parents, nobody, memory, cache, output)
        for b, j in np.ndindex(2, beams):
            got = logits[b, place[b, j]]
            assert relative_error(got, want[b * beams + j, n, :VOCABULARY]) < 1e-5


def test_initial_parameters_are_those_of_the_seed_and_hold_gradients_in_range():
    from transformer_jax.training.state import init_params

    model, _ = model_and_params()
    params = init_params(model, jax.random.key(1))
    again = init_params(model, jax.random.key(1))
    assert all(map(np.array_equal, jax.tree.leaves(params), jax.tree.leaves(again)))
    recurrent = np.asarray(params["left_to_right"]["update"])
    assert np.allclose(recurrent @ recurrent.T, np.eye(H), atol=1e-5)


def test_dropout_falls_on_annotations_and_on_what_is_before_the_vocabulary():
    model, params = model_and_params(dropout=0.5)
    arguments = ({"params": params}, *model_inputs(BATCH))
    rows, rngs = np.arange(2), {"dropout": jax.random.key(0)}

    def dropped(method, inputs):
        out = model.apply(*inputs, rows, rngs=rngs, method=method)
        return np.mean(np.asarray(out[0] if isinstance(out, tuple) else out) == 0)

    assert 0.4 < dropped("encode", arguments[:4]) < 0.6
    assert 0.4 < dropped("before_vocabulary", arguments) < 0.6


def test_dropout_depends_on_the_row():
    model, params = model_and_params(dropout=0.5)
    keys = {"dropout": jax.random.key(0)}
    rows = [np.array([0, 1]), np.array([0, 2])]
    inputs = model_inputs(lay_out(PAIRS, [[0], [0]], 9, 7))
    first, other = (model.apply({"params": params}, *inputs, r, rngs=keys) for r in rows)
    assert np.array_equal(first[0], other[0])
    assert not np.allclose(first[1], other[1])
    assert not np.allclose(first[0], first[1])
