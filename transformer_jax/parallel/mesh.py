"""Where arrays live: a table of rules for parameters, by name, and one for activations, by axis.

Dimension key
  D d_model   H heads   K d_k per head   V d_v per head, or vocabulary in an embedding   F d_ff
  P positions
"""

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

from transformer_jax.config.schema import MeshConfig, ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.model import axes
from transformer_jax.text.batches import Batch

Params = Any  # a pytree of float32 arrays

AXES = ("data", "fsdp", "tensor")
BATCH = P(("data", "fsdp"))  # rows of a batch are divided over both

# By (module, parameter), the end of a parameter's path; all else (gains, biases) is replicated.
RULES: dict[tuple[str, str], P] = {
    ("attention", "query"): P("fsdp", "tensor", None),  # [D, H, K]
    ("attention", "key"): P("fsdp", "tensor", None),  # [D, H, K]
    ("attention", "value"): P("fsdp", "tensor", None),  # [D, H, V]
    ("attention", "out"): P("tensor", None, "fsdp"),  # [H, V, D]
    ("feed_forward", "inner"): P("fsdp", "tensor"),  # [D, F]
    ("feed_forward", "inner_bias"): P("tensor"),  # [F]
    ("feed_forward", "outer"): P("tensor", "fsdp"),  # [F, D]
    ("embedding", "table"): P("tensor", "fsdp"),  # [V, D]
    ("output", "table"): P("tensor", "fsdp"),  # [V, D]
    ("positions", "table"): P(None, "fsdp"),  # [P, D]
}

# By the names that the model gives to the axes of its activations; all else is not divided.
ACTIVATIONS: dict[str, str | tuple[str, ...]] = {
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


def local(replicated: Params, mesh: Mesh) -> Params:
    """Parameters that lie whole on every device, on a mesh of this process's devices."""
    own = jax.tree.map(lambda x: x.addressable_data(0), replicated)
    return jax.device_put(own, tree_shardings(own, mesh))


def spec_of(path: tuple, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The PartitionSpec of one array of the state, from the names on its path.

    A dimension that an axis does not divide stays whole: one head on tensor=2 runs, replicated.
    """
    names = [str(getattr(entry, "name", getattr(entry, "key", ""))) for entry in path]
    for (module, parameter), spec in RULES.items():
        if len(names) > 1 and names[-1] == parameter and names[-2].endswith(module):
            pairs = zip(spec, shape, strict=True)
            return P(*(a if a and size % mesh.shape[a] == 0 else None for a, size in pairs))
    return P()


def tree_shardings(tree: object, mesh: Mesh) -> object:
    """A NamedSharding for each array of a state; Adam's moments follow their parameters by name."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, spec_of(path, leaf.shape, mesh)), tree
    )


def with_shardings(shapes: Any, mesh: Mesh) -> Any:
    """Abstract arrays of a state, or of its parameters, told where they lie."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        shapes,
        tree_shardings(shapes, mesh),
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows divided over the data and fsdp axes."""
    return NamedSharding(mesh, BATCH)


def batch_ways(mesh: Mesh) -> int:
    """Parts that a batch's rows are divided into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def row_shardings(mesh: Mesh, rows: Any) -> Any:
    """Where what is kept of each row lies: its first axis divided as a batch's is.

    Keys and values, `[batch, ..., heads, d_k or d_v]`, are divided by heads too.
    """

    def sharding(path: tuple, x: Any) -> NamedSharding:
        names = [getattr(entry, "name", None) for entry in path]
        own = set(names) & {"keys_values", "decoder"}
        heads = own and x.shape[-2] % mesh.shape["tensor"] == 0
        spec = P(*BATCH, *(None,) * (x.ndim - 3), "tensor", None) if heads else BATCH
        return NamedSharding(mesh, spec if x.ndim else P())

    return jax.tree_util.tree_map_with_path(sharding, rows)


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

    return Batch(*map(put, batch))


@contextlib.contextmanager
def placed(mesh: Mesh, model: ModelConfig) -> Iterator[None]:
    """What is traced within has its activations divided over the mesh, as `ACTIVATIONS` says."""
    whole = {axes.HEADS: model.num_heads, axes.HIDDEN: model.d_ff, axes.FEATURES: model.d_model}
    divided = tuple(
        (name, where)
        for name, where in ACTIVATIONS.items()
        if name not in whole or whole[name] % mesh.shape[where] == 0
    )
    with jax.set_mesh(mesh), nn.logical_axis_rules(divided):
        yield
