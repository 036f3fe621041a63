"""How a key of the config is declared: its type, default, meaning, range and whether it may change.

A section of the config is a dataclass, and a key is one of its fields:

    num_heads: int = key(8, "h: heads of each attention sub-layer", at_least=1)
    norm: str = key("post", "where LayerNorm is applied", choices=("post", "pre"))

The command `keys` and docs/keys.md show the meaning, so it is written only here.
"""

import dataclasses
import functools
import importlib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """One key of the config. The fields with a default here are the rules that `key` accepts."""

    name: str  # dotted, such as "model.d_model"
    kind: type[Any]  # int, float, bool, str or tuple (of strings)
    optional: bool  # may be None
    default: Any
    meaning: str = ""  # a phrase: the unit, the paper's symbol, the meaning of None
    mutable: bool = False  # may change between two `train` calls on one folder
    at_least: float | None = None
    above: float | None = None  # checked for float keys only
    below: float | None = None  # checked for float keys only
    at_most: float | None = None  # checked for int keys only
    choices: tuple[str, ...] = ()  # empty: any string
    choices_of: str = ""  # "MODULE:REGISTRY": the choices are the names in that dict
    hint: str = ""  # a sentence that follows the error about a value out of range
    # "KEY=VALUE", or "KEY" for any value but its default: this key has an effect only if one of
    # them holds; empty: always. Nobody may set a key that has no effect (checks.py).
    read_with: tuple[str, ...] = ()
    # Settings as in `read_with` that this one may not be beside, each with the reason (checks.py).
    excludes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Of a key of the model: another value needs other weights, so train.init_from refuses it.
    in_weights: bool = True

    def valid_choices(self) -> tuple[str, ...]:
        """The strings that the key accepts; empty if it accepts any. Imports the registry."""
        if not self.choices_of:
            return self.choices
        module, _, registry = self.choices_of.partition(":")
        return tuple(getattr(importlib.import_module(module), registry))


def key(default: Any, meaning: str = "", **rules: Any) -> Any:
    """Declares a key with rules: those of `Key`, such as `at_least=1` or `mutable=True`."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, **rules})


WIDEST = 1_000_000
size = functools.partial(key, at_least=1, at_most=WIDEST)
any_size = functools.partial(key, at_least=0, at_most=WIDEST)
layers = functools.partial(key, at_least=1, at_most=1_000)  # they are compiled one by one
rate = functools.partial(key, at_least=0, below=1, in_weights=False)
option = functools.partial(key, in_weights=False)  # another value needs no other weights


def keys_of(section: type, prefix: str = "") -> Iterator[Key]:
    """Every key of a section and of the sections in it, in the order of their declaration."""
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        name = prefix + field.name
        if dataclasses.is_dataclass(hint):
            yield from keys_of(typing.cast(type, hint), name + ".")
            continue
        optional = isinstance(hint, types.UnionType)  # `T | None` is the only union used
        kind = typing.get_args(hint)[0] if optional else typing.get_origin(hint) or hint
        yield Key(name=name, kind=kind, optional=optional, default=field.default, **field.metadata)
