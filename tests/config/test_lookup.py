"""The key that a name means: unknown names suggest the nearest key, old names the new ones."""

import pytest

from tests.fixtures.errors import refused
from transformer_jax.config.changes import with_values
from transformer_jax.config.files import split_overrides
from transformer_jax.config.lookup import nearest_key
from transformer_jax.config.schema import Config
from transformer_jax.config.serialization import from_config_dict
from transformer_jax.errors import ConfigError


@pytest.mark.parametrize(
    ("given_name", "nearest"),
    [
        ("model.d_modle", "model.d_model"),
        ("model.steps", "train.steps"),  # the right word in the wrong section
        ("train.num_heads", "model.num_heads"),
        ("modle.d_k", "model.d_k"),
        ("d_model", "model.d_model"),
        ("beam_sise", "decode.beam_size"),
        ("sed", "seed"),
        ("train.max_lenght", "decode.max_length"),
        ("data.max_lenght", "data.max_length"),
        ("train.warmup", "train.warmup_steps"),
        ("data.nothing_like_it", None),
        ("zebra", None),
        ("decoder", "model.decoder"),
    ],
)
def test_the_nearest_key_is_suggested(given_name, nearest):
    assert nearest_key(given_name) == nearest
    suggestion = f"Did you mean {nearest}?" if nearest else "Known keys: "
    with refused(ConfigError, f"{given_name} is not a key of the config. {suggestion}"):
        with_values(Config(), {given_name: 1})


@pytest.mark.parametrize(
    ("section", "last", "value", "replacement"),
    [
        ("model", "kind", "recurrent", "model.encoder and model.decoder"),
        ("model", "scale_attention", False, "model.score"),
    ],
)
def test_an_old_key_names_its_replacement(section, last, value, replacement):
    name = f"{section}.{last}"
    for use in (
        lambda: split_overrides([f"--config.{name}={value}"]),
        lambda: from_config_dict({section: {last: value}}),
        lambda: with_values(Config(), {name: value}),
    ):
        with pytest.raises(ConfigError, match=f"^{name} is now {replacement}.$"):
            use()
