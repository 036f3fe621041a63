"""How a key of the config is declared: its type, its default, its range and whether it may change.

A section of the config is a dataclass. A field is declared on one line:

    norm: str = key("post", choices=("post", "pre"))  # where LayerNorm is applied
    dropout: float = key(0.1, at_least=0, below=1)  # P_drop
    tie_embeddings: bool = True  # a key without rules needs no `key`
"""

import dataclasses
import importlib
import types
import typing
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """One key of the config. The fields with a default here are the rules that `key` accepts."""

    name: str  # dotted, such as "model.d_model"
    kind: type[Any]  # int, float, bool, str or tuple (of strings)
    optional: bool  # may be None
    default: Any
    mutable: bool = False  # may change between two `train` calls on one folder
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()  # empty: any string
    choices_of: str = ""  # "MODULE:REGISTRY": the choices are the names in that dict
    hint: str = ""  # a sentence that follows the error about a value out of range

    def valid_choices(self) -> tuple[str, ...]:
        """The strings that the key accepts; empty if it accepts any. Imports the registry."""
        if not self.choices_of:
            return self.choices
        module, _, registry = self.choices_of.partition(":")
        return tuple(getattr(importlib.import_module(module), registry))


def key(default: Any, **rules: Any) -> Any:
    """Declares a key with rules: those of `Key`, such as `at_least=1` or `mutable=True`."""
    return dataclasses.field(default=default, metadata=rules)


def keys_of(section: type, prefix: str = "") -> Iterator[Key]:
    """Every key of a section and of the sections in it, in the order of their declaration."""
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        hint, name = hints[field.name], prefix + field.name
        if dataclasses.is_dataclass(hint):
            yield from keys_of(typing.cast(type, hint), name + ".")
            continue
        optional = isinstance(hint, types.UnionType)  # `T | None` is the only union used
        kind = typing.get_args(hint)[0] if optional else typing.get_origin(hint) or hint
        yield Key(name=name, kind=kind, optional=optional, default=field.default, **field.metadata)
