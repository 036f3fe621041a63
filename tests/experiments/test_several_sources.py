"""What is measured of two sentences: with both, with one wrong or missing, and of two models."""

from types import SimpleNamespace

import pytest

from experiments import several_sources
from experiments.several_sources import EXPERIMENT, WAYS, by_way, together
from tests.experiments.rows import configs_of
from transformer_jax.decoding.lines import Translation
from transformer_jax.decoding.scoring import Forced
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params


def test_a_sentence_is_replaced_by_that_of_the_next_caption_or_by_none():
    found = {name: way(("a", "b"), ("x", "y")) for name, way in WAYS.items()}
    assert {name: [list(side) for side in both] for name, both in found.items()} == {
        "both right": [["a", "b"], ["x", "y"]],
        "wrong French": [["a", "b"], ["y", "x"]],
        "wrong German": [["b", "a"], ["x", "y"]],
        "no French": [["a", "b"], ["", ""]],
        "no German": [["", ""], ["x", "y"]],
    }


def test_all_rows_have_the_same_number_of_parameters():
    import jax

    sizes = [
        sum(x.size for x in jax.tree.leaves(abstract_params(make_model(config.model, 6_000))))
        for config in configs_of(EXPERIMENT, "short").values()
    ]
    assert max(sizes) < 1.01 * min(sizes)


def test_each_way_is_scored_with_the_same_references(monkeypatch):
    asked = []

    def evaluate(sources, references):
        asked.append((sources, references))
        return SimpleNamespace(bleu=float(len(asked)))

    config = SimpleNamespace(data=SimpleNamespace(src="de,fr"))
    loaded = SimpleNamespace(translator=SimpleNamespace(params={"a": SimpleNamespace(size=7)}))
    monkeypatch.setattr("jax.tree.leaves", lambda tree: list(tree.values()))
    run = SimpleNamespace(config=config, loaded=loaded, evaluate=evaluate)
    monkeypatch.setattr("transformer_jax.api.load", lambda folder: run)
    scored = (30.0, ["a\tx", "b\ty"], ["r", "s"])
    monkeypatch.setattr(several_sources, "scored", lambda job: scored)
    found = by_way(SimpleNamespace(folder=None))  # type: ignore[arg-type]
    assert found["parameters"] == 7 and found["no German"] == 5.0
    assert asked[1] == (["a\ty", "b\tx"], ["r", "s"])
    assert asked[4] == (["\tx", "\ty"], ["r", "s"])


def test_two_models_take_the_translation_with_the_highest_mean_score(monkeypatch):
    """Of "a cat runs away", which the first finds, and "a dog runs away", which both like more."""
    texts = {"first": ["a cat runs away", "a dog runs away"], "second": ["a dog runs away"]}
    liked = {"first": {"a cat runs away": -1.0}, "second": {"a cat runs away": -9.0}}

    def run(name):
        def score(sources, targets):
            assert sources == [f"source of {name}"] * len(targets)
            return [Forced(liked[name].get(text, -2.0), 0.0, 3) for text in targets]

        best = [[Translation(text, 0.0) for text in texts[name]]]
        return SimpleNamespace(n_best=lambda sources, n: best, score=score)

    monkeypatch.setattr("transformer_jax.api.load", run)

    def scored(job):
        return 0.0, [f"source of {job.folder}"], ["a dog runs away"]

    monkeypatch.setattr(several_sources, "scored", scored)
    jobs = [SimpleNamespace(folder=name) for name in texts]
    assert together(*jobs) == {"both right": pytest.approx(100)}  # type: ignore[arg-type]
