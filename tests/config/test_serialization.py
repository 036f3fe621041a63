"""A config survives its way through dicts, ConfigDicts and JSON; wrong types are errors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.cases import refused
from transformer_jax.config.changes import with_values
from transformer_jax.config.keys import Key
from transformer_jax.config.schema import KEYS, SECTIONS, Config, value_at
from transformer_jax.config.serialization import (
    default_config_dict,
    from_config_dict,
    from_json,
    to_config_dict,
    to_dict,
    to_json,
)
from transformer_jax.errors import ConfigError


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"model": {"d_model": "512"}}, "model.d_model='512' is of type str; expected int."),
        ({"model": {"d_model": 512.0}}, "model.d_model=512.0 is of type float; expected int."),
        ({"model": {"d_model": True}}, "model.d_model=True is of type bool; expected int."),
        ({"model": {"d_model": None}}, "model.d_model=None is of type NoneType; expected int."),
        ({"model": {"d_k": "x"}}, "model.d_k='x' is of type str; expected int or None."),
        ({"model": {"dropout": "0.1"}}, "model.dropout='0.1' is of type str; expected float."),
        ({"model": {"tie_embeddings": 1}}, "model.tie_embeddings=1 is of type int; expected bool."),
        (
            {"data": {"train": "train"}},
            "data.train='train' is of type str; expected a list of str.",
        ),
        ({"data": {"train": [1]}}, "data.train=[1] is of type list; expected a list of str."),
        ({"model": {"dropout": 10**9_999}}, "model.dropout: the integer is too large for a float."),
        ({"seed": 0.5}, "seed=0.5 is of type float; expected int."),
        ({"model": 3}, "model=3 is not a section; expected a mapping with model."),
    ],
)
def test_a_wrong_type_is_named_with_what_was_expected(tree, message):
    with refused(ConfigError, message):
        from_config_dict(tree)


def test_an_int_serves_as_a_float_and_a_list_as_a_tuple():
    config = from_config_dict({"decode": {"length_penalty": 1}, "data": {"train": ["a", "b"]}})
    assert type(config.decode.length_penalty) is float
    assert config.data.train == ("a", "b")


def values_of(key: Key) -> st.SearchStrategy:
    largest = 2**70 if key.at_most is None else int(key.at_most)  # above: lowered, as old runs need
    values = {
        int: st.integers(-(2**70), largest),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(),
        tuple: st.lists(st.text(), max_size=3).map(tuple),
    }[key.kind]
    return st.none() | values if key.optional else values


@given(st.fixed_dictionaries({}, optional={name: values_of(key) for name, key in KEYS.items()}))
def test_any_config_comes_back_from_json_dict_and_config_dict(values):
    config = with_values(Config(), values)
    assert all(value_at(config, name) == value for name, value in values.items())
    assert from_json(to_json(config)) == config
    assert from_config_dict(to_dict(config)) == config
    assert from_config_dict(to_config_dict(config)) == config


def test_the_default_config_dict_holds_every_key_with_its_type():
    tree = default_config_dict()
    for name, key in KEYS.items():
        *sections, last = name.split(".")
        holder = tree[sections[0]] if sections else tree
        assert holder[last] == key.default
        assert issubclass(holder.get_type(last), key.kind), name
    with pytest.raises(TypeError):
        tree.model.d_k = "wide"


def test_an_old_key_of_a_config_json_is_converted_and_a_lost_section_refused():
    recorded = {**dict.fromkeys(SECTIONS, {}), "model": {"scale_attention": False}}
    assert from_json(json.dumps(recorded)) == with_values(Config(), {"model.score": "dot"})
    del recorded["decode"]
    with pytest.raises(ConfigError, match="has lost its section decode"):
        from_json(json.dumps(recorded))
