"""The command `python -m experiments.claims`."""

from experiments.claims import EXPERIMENT
from transformer_jax.tables.command import main

if __name__ == "__main__":
    main(EXPERIMENT)
