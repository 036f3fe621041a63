"""The command `python -m experiments.claims`."""

import sys

from experiments.claims import EXPERIMENT
from transformer_jax.tables.command import main

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
