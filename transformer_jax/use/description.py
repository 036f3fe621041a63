"""What a run is, and whether it fits into the machine, before its first step."""

import math
import os
import resource
from pathlib import Path

import jax
from jax.sharding import Mesh

from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.model.sides.embeddings import padded_vocabulary
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import batch_ways
from transformer_jax.text.batches import bucket_lengths, bucket_rows
from transformer_jax.text.vocabulary import Sizes, both_sides
from transformer_jax.training import cost
from transformer_jax.training.program import BatchShape, Program

GIB = 1 << 30
# Limits of a container: version 2 of control groups, and version 1.
CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
FIX = (
    "Lower the model's sizes, train.tokens_per_batch or train.row_length, raise "
    "train.accumulate_steps, set train.remat=true or divide the model by mesh.fsdp; --force starts "
    "training anyway."
)


def describe(
    config: Config,
    program: Program,
    sizes: Sizes | int,
    shape: BatchShape,
    fill: float,
    epoch: float | None = None,
) -> list[str]:
    """Lines about a run before its first step, for the log and for `--dry_run`.

    Args:
      sizes: sizes of its vocabularies.
      shape: of a batch.
      fill: the share of target positions that are not padding.
      epoch: steps of an epoch; None: not known.
    """
    both = [f"{size:,}, padded to {padded_vocabulary(size):,}" for size in both_sides(sizes)]
    parameters = sum(x.size for x in jax.tree.leaves(program.state.params))
    two_ways = config.train.agreement_weight is not None
    flops = shape.rows * cost.step_flops(config.model, sizes, shape.lengths, config.train)
    each = " in each direction" if two_ways else ""
    micro = shape.rows // config.train.accumulate_steps
    tokens = shape.rows * shape.tgt_length * fill
    axes = ", ".join(f"{axis} {size}" for axis, size in program.mesh.shape.items())
    devices = program.mesh.devices
    of_processes = f" of {processes.count()} processes" if processes.count() > 1 else ""
    decode = config.decode
    shapes = sum(
        len(bucket_rows(length, decode.tokens_per_batch))
        for length in bucket_lengths(decode.max_length)
    )
    searches = f", up to {shapes} searches of validation BLEU" if config.train.valid_bleu else ""
    steps = config.train.steps
    epochs = []
    if epoch is not None:
        epochs = [f"epoch: {epoch:,.1f} steps; {steps:,} steps are {steps / epoch:,.1f} epochs"]
    return [
        f"parameters: {parameters:,}{each} (vocabulary {'; target '.join(dict.fromkeys(both))})",
        f"batch: {shape.rows} rows of {shape.src_length} source and {shape.tgt_length} target "
        f"positions, about {tokens:,.0f} real target tokens "
        f"(nominal {config.train.tokens_per_batch:,}), "
        f"in {config.train.accumulate_steps} micro-batches of {micro} rows",
        *epochs,
        f"training FLOPs a step: {flops:.3e} (matrix products, forward and backward)",
        f"training FLOPs of {steps:,} steps: {steps * flops:.3e}",
        f"memory of the step: {program.memory_bytes / 2**20:,.0f} MiB a device",
        f"mesh: {axes} on {devices.size} x {devices.flat[0].device_kind}{of_processes}",
        f"programs to compile: 1 initial state, 1 training step, 1 validation step{searches}",
    ]


def check_sizes(config: Config, mesh: Mesh, shape: BatchShape) -> None:
    """Raises ConfigError if the state and the batch alone cannot fit; compiles nothing.

    Args:
      shape: the batch's shape; without a corpus, the nominal one.
    """
    model = make_model(config.model, config.vocabulary.size)
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(abstract_params(model)))
    # Each parameter has a gradient and two moments, all float32.
    directions = 1 if config.train.agreement_weight is None else 2
    state = directions * 16 * count / (mesh.shape["fsdp"] * mesh.shape["tensor"])
    positions = shape.rows * (shape.src_length + shape.tgt_length) / batch_ways(mesh)
    # A position has three int32, and in a micro-batch at least one vector of the model's width.
    batch = positions * (12 + 4 * config.model.d_model / config.train.accumulate_steps)
    check_bytes(int(state + batch), mesh, "The model's state and one batch alone need")


def check_bytes(needed: int, mesh: Mesh, who: str) -> None:
    """Raises ConfigError, which `who` begins, if a device has less memory than is needed."""
    available = device_memory(mesh)
    if available is not None and needed > available:
        raise ConfigError(
            f"{who} {needed / GIB:,.1f} GiB a device, and each device has "
            f"{available / GIB:,.1f} GiB. {FIX}"
        )


def device_memory(mesh: Mesh) -> int | None:
    """Bytes that each device of the mesh may use; CPU devices share the machine. None: unknown."""
    own = mesh.local_devices
    if own[0].platform == "cpu":
        return machine_memory() // len(own)
    stats = own[0].memory_stats()
    return stats.get("bytes_limit") if stats else None


def machine_memory() -> int:
    """Bytes that this process may use: of the machine, its container or its own limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [
        limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY
    ]
    for path in CGROUPS:
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(limits)
