"""The row that the claims' other rows on the built-in corpus are compared with."""

from experiments.short_demo import SHORT_DEMO

REFERENCE = "reference"
GRAMMAR = SHORT_DEMO.overrides  # its training; other rows differ from it in the keys they name
