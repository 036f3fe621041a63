"""The row that the claims' other rows on the built-in corpus are compared with."""

from typing import Any

REFERENCE = "reference"
GRAMMAR: dict[str, Any] = {  # its training; other rows differ from it in the keys that they name
    "train.steps": 1_000,
    "train.decay_steps": 1_000,
    "train.valid_every": 250,
    "train.checkpoint_every": 500,
    "train.keep_last": 1,
}
