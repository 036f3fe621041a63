"""Names of the axes of parameters, activations and caches.

Every array gets its names where it is created. One table in parallel/mesh.py maps a name to axes of
the mesh; an axis whose name is not in the table is never divided.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from flax.linen.spmd import LogicallyPartitioned, logical_to_mesh_axes, with_logical_constraint
from jax import Array
from jax.sharding import PartitionSpec

BATCH, HEADS, HIDDEN, VOCABULARY = "batch", "heads", "hidden", "vocabulary"
KEY_HEADS = "key_heads"  # the heads of keys and values
FEATURES = "features"  # d_model, and other axes that a matrix multiplies
REPLICA = "replica"  # rows of the batch, where FEATURES are divided too
DISTANCES = "distances"  # or buckets of them; never divided

Names = tuple[str | None, ...]
Initializer = Callable[..., Any]


@flax.struct.dataclass
class Box(LogicallyPartitioned):
    """An array and the names of its axes (Flax's box), and whether it is a factor of products."""

    # Of a matrix that activations are multiplied by and nothing else reads: how many of its axes,
    # the first ones, are summed over. 0: any other array.
    summed: int = flax.struct.field(default=0, pytree_node=False)


# The names of parameters' axes, by what their sizes are; other axes have no name.
NAME_OF_SIZE = {
    "heads": HEADS,
    "key_heads": KEY_HEADS,
    **dict.fromkeys(("d_ff", "hidden"), HIDDEN),
    **dict.fromkeys(("d_model", "encoded", "memory"), FEATURES),
    **dict.fromkeys(("distances", "buckets"), DISTANCES),
}


class Parameter(NamedTuple):
    """A parameter that a part of the model (a score, a normalizer) asks its module for."""

    initializer: Initializer
    sizes: tuple[str, ...]  # its axes: "heads", "d_k", "encoded", ...
    summed: int = 0  # as in Box

    @property
    def names(self) -> Names:
        """The names of its axes."""
        names = [NAME_OF_SIZE.get(size) for size in self.sizes]
        if names == [FEATURES]:  # a vector is small: every device has the whole
            return (None,)
        # A mesh divides one axis of a name: the last one.
        return tuple(None if name in names[n + 1 :] else name for n, name in enumerate(names))


def constrain(x: Array, *names: str | None) -> Array:
    """Returns x; on a mesh, the compiler divides it over the mesh axes of these names.

    Args:
      x: any array.
      names: one for each axis; None = not divided.
    """
    return with_logical_constraint(x, names)


def mesh_axes(*names: str | None) -> Any:
    """The PartitionSpec of axes of these names on the current mesh."""
    return logical_to_mesh_axes(names)


def divided(name: str) -> bool:
    """Whether the current mesh divides axes of this name."""
    where = mesh_axes(name)[0]
    mesh = jax.sharding.get_abstract_mesh()
    axes = () if where is None else (where,) if isinstance(where, str) else where
    return any(mesh.shape[axis] > 1 for axis in axes)


def named(initializer: Initializer, *names: str | None, summed: int = 0) -> Initializer:
    """The initializer of a parameter in a box; `summed` as in Box."""

    def boxed(key: Array, shape: Sequence[int]) -> Box:
        return Box(initializer(key, shape), names, summed=summed)

    return boxed


def declared(
    module: nn.Module, asked: Mapping[str, Parameter], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The module's parameters that a part asks for, by name; `sizes` has the sizes of axes."""
    return {
        name: module.param(
            name,
            named(parameter.initializer, *parameter.names, summed=parameter.summed),
            tuple(sizes[size] for size in parameter.sizes),
        )
        for name, parameter in asked.items()
    }


def zeros(shape: Sequence[int], names: Names, dtype: Any = jnp.float32) -> Any:
    """Zeros for a memory or a cache, in a box; `unboxed` takes them out."""
    return Box(jnp.zeros(shape, dtype), names)


def is_box(x: Any) -> bool:
    """Whether x is an array in a box with the names of its axes."""
    return isinstance(x, Box)


def unboxed(tree: Any) -> Any:
    """The tree with plain arrays."""
    return jax.tree.map(lambda x: x.value if is_box(x) else x, tree, is_leaf=is_box)


def names_of(tree: Any, unboxed_names: Names = ()) -> Any:
    """The tree with a PartitionSpec of axis names instead of each array.

    Args:
      tree: arrays, some of them in boxes.
      unboxed_names: the names of the first axes of an array without a box.
    """
    return jax.tree.map(
        lambda x: PartitionSpec(*(x.names if is_box(x) else unboxed_names)), tree, is_leaf=is_box
    )
