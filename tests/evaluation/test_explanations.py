"""Explanations: their parts add up to the model's output, and each equals an independent one."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import VOCABULARY, random_params, tiny_model
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.explanations import (
    EXPLANATIONS,
    contributions,
    explained,
    halves,
    log_probs,
    own_terms,
)
from transformer_jax.model.attention.traces import Pairs, terms, traced
from transformer_jax.text.batches import packed_sentences
from transformer_jax.text.vocabulary import BOS, EOS

M, L = 5, 4  # real positions; rows are longer
MODELS = {
    "post": {"attention_bias": True},
    "pre": {"norm": "pre", "num_key_heads": 1, "positions": "rotary", "d_k": 6},
    "rms": {"norm": "pre", "norm_kind": "rms", "tie_embeddings": False},
    "scale": {"norm_kind": "scale", "d_ff": 0},
    "deep": {"norm": "deep", "positions": "alibi", "cross_normalizer": "sparsemax"},
    "rezero": {"norm": "rezero", "attention_bias": True},
    "prefix": {"encoder": "prefix"},
}


def pair() -> Pairs:
    draw = np.random.default_rng(0)
    source, labels = ([*draw.integers(4, VOCABULARY, n - 1), EOS] for n in (M, L))
    target = packed_sentences([[BOS, *labels[:-1]]], 1, L + 2)
    return Pairs(packed_sentences([source], 1, M + 1), target, np.array([[*labels, 0, 0]]))


def model_of(name: str):
    model = tiny_model(num_layers=2, **MODELS[name])
    return model, random_params(model)


def joint(name: str, method: str) -> np.ndarray:
    """The rows of real target positions, over the positions of both sides."""
    return joint_of(*model_of(name), method)


def joint_of(model, params, method: str) -> np.ndarray:
    found = explained(model, params, pair(), method)
    decoder = found.get("decoder", np.zeros((1, 1, 1, L + 2, L + 2)))
    rows = np.concatenate([found["cross"], decoder], -1)[0, 0, 0, :L]
    assert rows[:, [M, M + 1 + L, M + 2 + L]].max() == 0  # padding
    return rows


@pytest.mark.parametrize("name", first_quick(MODELS, 3))
def test_the_summands_of_a_sub_layer_and_its_biases_are_its_output(name):
    model, params = model_of(name)
    for one in traced(model, params, pair()):
        layer, sublayer = one.mixing.names
        terms_BQKD, kept_BQD = own_terms(one, *terms(model.config, params, one))
        found = terms_BQKD.sum(2) + kept_BQD
        residual = params[layer][f"{sublayer}_residual"]
        bias = params[layer][sublayer].get("out_bias", 0.0) * residual.get("weight", 1.0)
        if "norm" in residual and model.config.norm != "pre":
            # The norm of the bias: what is left of the norm's bias and of a multiple of both.
            gaps = np.asarray(one.y_BQD - found - residual["norm"].get("bias", 0.0))[0]
            scaled = np.asarray((bias - np.mean(bias)) * residual["norm"]["scale"])
            scaled = np.broadcast_to(scaled, gaps.shape[1:])
            along = gaps @ scaled / max(np.dot(scaled, scaled), 1e-9)
            np.testing.assert_allclose(gaps - along[:, None] * scaled, 0, atol=2e-5)
        else:
            np.testing.assert_allclose(found + bias, one.y_BQD, atol=2e-5)


def test_contributions_are_how_near_each_summand_is():
    """By a loop over queries and keys, also where no summand is nearer than nothing."""
    draw = np.random.default_rng(0)
    terms_QKD, kept_QD = draw.normal(size=(3, 4, 5)), draw.normal(size=(3, 5))
    whole_QD = terms_QKD.sum(1) + kept_QD
    terms_QKD[2], kept_QD[2] = abs(terms_QKD[2]), abs(kept_QD[2])
    whole_QD[2] = -100  # each summand leads away from it
    got_QK, got_Q = contributions(*(jnp.asarray(x)[None] for x in (terms_QKD, kept_QD, whole_QD)))
    fallbacks = 0
    for q, whole in enumerate(whole_QD):
        parts = [*terms_QKD[q], kept_QD[q]]
        near = [max(0, abs(whole).sum() - abs(whole - part).sum()) for part in parts]
        if not sum(near):
            near, fallbacks = [abs(part).sum() for part in parts], fallbacks + 1
        want = np.array(near) / sum(near)
        np.testing.assert_allclose([*got_QK[0, q], got_Q[0, q]], want, rtol=1e-5)
    assert fallbacks == 1


def test_norms_are_the_lengths_of_weighted_values():
    model = tiny_model(num_layers=2, encoder="prefix", norm="pre")
    params = random_params(model)
    one = traced(model, params, pair())[-1]
    own = params[one.mixing.names[0]]
    x_KD = np.asarray(one.memory_BKD)[0]
    norm, attention = own["self_attention_residual"]["norm"], own["self_attention"]
    x_KD = (x_KD - x_KD.mean(-1, keepdims=True)) / x_KD.std(-1, keepdims=True)
    x_KD = x_KD * norm["scale"] + norm["bias"]
    values = np.einsum("KD,DHV,HVE->KHE", x_KD, attention["value"], attention["out"])
    summed = np.einsum("HQK,KHE->QKE", np.asarray(one.weights_BHQK)[0], values)
    lengths = np.sqrt((summed**2).sum(-1))
    want = (lengths / lengths.sum(-1, keepdims=True))[M + 1 : M + 1 + L]
    np.testing.assert_allclose(joint_of(model, params, "norms"), want, rtol=1e-3, atol=1e-5)


def test_rollout_is_the_sum_over_paths():
    """Each path goes from a position to one in every layer before; its weights are multiplied."""
    model, params = model_of("post")
    steps = [np.asarray(step)[0] for step in halves(model, params, pair())]
    size = M + 1 + L + 2
    alive = [np.argwhere(step > 0) for step in steps]
    paths = {M + 1: 1.0}  # the first target position
    for step, edges in zip(steps[::-1], alive[::-1], strict=True):
        following: dict[int, float] = {}
        for query, key in edges:
            if query in paths:
                following[key] = following.get(key, 0.0) + paths[query] * step[query, key]
        paths = following
    want = np.array([paths.get(n, 0.0) for n in range(size)])
    np.testing.assert_allclose(joint("post", "rollout")[0], want, rtol=1e-5, atol=1e-7)


def test_flow_is_the_smallest_cut():
    """By the theorem of Ford and Fulkerson; cuts of 2 of 3 layers of nodes are tried out."""
    small = Pairs(
        packed_sentences([[5, EOS]], 1, 2), packed_sentences([[BOS]], 1, 1), np.array([[EOS]])
    )
    deep = tiny_model(num_layers=2, encoder="prefix", num_heads=1, d_k=6, d_v=6)
    params = random_params(deep)
    first, second = (np.asarray(x)[0] for x in halves(deep, params, small))
    found = explained(deep, params, small, "flow")["cross"][0, 0, 0, 0]
    for key in range(2):
        cuts = []
        for kept in itertools.product(
            (False, True), repeat=3
        ):  # of the middle: on the query's side
            inside = np.array(kept)
            cuts.append(second[2][~inside].sum() + first[inside, key].sum())
        np.testing.assert_allclose(found[key], min(cuts), atol=1e-5)


def test_gradients_are_those_of_finite_differences():
    """With one sub-layer a row is that position itself, and max(0, slope * weight)."""
    model = tiny_model(num_layers=1, encoder="prefix")
    params = random_params(model)
    given, row, step = pair(), 2, 0.01
    [one] = traced(model, params, given)
    layer, name = one.mixing.names

    def log_prob(shifts_HK: np.ndarray) -> float:
        shift = jnp.zeros_like(one.weights_BHQK).at[0, :, M + 1 + row].set(shifts_HK)
        variables = {"params": params, "perturbations": {layer: {name: {"weights": shift}}}}
        return float(log_probs(model, variables, given)[0, row])

    weights_HK = np.asarray(one.weights_BHQK)[0, :, M + 1 + row]
    want = np.zeros_like(weights_HK)
    for at in np.argwhere(weights_HK > 0):
        shift = np.zeros_like(weights_HK)
        shift[tuple(at)] = step
        slope = (log_prob(shift) - log_prob(-shift)) / (2 * step)
        want[tuple(at)] = max(0.0, slope * weights_HK[tuple(at)])
    own = np.eye(weights_HK.shape[1])[M + 1 + row]
    np.testing.assert_allclose(
        joint_of(model, params, "gradient")[row] - own, want.mean(0), 2e-2, 1e-4
    )


@pytest.mark.parametrize("encoder", first_quick(["transformer", "prefix"], 1))
def test_leave_one_out_is_the_sentence_without_the_subword(encoder):
    """Without positions a source with a hidden subword is a source that lacks it."""
    model = tiny_model(num_layers=2, positions="none", encoder=encoder)
    params = random_params(model)
    given = pair()
    found = explained(model, params, given, "leave_one_out")
    [[cross_LM]] = np.asarray(found["cross"])[0]
    assert "decoder" not in found  # nothing of the target is hidden
    whole = log_probs(model, {"params": params}, given)[0, :L]
    for key in range(M):
        ids = np.delete(np.asarray(given.source.ids)[0, :M], key)
        shorter = given._replace(source=packed_sentences([ids], 1, M + 1))
        want = whole - log_probs(model, {"params": params}, shorter)[0, :L]
        np.testing.assert_allclose(cross_LM[:L, key], np.maximum(0, want), atol=2e-5)


def test_the_only_subword_that_is_seen_is_not_left_out():
    """Attention over nothing would be attention over all padding."""
    model = tiny_model(source_eos=False)
    source = packed_sentences([np.array([5, EOS], np.int32)], 1, M + 1)
    found = explained(model, random_params(model), pair()._replace(source=source), "leave_one_out")
    assert not found["cross"].any()


def test_what_is_left_out_of_a_prefix_moves_nothing():
    """With positions: a hidden subword that has no weight in any layer changes nothing."""
    model = tiny_model(num_layers=1, encoder="prefix", num_heads=1, d_k=6, d_v=6)
    params = random_params(model)
    given, zero = pair(), jax.tree.map(jnp.zeros_like, params["decoder_0"]["self_attention"])
    params["decoder_0"]["self_attention"] = zero  # nothing is read, so nothing is lost
    found = explained(model, params, given, "leave_one_out")["cross"][..., :L, :]
    np.testing.assert_allclose(found, 0, atol=1e-6)


@pytest.mark.parametrize("method", first_quick(EXPLANATIONS, 2))
def test_every_method_explains_every_kind_of_stack(method):
    for name in ("post", "prefix"):
        rows = joint(name, method)
        assert np.isfinite(rows).all() and rows[:, :M].max() > 0
        later = rows[:, M + 1 : M + 1 + L] * np.triu(np.ones((L, L)), 1)
        assert later.max() == 0
        if EXPLANATIONS[method].unit == "share":
            np.testing.assert_allclose(rows.sum(-1), 1, rtol=1e-5)


def test_what_cannot_be_explained_is_refused():
    for changes in (
        {"decoder": "ssru"},
        {"encoder": "recurrent", "d_hidden": 8},
        {"attention_gate": True},
        {"positions": "relative"},
        {"normalizer": "differential", "num_heads": 4},
        {"sources": 2},
        {"normalizer": "talking_heads"},
    ):
        model = tiny_model(**changes)
        with pytest.raises(ConfigError, match="is for attention alone, and this run has"):
            explained(model, None, pair(), "alti")
