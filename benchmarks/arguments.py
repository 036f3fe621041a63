"""The flags of a benchmark that takes no keys of a config."""

import sys
from collections.abc import Sequence
from typing import Any

from transformer_jax.use.command_line import Flag, describe_flags, parse_flags


def parse(name: str, about: str | None, flags: Sequence[Flag]) -> dict[str, Any]:
    """The value of each flag; with --help it prints a description and exits."""
    if "-h" in sys.argv or "--help" in sys.argv:
        print(f"{about}\n{describe_flags(flags)}")
        sys.exit(0)
    return parse_flags(name, flags, sys.argv[1:], keys=())
