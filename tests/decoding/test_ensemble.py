"""Ensembles: several models that predict together, and which runs can be one."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.decoding.test_translator import DECODE, logits_of, sentences
from tests.fixtures.cases import refused
from tests.fixtures.tiny import random_params, tiny_model
from transformer_jax.config.schema import MeshConfig
from transformer_jax.decoding.scoring import forced_scores
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError
from transformer_jax.model.ensemble import Ensemble, mixed
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.vocabulary import EOS
from transformer_jax.use.loading import _check_searched

RECURRENT = {"encoder": "recurrent", "decoder": "recurrent"}


def member(seed, **changes):
    model = tiny_model(num_layers=1, norm="pre", tie_embeddings=False, **changes)
    return model, random_params(model, seed=seed)


def translator(*members, n_best=2, **decode):
    models, params = zip(*members, strict=True)
    model = Ensemble(models)
    held = Ensemble.joined(params)
    if len(members) == 1:
        [model], [held] = models, params
    settings = type(DECODE)(**{**DECODE.__dict__, **decode})
    return Translator(model, held, settings, make_mesh(MeshConfig()), n_best)


@pytest.mark.slow("compiles three models")
def test_scores_are_those_of_mean_probabilities_in_search_and_when_forced():
    """Each member has another output, so this is the search of each of them too."""
    others = {"num_heads": 1, "score": "additive", "output": "copy"}
    marginal = {**RECURRENT, "output": "marginal"}
    members = [member(1, output="history"), member(2, **marginal), member(3, **others)]
    t = translator(*members)
    sources = sentences()[:3]
    singles = [translator(one) for one in members]
    found = t.translate(sources)
    for source, hypotheses in zip(sources, found, strict=True):
        for hypothesis in hypotheses:
            ids = hypothesis.ids
            total = 0.0
            logits = [logits_of(single, source, ids) for single in singles]
            for place, i in enumerate(ids):
                rows = [np.exp(own[place] - own[place].max()) for own in logits]
                total += np.log(np.mean([row[i] / row.sum() for row in rows]))
            assert hypothesis.log_prob == pytest.approx(total, rel=1e-4)
    forced = forced_scores(t, sources, [hypotheses[1].ids for hypotheses in found])
    np.testing.assert_allclose(
        [one.score for one in forced], [found[n][1].score for n in range(3)], rtol=1e-5
    )
    assert [h.ids.tolist() for [h, _] in found] != [
        h.ids.tolist() for [h, _] in singles[0].translate(sources)
    ]


@pytest.mark.slow("compiles three models")
def test_a_coverage_penalty_takes_the_mean_of_the_watched_weights():
    members = [member(1), member(2, **RECURRENT)]
    t = translator(*members, coverage_penalty=0.4)
    sources = sentences()[2:3]
    found = t.translate(sources)
    forced = forced_scores(t, sources, [best.ids for best, _ in found])
    for one, (best, _) in zip(forced, found, strict=True):
        assert one.score == pytest.approx(best.score, rel=1e-5)
        assert one.score < one.log_prob / ((5 + one.length) / 6) ** 0.6  # weights were watched


def test_the_mean_is_of_probabilities_not_of_logits():
    logits = jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.1, 0.9])) + 3.0
    watched = jnp.array([0.2, 0.8]), jnp.array([0.6, 0.4])
    log_probs, weights = mixed(logits, watched)
    np.testing.assert_allclose(jnp.exp(log_probs), [0.3, 0.7], rtol=1e-6)
    np.testing.assert_allclose(weights, [0.4, 0.6], rtol=1e-6)


@pytest.mark.slow("compiles three models")
def test_an_ensemble_samples_and_is_as_long_as_its_shortest_member():
    members = [member(1), member(2, positions="learned", max_positions=20)]
    others = [*members, member(3, positions="learned", max_positions=17)]
    assert translator(*members).model.longest() == 20
    assert translator(*others).model.longest() == 17
    found = translator(*members, method="sample").translate(sentences()[:2])
    assert all(len(samples) == 2 for samples in found)
    almost = [np.append(np.arange(4, 21), EOS)]  # 18 subwords; buckets would have 24 positions
    [[best, _]] = translator(*members).translate(almost)
    [forced] = forced_scores(translator(*members), almost, [best.ids])
    assert forced.score == pytest.approx(best.score, rel=1e-5)


def test_each_member_sees_its_own_part_of_the_source():
    """One hides the first subword, one the last, and one nothing."""
    members = [member(1, code_in_decoder=True), member(2, source_eos=False), member(3)]
    t = translator(*members)
    source = sentences()[0]
    [[best, _]] = t.translate([source])
    [forced] = forced_scores(t, [source], [best.ids])
    assert forced.log_prob == pytest.approx(best.log_prob, rel=1e-5)


def test_search_changes_every_member():
    models = [tiny_model(wait_k=k, wait_k_max=5, num_layers=n) for k, n in ((1, 1), (2, 2))]
    found = Ensemble(tuple(models)).for_search("bfloat16", True, 4)
    assert found.watch
    assert found.members == tuple(model.for_search("bfloat16", True, 4) for model in models)
    assert [(m.config.dtype, m.config.wait_k, m.watch) for m in found.members] == [
        ("bfloat16", 4, True)
    ] * 2


# Which runs can be an ensemble: they read the same and translate the same ------------------------

PICTURES = {"data__src_kind": "pictures", "model__features": 256}


@pytest.mark.parametrize(
    "first, other, words",
    [
        ({}, {"data__src": "de", "data__tgt": "en"}, "translates de→en"),
        ({}, {"data__context": 1}, "data.context=1 and 0"),
        (
            {"data__directions": ("en-de", "de-en")},
            {"data__directions": ("en-de",)},
            "translate the same",
        ),
        (
            {"data__src": "de,fr", "data__tgt": "en"},
            {"data__src": "de,fr", "data__tgt": "en", "model__sources": 2},
            "has model.sources=2, and the first run 1",
        ),
        ({}, PICTURES, "in another way"),
        (PICTURES, {**PICTURES, "data__patch_width": 8, "data__patch_height": 32}, "in another"),
        ({}, {"model__num_heads": 1}, ""),
        ({"data__directions": ("en-de", "de-en")}, {"data__directions": ("de-en", "en-de")}, ""),
    ],
)
def test_the_models_of_an_ensemble_read_and_translate_the_same(first, other, words):
    one, two = runs.tiny_config(**first), runs.tiny_config(**other)
    run = RunFolder(Path("other"))
    if not words:
        return _check_searched(run, two, one.decode, one)
    with refused(ConfigError, "other ", words):
        _check_searched(run, two, one.decode, one)
