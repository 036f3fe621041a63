"""The search that goes into an exported folder, over a model that is a table of probabilities."""

from types import SimpleNamespace

import numpy as np
import pytest

from transformer_jax.interop.stablehlo_search import ExportedModel, normalizer
from transformer_jax.text.vocabulary import _punctuation_normalizer

EOS, BOS, A, B, C, D = range(6)


def searched(beams: int, rows: dict[int, dict[int, float]]) -> list[int]:
    """The best hypothesis if `rows[newest][next]` is the probability of the next subword."""

    def step(weights, prepared, memory, cache, position, newest, ancestors):
        assert newest.shape == (1, beams) and ancestors.shape == (1, beams, 6)
        table = np.full((1, beams, 6), 1e-9)
        for slot, subword in enumerate(newest[0].tolist()):
            for following, probability in rows.get(subword, {EOS: 1.0}).items():
                table[0, slot, following] = probability
        return np.log(table), cache

    model = ExportedModel.__new__(ExportedModel)
    model.weights = model.prepared = []
    model.encode = lambda *_: []
    model.step = step
    model.signature = {
        "sizes": {"beams": beams, "target": 6, "source": 4},
        "special": {"bos": BOS, "eos": EOS, "banned": [BOS]},
        "max_extra_length": 4,
        "cache": [],
        "carried": [],
    }
    return model.search([A])


EARLY = {BOS: {A: 0.6, EOS: 0.4}, A: {EOS: 0.5, B: 0.3, C: 0.2}}
FILLED = {
    BOS: {A: 0.6, B: 0.39, EOS: 0.01},
    A: {EOS: 0.3, D: 0.4, C: 0.3},
    B: {C: 0.9, EOS: 0.1},
    C: {EOS: 0.95, D: 0.05},
    D: {EOS: 0.2, A: 0.8},
}
ENDLESS = {BOS: {A: 0.9, EOS: 0.1}, A: {A: 0.99, EOS: 0.01}}
CASES = {
    "greedy, though the empty translation is likelier": (EARLY, 1, [A]),
    "an end among the best two counts": (EARLY, 2, []),
    # A step always has as many hypotheses as beams: the compiled program takes no fewer.
    "after one hypothesis ends, those that go on fill two beams": (FILLED, 2, [B, C]),
    "three beams": (FILLED, 3, [B, C]),
    "only an end may follow at the limit": (ENDLESS, 1, [A] * 5),
    "at the limit with two beams": (ENDLESS, 2, []),
}


def test_a_line_without_a_target_language_is_refused_if_the_run_refuses_it():
    model = ExportedModel.__new__(ExportedModel)
    model.signature = {"language_codes": True, "targets": [">>de<<", ">>en<<"], "to": None}
    model.ids = {">>de<<": 4, ">>bt<<": 5}
    model.normalize = str
    model.source = SimpleNamespace(encode=lambda text, out_type: text.split())
    assert model.subwords("  ") == model.subwords(">>de<< ") == []
    for line in ("a dog", ">>bt<< a dog"):
        with pytest.raises(ValueError, match="begin it with its target language: >>de<<, >>en<<"):
            model.subwords(line)
    model.ids[">>en<<"] = 6
    model.signature["unknown_codes"] = False
    assert model.subwords(">>bt<< >>de<< a") == [">>de<<", ">>bt<<", "a"]  # as in training
    with pytest.raises(ValueError, match="several targets: >>de<<, >>en<<"):
        model.subwords(">>de<< >>en<< a dog")
    with pytest.raises(ValueError, match="the code >>fr<<, which this model does not know"):
        model.subwords(">>de<< >>fr<< a dog")
    model.signature["to"] = ">>de<<"
    assert model.subwords(">>bt<< a dog") == [">>de<<", ">>bt<<", "a", "dog"]


@pytest.mark.parametrize("of", [normalizer, _punctuation_normalizer])
def test_unicode_s_punctuation_becomes_that_of_training_text(of):
    assert of("zh")("「好」，是。") == '"好",是.'
    assert of("")("。") == "。"


@pytest.mark.parametrize("case", CASES)
def test_the_best_hypothesis_is_found(case):
    rows, beams, want = CASES[case]
    assert searched(beams, rows) == want
