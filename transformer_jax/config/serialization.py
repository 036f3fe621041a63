"""Between the schema's dataclasses and nested dicts, ConfigDicts and JSON."""

import dataclasses
import json
import sys
import typing
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from transformer_jax.config.keys import Key
from transformer_jax.config.old_keys import upgraded
from transformer_jax.config.schema import KEYS, SECTIONS, Config, keys_in, known_key
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.files import parsed_json


def from_config_dict(raw: ConfigDict | Mapping[str, Any]) -> Config:
    """The config of a nested mapping. A key that the mapping lacks keeps its default.

    Raises:
      ConfigError: an unknown key (the message suggests the nearest), or a value of the wrong type.
    """
    tree = raw.to_dict() if isinstance(raw, ConfigDict) else raw
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    top: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in SECTIONS:
            key = known_key(str(name))
            if "." in key.name:
                section, _, last = key.name.partition(".")
                raise ConfigError(
                    f"{name}={value!r} is at the top of the config: {last} is a key of the section "
                    f"{section}, as in {{{section!r}: {{{last!r}: {value!r}}}}}."
                )
            top[name] = _typed(key, value)
        elif isinstance(value, Mapping):
            for inner, inner_value in value.items():
                values[name][inner] = _typed(known_key(f"{name}.{inner}"), inner_value)
        else:
            raise ConfigError(
                f"{name}={value!r} is not a section; expected a mapping with {keys_in(name)}."
            )
    kinds = typing.get_type_hints(Config)
    return Config(**{section: kinds[section](**inner) for section, inner in values.items()}, **top)


def _typed(key: Key, value: Any) -> Any:
    """The value as the schema holds it: an int becomes a float, a list becomes a tuple."""
    if value is None and key.optional:
        return None
    if key.kind is tuple:
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif key.kind is float and type(value) is int:
        if abs(value) > sys.float_info.max:
            raise ConfigError(f"{key.name}: the integer is too large for a float.")
        return float(value)
    elif type(value) is key.kind:  # not isinstance: a bool is an int
        return value
    expected = "a list of str" if key.kind is tuple else key.kind.__name__
    expected += " or None" if key.optional else ""
    raise ConfigError(
        f"{key.name}={value!r} is of type {type(value).__name__}; expected {expected}."
    )


def to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dicts, which `from_config_dict` turns back into the same config."""
    return dataclasses.asdict(config)


def to_config_dict(config: Config) -> ConfigDict:
    """The config as a ConfigDict of every key; optional keys are typed placeholders."""
    tree = ConfigDict(to_dict(config))
    for key in KEYS.values():
        *sections, last = key.name.split(".")
        holder = tree[sections[0]] if sections else tree
        if key.optional:
            field = config_dict.placeholder(key.kind)
            field.set(holder[last])
            holder[last] = field
    return tree


def default_config_dict() -> ConfigDict:
    """All defaults of the schema. The `get_config` of a config file starts from them."""
    return to_config_dict(Config())


def to_json(config: Config) -> str:
    """The config as JSON text, which `from_json` turns back into the same config."""
    return json.dumps(to_dict(config), indent=2) + "\n"


def from_json(text: str) -> Config:
    """The config that `to_json` wrote, in this version or in an earlier one.

    Raises:
      ConfigError: the text is not JSON, or not a config.
    """
    try:
        tree = parsed_json(text, "the config")
    except DataError as error:
        raise ConfigError(str(error)) from None
    if lost := sorted(SECTIONS - tree.keys()):
        raise ConfigError(f"the config has lost its section {lost[0]}.")
    return from_config_dict(upgraded(tree))
