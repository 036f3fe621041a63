"""Names of the activations' axes, for the mesh; the rules stand in training/sharding.py."""

import flax.linen as nn
from jax import Array

BATCH, HEADS, HIDDEN, VOCABULARY = "batch", "heads", "hidden", "vocabulary"


def constrain(x: Array, *names: str | None) -> Array:
    """x itself; where a mesh has rules for these names, it lies on its devices as they say.

    Args:
      x: any array.
      names: one for each axis; None = not divided.
    """
    return nn.with_logical_constraint(x, names)
