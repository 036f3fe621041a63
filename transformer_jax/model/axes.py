"""Names of the activations' axes, for the mesh; the rules stand in training/sharding.py."""

from flax.linen.spmd import with_logical_constraint
from jax import Array

BATCH, HEADS, HIDDEN, VOCABULARY = "batch", "heads", "hidden", "vocabulary"
REPLICA, FEATURES = "replica", "features"  # of a lookup: rows, parts of the vectors


def constrain(x: Array, *names: str | None) -> Array:
    """x itself; where a mesh has rules for these names, it lies on its devices as they say.

    Args:
      x: any array.
      names: one for each axis; None = not divided.
    """
    return with_logical_constraint(x, names)
