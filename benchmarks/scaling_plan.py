"""What the training step sends between GPUs, compiled for H200s on a machine without one.

    make gpu-plan PLAN=scaling_plan ARGS="--cache=plan.json"

It compiles the base and the big step of configs/wmt14.py with XLA's GPU compiler, for one GPU and
for meshes of 8 and 64, and prints a Markdown table for each size: what a device holds and sends,
and the time of a step by the rates below. See docs/scaling.md. A compilation takes about two
minutes on two cores; with --cache it is not made again.
"""

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import hlo
from benchmarks.gpu_plan import SIZES, device_mesh
from benchmarks.hlo import KINDS, Collective, collectives
from benchmarks.turns import markdown
from transformer_jax.config.files import load_config
from transformer_jax.errors import UserError
from transformer_jax.model.sides.embeddings import padded_vocabulary
from transformer_jax.tables.pack import code_digest
from transformer_jax.training.cost import DEVICE_PEAKS, training_flops
from transformer_jax.training.program import BatchShape, compile_program
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

PRESET = Path(__file__).parents[1] / "configs" / "wmt14.py"
VOCABULARY = 37_000
ROW_LENGTH = 128  # source and target positions of a row
ROWS = 32  # of a device
FLAGS = (
    Flag("sizes", str, "NAMES", f"of {', '.join(SIZES)}", default=",".join(SIZES)),
    Flag("devices", str, "NUMBERS", "numbers of devices", default="1,8,64"),
    Flag("cache", str, "FILE", "JSON; its steps of this code are not compiled again"),
)

Axes = tuple[int, int, int]  # sizes of the mesh's axes data, fsdp and tensor
MESHES: list[Axes] = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), (64, 1, 1), (8, 8, 1)]

# Rates. The shares of the peak are measured on an H200 (docs/gpu_runs.md), the links the vendor's.
PEAK = DEVICE_PEAKS["NVIDIA H200"][0]  # FLOP/s, dense bfloat16
COMPUTE_SHARE = {"base": 0.326, "big": 0.424}  # without Adam's update
MEMORY_RATE = 4.8e12  # bytes/s
LINK_SHARE = 0.8  # of a link's bandwidth
CALL_SECONDS = 10e-6  # to start one collective
NODE = 8  # GPUs of a node
NVLINK = 450e9  # bytes/s per GPU in each direction
INFINIBAND = 50e9  # bytes/s per GPU: 400 Gb/s
SOME = 10  # kernels between the start and the end of a collective; fewer hide little of it
MIB = 2**20


def link_rate(group: Sequence[int]) -> float:
    """Bytes/s of a ring over GPUs: by NVLink inside a node of 8, else by network adapters.

    A ring leaves each node once. Its data is split over the adapters of the GPUs in that node which
    belong to the ring.
    """
    nodes = {device // NODE for device in group}
    return NVLINK if len(nodes) == 1 else min(NVLINK, INFINIBAND * len(group) / len(nodes))


class Plan(NamedTuple):
    """What the compiler reports about a step; bytes and FLOPs are those of one device."""

    size: str  # base or big
    mesh: Axes
    parameters: int  # bytes
    optimizer: int  # bytes
    temporary: int  # bytes at the peak
    flops: float  # of matrix products, by training/cost.py
    collectives: list[Collective]

    @property
    def compute_seconds(self) -> float:
        """Products at the measured share of the peak, and Adam's update at the memory's rate."""
        # Adam reads the gradient, parameters and moments; it writes parameters and moments.
        update = 3 * self.parameters + 2 * self.optimizer
        return self.flops / (COMPUTE_SHARE[self.size] * PEAK) + update / MEMORY_RATE

    @property
    def link_seconds(self) -> float:
        """Seconds of all collectives one after the other, each with its start."""
        return sum(
            c.calls * CALL_SECONDS + c.sent / (LINK_SHARE * link_rate(c.group))
            for c in self.collectives
        )


def measure(size: str, axes: Axes) -> Plan:
    """Compiles one step."""
    keys = {"model.dtype": "bfloat16", "model.residual_dtype": "bfloat16"}
    config = load_config(f"{PRESET}:{size}", keys)
    mesh = device_mesh(axes)
    shape = BatchShape(ROWS * mesh.size, ROW_LENGTH, ROW_LENGTH)
    program = compile_program(config.model, config.train, mesh, VOCABULARY, shape)
    compiled: Any = program.train_step  # a jax.stages.Compiled
    a_row = training_flops(config.model, padded_vocabulary(VOCABULARY), *shape.lengths)
    return Plan(
        size,
        axes,
        bytes_held(program.state.params),
        bytes_held(program.state.opt_state),
        compiled.memory_analysis().temp_size_in_bytes,
        ROWS * a_row,
        collectives(compiled.as_text(), mesh.size),
    )


def bytes_held(tree: Any) -> int:
    """Bytes of one device's share of sharded arrays or abstract arrays."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def table(plans: Sequence[Plan], alone: float) -> str:
    """A line for each mesh; `alone` are the seconds of one device, with as many rows."""
    kinds = [kind for kind in KINDS if any(c.kind == kind for p in plans for c in p.collectives)]
    head = ["data, fsdp, tensor", "parameters, MiB", "optimizer, MiB", "temporary, MiB"]
    head += [f"{kind}, MiB (calls)" for kind in kinds]
    head += ["beside kernels", "compute, ms", "links, ms", "step, ms", "efficiency"]
    rows = []
    for plan in plans:
        beside = sum(c.sent for c in plan.collectives if c.kernels >= SOME)
        total = sum(c.sent for c in plan.collectives)
        compute, links = plan.compute_seconds, plan.link_seconds
        steps = max(compute, links), compute + links
        rows.append(
            [
                ", ".join(map(str, plan.mesh)),
                *(f"{b / MIB:,.0f}" for b in (plan.parameters, plan.optimizer, plan.temporary)),
                *(sent(plan.collectives, kind) for kind in kinds),
                f"{beside / total:.0%}" if total else "-",
                *(f"{1e3 * seconds:.1f}" for seconds in (compute, links)),
                " to ".join(f"{1e3 * seconds:.1f}" for seconds in steps),
                " to ".join(f"{alone / seconds:.0%}" for seconds in steps),
            ]
        )
    return markdown(head, rows)


def sent(found: Sequence[Collective], kind: str) -> str:
    """MiB that a device sends by one kind of collective, and the calls."""
    own = [c for c in found if c.kind == kind]
    calls = sum(c.calls for c in own)
    return f"{sum(c.sent for c in own) / MIB:,.0f} ({calls})" if own else "-"


def main() -> None:
    """Compiles the steps that are not in the cache, and prints the tables."""
    values = parse_experiment("scaling_plan", __doc__, FLAGS, takes_keys=False)
    counts = [int(n) for n in values["devices"].split(",")]
    if unknown := {*counts} - {math.prod(axes) for axes in MESHES}:
        raise UserError(f"--devices={min(unknown)}: the meshes have 1, 8 or 64.")
    meshes = [axes for axes in MESHES if math.prod(axes) in {1, *counts}]
    print(f"JAX {jax.__version__}, bfloat16; {ROWS} rows a device, {ROW_LENGTH} positions a side.")
    for size in values["sizes"].split(","):
        plans = [cached(values["cache"], size, axes) for axes in meshes]
        print(f"\n### {size}\n\n{table(plans, plans[0].compute_seconds)}", flush=True)


def cached(file: str | None, size: str, axes: Axes) -> Plan:
    """Reads the plan from the cache's file, or measures it and writes it there."""
    cache = Path(file) if file else None
    known = json.loads(cache.read_text()) if cache and cache.exists() else {}
    code = f"{code_digest()} {hashlib.sha256(Path(hlo.__file__).read_bytes()).hexdigest()[:12]}"
    name = f"{size} {axes}, JAX {jax.__version__}, {ROWS} rows of {ROW_LENGTH}, {code}"
    if name not in known:
        print(f"compiling {name}", file=sys.stderr, flush=True)
        known[name] = measure(size, axes)
        if cache:
            cache.write_text(json.dumps(known))
        jax.clear_caches()
    plan = Plan(*known[name])
    return plan._replace(collectives=[Collective(*c) for c in plan.collectives])


if __name__ == "__main__":
    sys.exit(exit_status(main))
