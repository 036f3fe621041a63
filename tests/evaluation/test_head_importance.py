"""The importance of heads, models without some, and learned gates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import VOCABULARY, random_params, tiny_model
from tests.tiny_runs import trained_run
from transformer_jax.api import load
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.schema import MeshConfig
from transformer_jax.decoding.scoring import forced_scores
from transformer_jax.decoding.translator import Translator
from transformer_jax.evaluation.head_importance import attentions, gated, importance, with_heads
from transformer_jax.evaluation.learned_gates import START, gates, learned_gates, share_open
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.parallel.mesh import decoding_mesh
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.vocabulary import EOS

DRAW = np.random.default_rng(2)
SOURCES, TARGETS = (
    [np.int32([*DRAW.integers(4, VOCABULARY, n), EOS]) for n in lengths]
    for lengths in ((5, 3, 7), (4, 6, 2))
)
NAMES = ["decoder_0/cross_attention", "decoder_0/{}_attention", "encoder_0/self_attention"]
# All axes differ in the tiny models, which have 3 heads.
KINDS = {
    "base": {"attention_bias": True},
    "gate": {"attention_gate": True, "score": "additive"},
    "one key head": {"num_key_heads": 1, "positions": "rotary", "d_k": 6},
    "linear": {"decoder": "linear"},
}


def translator_of(model, params) -> Translator:
    return Translator(model, params, DecodeConfig(), decoding_mesh(MeshConfig()))


def nats(model, params, gates) -> np.ndarray:
    found = forced_scores(translator_of(model, gated(params, gates)), SOURCES, TARGETS)
    return -np.array([one.log_prob for one in found])


@pytest.mark.parametrize("name", first_quick(KINDS, 2))
def test_importance_is_the_change_of_the_loss_by_each_gate(name):
    model = tiny_model(num_layers=1, activation="swish", **KINDS[name])  # it has no kink
    params = random_params(model)
    found = importance(model, params, SOURCES, TARGETS)
    kind = "linear" if name == "linear" else "self"
    assert [*found] == attentions(model) == [one.format(kind) for one in NAMES]
    for where, own in found.items():
        for head in range(model.config.num_heads):
            sides = []
            for step in (0.02, -0.02):
                gate = np.ones(model.config.num_heads)
                gate[head] += step
                sides.append(nats(model, params, {where: gate}))
            want = np.abs((sides[0] - sides[1]) / 0.04).mean()
            assert own[head] == pytest.approx(want, rel=3e-3, abs=1e-3), (where, head)


@pytest.mark.parametrize("name", first_quick(KINDS, 1))
def test_a_model_without_heads_is_the_one_with_closed_gates(name):
    model = tiny_model(num_layers=1, **KINDS[name])
    params, config = random_params(model), model.config
    d_k, d_v = config.head_sizes
    small = dataclasses.replace(config, num_heads=2, d_k=d_k, d_v=d_v)
    kept = {where: np.array([n % 3, n % 3 + 1]) % 3 for n, where in enumerate(attentions(model))}
    kept = {where: np.sort(own) for where, own in kept.items()}
    gates = {where: np.isin(np.arange(3), own) for where, own in kept.items()}
    left = with_heads(model, params, kept)
    want = nats(model, params, gates)
    np.testing.assert_allclose(nats(make_model(small, model.sizes), left, {}), want, rtol=1e-5)
    assert np.abs(want - nats(model, params, {})).min() > 1e-3
    assert sum(x.size for x in jax.tree.leaves(left)) < sum(x.size for x in jax.tree.leaves(params))


# Learned gates -----------------------------------------------------------------------------------


def learned(run, updates, seed):
    pairs, lines = built_in_pairs("valid", 6), run.loaded.line_translator()
    model = run.loaded.model, run.loaded.translator.params
    return learned_gates(*model, *lines.encode_pairs(pairs), updates, seed)


def test_the_share_of_open_gates_is_that_of_draws():
    log_alpha = {"a": np.array([-2.0, 0.5]), "b": np.array([3.0, -0.3])}
    noise = np.random.default_rng(0).logistic(size=(200_000, 1))
    drawn = np.stack([gates(noise + own) for own in log_alpha.values()])
    assert drawn.min() == 0 and drawn.max() == 1 and 0.1 < ((drawn > 0) & (drawn < 1)).mean() < 0.9
    assert share_open(log_alpha) == pytest.approx((drawn > 0).mean(), abs=3e-3)


@pytest.mark.slow("searches with a trained model")
def test_gates_of_heads_that_make_the_text_likelier_stay_open(monkeypatch):
    run = load(trained_run())
    whole = run.loaded.translator.params["decoder_0"]["cross_attention"]["out"]

    def log_probs(model, variables, rows):
        """As if the first head of one attention were all that counts."""
        out = variables["params"]["decoder_0"]["cross_attention"]["out"]
        gate = jnp.abs(out[0]).sum() / jnp.abs(whole[0]).sum()
        return jnp.full(rows.target.ids.shape, 9.0) * gate

    monkeypatch.setattr("transformer_jax.evaluation.learned_gates.log_probs", log_probs)
    found = learned(run, 60, 0)
    first, second = found.pop("decoder_0/cross_attention")
    assert second < 1 < first and all(x.max() < 1 for x in found.values())


@pytest.mark.slow("searches with a trained model")
def test_gates_are_learned_on_the_pairs_with_the_weights_fixed():
    """A model of 40 updates has little use for heads: its gates close."""
    run = load(trained_run())
    found, again, other = (learned(run, 30, seed) for seed in (0, 0, 1))
    assert {*found} == {*attentions(run.loaded.model)} and all(len(x) == 2 for x in found.values())
    assert all(x.max() < START for x in found.values())
    assert all((found[name] == again[name]).all() for name in found)
    assert any((found[name] != other[name]).any() for name in found)
