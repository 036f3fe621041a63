"""The cost of a training step on up to 256 devices, from compiling it without running it.

    python -m benchmarks.scaling_plan --cache=FILE.json

The script compiles the base and the big step of configs/wmt14.py for 1 to 256 host devices of this
machine under several meshes. It prints Markdown tables of what a device holds, computes and sends,
and of the time of a step on H100 nodes and on a TPU v5e pod. It computes these times from stated
rates: see docs/scaling.md.

hlo.py reads the collectives from a dump of XLA's partitioner, because later passes of the CPU turn
bfloat16 into float32.
"""

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks.hlo import KINDS, Collective, collectives
from benchmarks.turns import markdown
from transformer_jax.config.files import load_config
from transformer_jax.config.schema import MeshConfig
from transformer_jax.model.sides.embeddings import padded_vocabulary
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.training.cost import DEVICE_PEAKS, training_flops
from transformer_jax.training.program import BatchShape, compile_program
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

PRESET = Path(__file__).parents[1] / "configs" / "wmt14.py"
VOCABULARY = 37_000
ROW_LENGTH = 128  # source and target positions per row

FLAGS = (
    Flag("sizes", str, "NAMES", "models of configs/wmt14.py", default="base,big"),
    Flag("devices", str, "NUMBERS", "numbers of devices", default="1,2,4,8,16,32,64,128,256"),
    Flag("rows", int, "N", "rows of the fixed batch", default=256),
    Flag("rows-a-device", int, "N", "rows of the growing batch; 0: skip it", default=32),
    Flag("cache", str, "FILE", "JSON; its steps are not compiled again"),
)

Axes = tuple[int, int, int]  # sizes of the mesh's axes data, fsdp and tensor
FIXED_BATCH: list[Axes] = [
    *((n, 1, 1) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    *((n, 8, 1) for n in (1, 2, 4, 8, 16, 32)),
    (1, 64, 1),
    (1, 256, 1),
    (1, 1, 8),
    (8, 1, 8),
    (32, 1, 8),
    (64, 2, 2),
]
GROWING_BATCH: list[Axes] = [(256, 1, 1), (32, 8, 1), (1, 256, 1), (32, 1, 8)]

# Assumptions, rounded on purpose. Peaks are the vendors'; measure a real step on one device.
COMPUTE_SHARE = 0.4  # of the matrix units' peak
LINK_SHARE = 0.8  # of a link's bandwidth
CALL_SECONDS = 10e-6  # to start one collective
MIB = 2**20

# Machines --------------------------------------------------------------------------------------

NODE = 8  # GPUs of a node
NVLINK = 450e9  # bytes/s per GPU in each direction
INFINIBAND = 50e9  # bytes/s per GPU: 400 Gb/s
ICI = 50e9  # bytes/s of one of a chip's four links in each direction
TORUS = 16  # chips per side of a v5e pod; smaller slices have no links around the edges


def h100_rate(group: Sequence[int], devices: int) -> float:
    """Bytes/s of a ring over GPUs: by NVLink inside a node of 8, else by network adapters.

    A ring leaves each node once. Its data is split over the adapters of the GPUs in that node which
    belong to the ring.
    """
    nodes = {device // NODE for device in group}
    return NVLINK if len(nodes) == 1 else min(NVLINK, INFINIBAND * len(group) / len(nodes))


def torus_rate(group: Sequence[int], devices: int) -> float:
    """Bytes/s of rings over a slice of a v5e pod, whose devices are numbered row by row.

    Along each side on which it extends, a group uses one link, or two if its 16 chips close a ring.
    Interleaved groups share the links.
    """
    rate = 0.0
    _, width = slice_shape(devices)
    for places in ({d % width for d in group}, {d // width for d in group}):
        if len(places) > 1:
            stride = (max(places) - min(places)) / (len(places) - 1)
            closed = len(places) * stride == TORUS
            rate += ICI * (2 if closed else 1) / stride
    return rate


def slice_shape(devices: int) -> tuple[int, int]:
    """Rows and columns of chips: 2x4 for 8 devices, 16x16 for 256."""
    rows = 2 ** (int(math.log2(devices)) // 2)
    return rows, devices // rows


class Machine(NamedTuple):
    """A kind of device, with the rates that its vendor states."""

    name: str
    flops: float  # FLOP/s, dense bfloat16
    memory_rate: float  # bytes/s to the device's own memory
    link_rate: Callable[[Sequence[int], int], float]  # (group, devices) to bytes/s


H100 = Machine("H100", DEVICE_PEAKS["NVIDIA H100"][0], 3.35e12, h100_rate)
V5E = Machine("v5e", DEVICE_PEAKS["TPU v5 lite"][0], 819e9, torus_rate)

# Measuring -------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """What the compiler reports about a step; bytes and FLOPs are those of one device."""

    size: str  # base or big
    mesh: Axes
    rows: int  # of ROW_LENGTH source and target positions
    parameters: int  # bytes
    optimizer: int  # bytes
    temporary: int  # bytes at the peak, as the CPU's compiler plans them
    flops: float  # by XLA's count
    closed_form: float  # FLOPs by training/cost.py, divided by the number of devices
    collectives: list[Collective]

    @property
    def devices(self) -> int:
        """The number of devices of the mesh."""
        return math.prod(self.mesh)

    def compute_seconds(self, machine: Machine) -> float:
        """FLOPs at COMPUTE_SHARE of the peak, and Adam's update at the memory's rate."""
        # Adam reads the gradient, parameters and moments; it writes parameters and moments.
        update = 3 * self.parameters + 2 * self.optimizer
        return self.flops / (COMPUTE_SHARE * machine.flops) + update / machine.memory_rate

    def link_seconds(self, machine: Machine) -> float:
        """Seconds of all collectives one after the other, without the time to start them."""
        return sum(
            c.calls * c.sent / (LINK_SHARE * machine.link_rate(c.group, self.devices))
            for c in self.collectives
        )

    def step_seconds(self, machine: Machine) -> tuple[float, float]:
        """(if links and compute overlap, if they alternate and no calls are joined), in seconds."""
        compute = self.compute_seconds(machine)
        links = self.link_seconds(machine)
        starts = CALL_SECONDS * sum(c.calls for c in self.collectives)
        return max(compute, links), compute + links + starts


def measure(size: str, mesh_axes: Axes, rows: int, dumps: Path) -> Plan:
    """Compiles one step; `dumps` is where XLA writes the passes that XLA_FLAGS names."""
    shutil.rmtree(dumps)
    dumps.mkdir()
    config = load_config(f"{PRESET}:{size}", {"model.dtype": "bfloat16"})
    mesh = make_mesh(MeshConfig(*mesh_axes), jax.devices()[: math.prod(mesh_axes)])
    shape = BatchShape(rows, ROW_LENGTH, ROW_LENGTH)
    program = compile_program(config.model, config.train, mesh, VOCABULARY, shape)
    compiled: Any = program.train_step  # a jax.stages.Compiled
    every_row = training_flops(config.model, padded_vocabulary(VOCABULARY), *shape.lengths)
    return Plan(
        size,
        mesh_axes,
        rows,
        bytes_held(program.state.params),
        bytes_held(program.state.opt_state),
        compiled.memory_analysis().temp_size_in_bytes,
        compiled.cost_analysis()["flops"],
        rows * every_row / mesh.size,
        collectives(partitioned(dumps), mesh.size) if mesh.size > 1 else [],
    )


def bytes_held(tree: Any) -> int:
    """Bytes of one device's share of sharded arrays or abstract arrays."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def partitioned(dumps: Path) -> str:
    """The step's text after partitioning. Raises FileNotFoundError if XLA dumped none."""
    found = sorted(dumps.glob("*jit_train_step*after_spmd-partitioning*"))
    if not found:
        raise FileNotFoundError("XLA dumped no spmd-partitioning pass: did its name change?")
    return found[-1].read_text()


# Tables ----------------------------------------------------------------------------------------


MESH = ("devices", "data, fsdp, tensor", "rows")  # the first columns of both tables


def held_and_sent(plans: list[Plan]) -> str:
    """Markdown table of what a device holds, computes and sends in a step."""
    kinds = [k for k in KINDS if any(c.kind == k for plan in plans for c in plan.collectives)]
    head = [*MESH, "parameters, MiB", "optimizer, MiB", "temporary, MiB", "GFLOPs"]
    head += ["of closed form", *(f"{kind}, MiB (calls)" for kind in kinds)]
    rows = [
        [
            *_which(plan),
            *(f"{b / MIB:,.0f}" for b in (plan.parameters, plan.optimizer, plan.temporary)),
            f"{plan.flops / 1e9:,.0f}",
            f"{plan.flops / plan.closed_form:.2f}",
            *(_sent(plan.collectives, kind) for kind in kinds),
        ]
        for plan in plans
    ]
    return markdown(head, rows)


def _which(plan: Plan) -> list[str]:
    return [str(plan.devices), ", ".join(map(str, plan.mesh)), f"{plan.rows:,}"]


def _sent(found: list[Collective], kind: str) -> str:
    calls = sum(c.calls for c in found if c.kind == kind)
    sent = sum(c.calls * c.sent for c in found if c.kind == kind)
    return f"{sent / MIB:,.0f} ({calls})" if calls else "-"


def times(plans: list[Plan], one: Plan | None, machines: Sequence[Machine]) -> str:
    """Markdown table of predicted times; efficiency is relative to the plan `one`."""
    columns = ("compute, ms", "links, ms", "step, ms", "efficiency")
    head = [*MESH, *(f"{m.name}: {column}" for m in machines for column in columns)]
    rows = []
    for plan in plans:
        cells = _which(plan)
        for machine in machines:
            steps = plan.step_seconds(machine)
            cells += [
                _milliseconds(plan.compute_seconds(machine)),
                _milliseconds(plan.link_seconds(machine)),
                " to ".join(_milliseconds(t) for t in steps),
                " to ".join(f"{efficiency(plan, one, machine, t):.0%}" for t in steps if one),
            ]
        rows.append(cells)
    return markdown(head, rows)


def efficiency(plan: Plan, one: Plan, machine: Machine, seconds: float) -> float:
    """Rows per second and device, divided by those of the plan `one` of a single device."""
    alone = one.rows / one.compute_seconds(machine)
    return plan.rows / seconds / plan.devices / alone


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


# The command -----------------------------------------------------------------------------------


def main() -> None:
    """Compiles the steps that are not in the cache, and prints the tables."""
    values = parse_experiment("scaling_plan", __doc__, FLAGS, takes_keys=False)
    counts = [int(n) for n in values["devices"].split(",")]
    fixed = [(mesh, values["rows"]) for mesh in FIXED_BATCH]
    growing = [(mesh, values["rows-a-device"] * math.prod(mesh)) for mesh in GROWING_BATCH]
    wanted = [
        (mesh, rows)
        for mesh, rows in fixed + growing
        if math.prod(mesh) in counts and rows and rows % (mesh[0] * mesh[1]) == 0
    ]
    wanted.sort(key=lambda pair: (pair[1] > values["rows"], math.prod(pair[0])))
    print(f"JAX {jax.__version__}, bfloat16, rows of {ROW_LENGTH} and {ROW_LENGTH} positions.\n")
    with tempfile.TemporaryDirectory() as folder:
        dumps = Path(folder)
        prepare_xla(max(counts), dumps)
        for size in values["sizes"].split(","):
            plans = [cached(values["cache"], size, mesh, rows, dumps) for mesh, rows in wanted]
            one = next((plan for plan in plans if plan.devices == 1), None)
            print(f"### {size}: what a device holds, computes and sends in a step\n")
            print(held_and_sent(plans), end="\n\n")
            print(f"### {size}: predicted times of a step\n")
            print(times(plans, one, (H100, V5E)), end="\n\n")


def prepare_xla(devices: int, dumps: Path) -> None:
    """Sets XLA's flags. Call it before JAX first looks for devices: then XLA reads them."""
    flags = (
        f"--xla_force_host_platform_device_count={devices} --xla_dump_to={dumps} "
        "--xla_dump_hlo_module_re=jit_train_step --xla_dump_hlo_pass_re=spmd-partitioning"
    )
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)  # XLA dumps no cached programs


def cached(file: str | None, size: str, mesh: Axes, rows: int, dumps: Path) -> Plan:
    """Reads the plan from the cache's file, or measures it and writes it there."""
    cache = Path(file) if file else None
    known = json.loads(cache.read_text()) if cache and cache.exists() else {}
    name = f"{size} {mesh} {rows}"
    if name not in known:
        print(f"compiling {name}", file=sys.stderr)
        known[name] = measure(size, mesh, rows, dumps)
        if cache:
            cache.write_text(json.dumps(known))
        jax.clear_caches()
    plan = Plan(*known[name])
    return plan._replace(collectives=[Collective(*c) for c in plan.collectives])


if __name__ == "__main__":
    sys.exit(exit_status(main))
