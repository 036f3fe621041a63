"""What exports refuse: an engine must never get a model that it would compute differently."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from tests.fixtures.cases import refused
from tests.fixtures.references import softmax_by_hand
from tests.fixtures.tiny import VOCABULARY, random_params, tiny_model
from tests.model.configs import CONFIGS
from transformer_jax.config.changes import with_values
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.errors import UserError
from transformer_jax.interop import ctranslate2_out, huggingface_out
from transformer_jax.interop.block import to_block
from transformer_jax.interop.exported import EXPRESSED, OF_OTHER_PARTS, Exported, require_supported
from transformer_jax.text.vocabulary import both_sides

FORMATS = pytest.mark.parametrize("engine", [ctranslate2_out, huggingface_out])
# Models of the harness that a format has.
EXPORTED = {
    ctranslate2_out: {"base", "pre-norm", "learned", "none", "marian", "dot"},
    huggingface_out: {"base", "pre-norm"},
}


def is_supported(engine, **changes):
    config = dataclasses.replace(Config(), model=ModelConfig(**changes))
    try:
        require_supported(config, engine.SUPPORTED, engine.FORMAT)
    except UserError:
        return False
    return True


@FORMATS
def test_only_models_that_the_format_has_are_written(engine):
    base = dataclasses.asdict(tiny_model().config)
    same = {"d_v": None}  # every format has values of the size of keys
    found = {
        name for name, changes in CONFIGS.items() if is_supported(engine, **base | changes | same)
    }
    assert found == EXPORTED[engine]


@FORMATS
def test_what_no_engine_has_is_refused(engine):
    assert is_supported(engine, d_v=64)
    assert not is_supported(engine, d_v=63)
    assert not is_supported(engine, d_ff=0)
    assert not is_supported(engine, code_in_decoder=True)
    assert is_supported(engine, num_key_heads=8)  # as many as heads: the usual attention
    assert not is_supported(engine, num_key_heads=4)


def exported(**changes) -> Exported:
    """A model without arrays, and with two subwords that are never generated."""
    config = with_values(Config(), {name.replace("__", "."): x for name, x in changes.items()})
    return Exported(config, {}, None, (0, 3))


def test_an_engine_has_positions_for_the_longest_translation_and_at_least_1024():
    assert exported().positions == 1_024
    assert exported(decode__max_length=2_000, decode__max_extra_length=30).positions == 2_031


def test_hugging_face_s_search_has_the_run_s_settings():
    changes = {"decode__beam_size": 7, "decode__length_penalty": 0.9}
    found = huggingface_out._generation(exported(**changes))
    want = {"num_beams": 7, "length_penalty": 0.9, "max_length": 1_024}
    assert found | want | {"bad_words_ids": [[0], [3]]} == found
    assert not {"min_length", "no_repeat_ngram_size"} & found.keys()
    found = huggingface_out._generation(exported(decode__min_length=7, decode__no_repeat=3))
    assert (found["min_length"], found["no_repeat_ngram_size"]) == (8, 3)


def test_hugging_face_s_config_has_the_run_s_rates_of_dropout():
    names = ("dropout", "attention_dropout", "activation_dropout")
    rates = dict(zip(names, (0.3, 0.2, 0.1), strict=True))
    model = exported(**{f"model__{name}": rate for name, rate in rates.items()})
    model = model._replace(vocabulary=SimpleNamespace(sizes=both_sides(VOCABULARY)))
    found = huggingface_out._config(model)
    assert {name: found[name] for name in names} == rates


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__d_k": 32}, "model.d_k=32: it is d_model / num_heads"),  # there alone
        ({"model__positions": "learned"}, "model.positions='learned'"),
        ({"model__tie_embeddings": False}, "model.tie_embeddings=False"),  # of a pre-norm model
    ],
)
def test_what_hugging_face_has_no_place_for_is_one_line(changes, words, tmp_path):
    model = exported(**changes)._replace(params={"encoder_norm": {}})
    with refused(UserError, f"cannot express {words}"):
        huggingface_out.write_huggingface(model, tmp_path / "x", {})
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_a_model_card_says_what_differs_in_transformers(epsilon, normalizes):
    vocabulary = SimpleNamespace(normalizes_punctuation=normalizes)
    model = exported(model__norm_epsilon=epsilon)._replace(vocabulary=vocabulary)
    card = huggingface_out._card(model, {})
    assert ("has an epsilon of 1e-06 in training and 1e-05" in card) == (epsilon == 1e-6)
    assert ("Normalize punctuation before the tokenizer" in card) == normalizes


def test_a_head_that_is_put_first_changes_no_output():
    """Of attention by the names and shapes of transformers, in NumPy."""
    heads, d_k, d_model, length = 3, 4, 5, 6
    draw = np.random.default_rng(0)
    x = draw.normal(size=(length, d_model))
    weights = {f"a.{part}_proj.weight": draw.normal(size=(heads * d_k, d_model)) for part in "qkv"}
    weights |= {f"a.{part}_proj.bias": draw.normal(size=heads * d_k) for part in "qkv"}
    weights["a.out_proj.weight"] = draw.normal(size=(d_model, heads * d_k))

    def attention(own):
        query, key, value = (
            (x @ own[f"a.{part}_proj.weight"].T + own[f"a.{part}_proj.bias"])
            .reshape(length, heads, d_k)
            .swapaxes(0, 1)
            for part in "qkv"
        )
        shares = softmax_by_hand(query @ key.swapaxes(1, 2), True)
        joined = (shares @ value).swapaxes(0, 1).reshape(length, -1)
        return joined @ own["a.out_proj.weight"].T, shares

    moved = dict(weights)
    ctranslate2_out._put_first(moved, "a", 2, heads)
    (want, before), (got, after) = attention(weights), attention(moved)
    np.testing.assert_allclose(got, want, rtol=1e-10)
    np.testing.assert_allclose(after, before[[2, 0, 1]], rtol=1e-10)


def test_every_parameter_of_a_model_that_is_not_refused_is_written():
    """`to_block` raises a ValueError for a parameter that it does not write."""
    for name in set.union(*EXPORTED.values()):
        model = tiny_model(**CONFIGS[name])
        to_block(random_params(model), model.config, both_sides(VOCABULARY), halves=True)


def test_a_parameter_that_the_format_does_not_have_is_an_error():
    model = tiny_model(attention_memory="coverage")
    with pytest.raises(ValueError, match="no place for these parameters.*coverage"):
        to_block(random_params(model), model.config, both_sides(VOCABULARY), halves=True)


@FORMATS
def test_a_key_that_a_format_does_not_name_is_refused(engine):
    """So a new key of the model is refused until somebody says that a format can express it."""
    named = EXPRESSED | OF_OTHER_PARTS | engine.SUPPORTED.keys()
    keys = [key for name, key in KEYS.items() if name.startswith("model.")]
    assert named <= {key.name.removeprefix("model.") for key in keys}
    for key in keys:
        if (name := key.name.removeprefix("model.")) in named or key.read_with:
            continue  # no format has the parts that read the latter
        others = [*key.valid_choices(), not key.default, 7]
        other = next(value for value in others if value != key.default)
        assert not is_supported(engine, **{name: other}), name


@pytest.mark.parametrize(
    ("score", "cross_score", "factors"),
    [("scaled_dot", None, (1, 1)), ("dot", None, (2, 2)), ("scaled_dot", "dot", (1, 2))],
)
def test_an_unscaled_score_is_a_scaled_one_with_larger_queries(score, cross_score, factors):
    """Weights and biases of queries alone: those of self-attention, and of the other."""
    keys = {"score": score, "cross_score": cross_score, "attention_bias": True}
    model = tiny_model(d_k=4, d_v=4, **keys)
    weights = to_block(random_params(model), model.config, both_sides(VOCABULARY), halves=False)
    found = ctranslate2_out.for_scaled_scores(weights, model.config)
    assert found.keys() == weights.keys()
    for name, x in weights.items():
        is_query = ".q_proj." in name
        factor = factors["encoder_attn" in name] if is_query else 1
        np.testing.assert_array_equal(found[name], factor * x)
