"""What exports refuse: an engine must never get a model that it would compute differently."""

import dataclasses

import pytest

from tests.fixtures.tiny import VOCABULARY, random_params, tiny_model
from tests.model.configs import CONFIGS
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.errors import UserError
from transformer_jax.interop import ctranslate2, huggingface_out
from transformer_jax.interop.block import to_block
from transformer_jax.interop.exported import EXPRESSED, OF_OTHER_PARTS, require_supported
from transformer_jax.text.vocabulary import both_sides

FORMATS = pytest.mark.parametrize("engine", [ctranslate2, huggingface_out])
# Models of the harness that a format has.
EXPORTED = {
    ctranslate2: {"base", "pre-norm", "learned", "none", "marian", "dot"},
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
def test_every_parameter_of_a_model_that_is_not_refused_is_written(engine):
    for name in EXPORTED[engine]:
        model = tiny_model(**CONFIGS[name])
        weights = to_block(random_params(model), model.config, both_sides(VOCABULARY), halves=True)
        assert weights


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
        if (name := key.name.removeprefix("model.")) in named:
            continue
        others = [*key.valid_choices(), not key.default, 7]
        other = next(value for value in others if value != key.default)
        assert not is_supported(engine, **{name: other}), name
