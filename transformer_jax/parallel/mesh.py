"""The mesh of devices, and the one table of the array axes that are divided over it."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.config.schema import MeshConfig
from transformer_jax.errors import ConfigError
from transformer_jax.model import axes
from transformer_jax.model.ensemble import Predictor
from transformer_jax.model.interfaces import Params
from transformer_jax.model.parameters import axis_sizes
from transformer_jax.text.batches import Batch

AXES = ("data", "fsdp", "tensor")
BATCH = P(("data", "fsdp"))  # rows of a batch are divided over both

# Maps the axis names that the model gives its arrays to axes of the mesh. An axis whose name is not
# in the table is not divided.
TABLE: dict[str, str | tuple[str, ...]] = {
    axes.BATCH: ("data", "fsdp"),
    axes.HEADS: "tensor",
    axes.KEY_HEADS: "tensor",
    axes.HIDDEN: "tensor",
    axes.VOCABULARY: "tensor",
    axes.REPLICA: "data",
    axes.FEATURES: "fsdp",
}


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """The devices as a mesh with axes data, fsdp and tensor; an axis of -1 takes what is left.

    Raises:
      ConfigError: the product of the axes does not fit the number of devices.
    """
    devices = list(devices or jax.devices())
    local_count = jax.local_device_count()
    sizes = [config.data, config.fsdp, config.tensor]
    asked = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    fixed = math.prod(size for size in sizes if size != -1)
    if fixed > len(devices):
        raise ConfigError(
            f"{asked} needs {fixed} devices, and there are {len(devices)}. "
            "Lower them, or use mesh.data=-1 for the remaining devices."
        )
    if -1 in sizes and len(devices) % fixed:
        raise ConfigError(
            f"{asked} leaves some of the {len(devices)} devices idle: {fixed} does not "
            f"divide them. Choose a divisor of {len(devices)}, or give every axis a number."
        )
    sizes = [len(devices) // fixed if size == -1 else size for size in sizes]
    if math.prod(sizes) < jax.device_count() and len(devices) == jax.device_count() > local_count:
        raise ConfigError(
            f"{asked} uses {math.prod(sizes)} of the {len(devices)} devices of all processes, and "
            "every process needs its own in the mesh. Use mesh.data=-1, or start fewer processes."
        )
    auto = (AxisType.Auto,) * len(AXES)  # the compiler places what the rules leave open
    return jax.make_mesh(tuple(sizes), AXES, auto, devices=devices[: math.prod(sizes)])


def decoding_mesh(config: MeshConfig) -> Mesh:
    """A mesh of this process's own devices: the run's mesh if it fits, else all devices for rows.

    Each process translates its own share of the lines, so a run that was trained on many devices
    can translate on any number of devices.
    """
    devices = jax.local_devices()
    data = 1 if -1 in (config.fsdp, config.tensor) else -1
    try:
        return make_mesh(dataclasses.replace(config, data=data), devices)
    except ConfigError:
        return make_mesh(MeshConfig(), devices)


def local(replicated: Params, names: Any, mesh: Mesh) -> Params:
    """Moves parameters that are replicated on all devices to a mesh of this process's devices."""
    own = jax.tree.map(lambda x: x.addressable_data(0), replicated)
    return jax.device_put(own, shardings(own, names, mesh))


def ways(name: str, mesh: Mesh) -> int:
    """The number of parts that an axis of this name is divided into."""
    where = TABLE.get(name, ())
    return math.prod(mesh.shape[axis] for axis in ((where,) if isinstance(where, str) else where))


def spec_of(names: P, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The PartitionSpec of one array on the mesh, from the names of its first axes.

    An axis whose size the mesh does not divide is replicated, such as one head on tensor=2.
    """
    return P(
        *(
            TABLE[name] if name in TABLE and size % ways(name, mesh) == 0 else None
            for name, size in zip(names, shape, strict=False)
        )
    )


def shardings(tree: Any, names: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each array.

    Args:
      tree: arrays, abstract or not.
      names: the same tree with a PartitionSpec of axis names instead of each array.
    """
    return jax.tree.map(
        lambda x, own: NamedSharding(mesh, spec_of(own, x.shape, mesh)), tree, names
    )


def with_shardings(shapes: Any, names: Any, mesh: Mesh) -> Any:
    """Abstract arrays with their shardings on the mesh."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        shapes,
        shardings(shapes, names, mesh),
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding that divides rows over the data and fsdp axes."""
    return NamedSharding(mesh, BATCH)


def batch_ways(mesh: Mesh) -> int:
    """The number of parts that a batch's rows are divided into."""
    return ways(axes.BATCH, mesh)


def own_rows(mesh: Mesh, rows: int) -> np.ndarray:
    """Numbers of the batch's rows on this process's devices, ascending: int64 [own]."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((rows,))
    return np.unique(np.concatenate([np.arange(rows)[index] for index in indices.values()]))


def put_rows(mesh: Mesh, rows: int, own: np.ndarray, batch: Batch) -> Batch:
    """Puts a batch on the mesh, its rows divided.

    Args:
      mesh: the mesh over all processes.
      rows: number of rows in the whole batch.
      own: the result of `own_rows`.
      batch: these rows, on the host.
    """
    sharding = batch_sharding(mesh)
    if sharding.is_fully_addressable:
        return jax.device_put(batch, sharding)

    def put(part: np.ndarray) -> jax.Array:
        def shard(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(rows)
            return part[np.searchsorted(own, first) : np.searchsorted(own, last)]

        return jax.make_array_from_callback((rows, *part.shape[1:]), sharding, shard)

    return jax.tree.map(put, batch)


@contextlib.contextmanager
def placed(mesh: Mesh, model: Predictor) -> Iterator[None]:
    """A context in which traced activations are divided over the mesh according to `TABLE`.

    A name is left out if the mesh does not divide the model's axes of that name.
    """
    # On one device there is nothing to divide, and constraints would only take compile time.
    table = TABLE if mesh.size > 1 else {}
    sizes = axis_sizes(model) if table else {}
    divided = [
        (name, where)
        for name, where in table.items()
        if all(size % ways(name, mesh) == 0 for size in sizes.get(name, ()))
    ]
    with jax.set_mesh(mesh), nn.logical_axis_rules(divided):
        yield
