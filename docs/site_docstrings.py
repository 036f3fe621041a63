"""What `make docs` changes in a module's docstring: its dimension key keeps its lines."""

import re
from typing import Any

import griffe

KEY = re.compile(r"^Dimension key\n(?P<lines>(?:  .*\n?)+)", re.M)


class DimensionKeys(griffe.Extension):
    """Makes each dimension key a block of code; Markdown would join its lines."""

    def on_module(self, *, mod: griffe.Module, loader: Any, **_: Any) -> None:
        """Called by griffe for each module."""
        if mod.docstring is not None:
            mod.docstring.value = KEY.sub(as_code, mod.docstring.value)


def as_code(found: re.Match[str]) -> str:
    """The lines of a key, four spaces to the right."""
    lines = "".join(f"  {line}\n" for line in found["lines"].splitlines())
    return f"Dimension key:\n\n{lines}\n"
