"""Whether values have the types of a NamedTuple's annotations: of what users and files give."""

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def wrong_field(part: Any) -> str:
    """What is wrong with a NamedTuple, such as "seeds is 3; expected ..."; empty: nothing."""
    hints = typing.get_type_hints(type(part))
    for field, value in part._asdict().items():
        if not fits(value, hints[field]):
            expected = re.sub(r"(\w+\.)+|<class '|'>", "", str(hints[field]))
            return f"{field} is {value!r:.60}; expected {expected}"
    return ""


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an annotation; a whole number is a float too."""
    kind, of = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Any:
        return True
    if kind is types.UnionType:
        return any(fits(value, one) for one in of)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind is None or kind is types.NoneType:
        return value is None
    if kind is Callable:
        return callable(value)
    if kind is Sequence and isinstance(value, str) or not isinstance(value, kind):
        return False
    if kind in (Mapping, dict):
        return all(fits(name, of[0]) and fits(one, of[1]) for name, one in value.items())
    return not of or all(fits(item, of[0]) for item in value)
