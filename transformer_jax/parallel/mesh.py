"""The mesh of devices, and the one table that says which axes of arrays are divided over it."""

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
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.parameters import axis_sizes
from transformer_jax.model.records import Params
from transformer_jax.text.batches import Batch

AXES = ("data", "fsdp", "tensor")
BATCH = P(("data", "fsdp"))  # rows of a batch are divided over both

# From the names of axes, which the model gives its arrays, to axes of the mesh. An axis whose name
# is not here stays whole.
TABLE: dict[str, str | tuple[str, ...]] = {
    axes.BATCH: ("data", "fsdp"),
    axes.HEADS: "tensor",
    axes.HIDDEN: "tensor",
    axes.VOCABULARY: "tensor",
    axes.REPLICA: "data",
    axes.FEATURES: "fsdp",
}


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """The devices as a mesh with axes data, fsdp and tensor; an axis of -1 takes what is left over.

    Raises:
      ConfigError: the axes do not multiply to a number of devices that this machine has.
    """
    devices, local_count = list(devices or jax.devices()), jax.local_device_count()
    sizes = [config.data, config.fsdp, config.tensor]
    asked = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    fixed = math.prod(size for size in sizes if size != -1)
    if fixed > len(devices):
        raise ConfigError(
            f"{asked} needs {fixed} devices; this machine has {len(devices)}. "
            "Lower them, or use mesh.data=-1 for what is left over."
        )
    if -1 in sizes and len(devices) % fixed:
        raise ConfigError(
            f"{asked} leaves some of this machine's {len(devices)} devices idle: {fixed} does not "
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
    """A mesh of this process's own devices, divided as the run's where that fits, else by rows.

    Each process translates its own share of the lines, and a run trained on many devices is
    translated on whatever there is.
    """
    devices, data = jax.local_devices(), 1 if -1 in (config.fsdp, config.tensor) else -1
    try:
        return make_mesh(dataclasses.replace(config, data=data), devices)
    except ConfigError:
        return make_mesh(MeshConfig(), devices)


def local(replicated: Params, names: Any, mesh: Mesh) -> Params:
    """Parameters that are whole on every device, on a mesh of this process's devices."""
    own = jax.tree.map(lambda x: x.addressable_data(0), replicated)
    return jax.device_put(own, shardings(own, names, mesh))


def ways(name: str, mesh: Mesh) -> int:
    """Parts that an axis of this name is divided into."""
    where = TABLE.get(name, ())
    return math.prod(mesh.shape[axis] for axis in ((where,) if isinstance(where, str) else where))


def spec_of(names: P, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The PartitionSpec of one array on the mesh, from the names of its first axes.

    An axis of a size that the mesh does not divide stays whole: one head on tensor=2 runs,
    replicated.
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
      names: the names of their axes, a PartitionSpec in the place of each.
      mesh: the devices.
    """
    return jax.tree.map(
        lambda x, own: NamedSharding(mesh, spec_of(own, x.shape, mesh)), tree, names
    )


def with_shardings(shapes: Any, names: Any, mesh: Mesh) -> Any:
    """Abstract arrays together with their places on the mesh."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        shapes,
        shardings(shapes, names, mesh),
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows divided over the data and fsdp axes."""
    return NamedSharding(mesh, BATCH)


def batch_ways(mesh: Mesh) -> int:
    """Parts that a batch's rows are divided into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def own_rows(mesh: Mesh, rows: int) -> np.ndarray:
    """Numbers of a batch's rows that lie on this process's devices, ascending: int64 [own]."""
    places = batch_sharding(mesh).addressable_devices_indices_map((rows,))
    return np.unique(np.concatenate([np.arange(rows)[index] for index in places.values()]))


def put_rows(mesh: Mesh, rows: int, own: np.ndarray, batch: Batch) -> Batch:
    """A batch on the mesh, its rows divided.

    Args:
      mesh: over all processes.
      rows: of the whole batch.
      own: what `own_rows` says.
      batch: those rows, on the host.
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
def placed(mesh: Mesh, model: EncoderDecoder) -> Iterator[None]:
    """Within it, traced activations are divided over the mesh as `TABLE` says.

    A name is left out where the mesh does not divide an axis of that name of the model.
    """
    sizes = axis_sizes(model)
    divided = tuple(
        (name, where)
        for name, where in TABLE.items()
        if all(size % ways(name, mesh) == 0 for size in sizes.get(name, ()))
    )
    with jax.set_mesh(mesh), nn.logical_axis_rules(divided):
        yield
