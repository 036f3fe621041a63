"""Table 1 by measurement: what a layer costs, its sequential operations, its longest path.

    python -m experiments.table1_layer_cost               # some minutes on two CPU cores, or a GPU
    python -m experiments.table1_layer_cost --report      # table, plots and page, from results.csv
    python -m experiments.table1_layer_cost --scale=small --out=FOLDER   # only a test

The paper (section 4; n length, d width, k kernel, r neighborhood): self-attention O(n²·d), O(1)
operations in sequence, longest path O(1); recurrent O(n·d²), O(n), O(n); convolutional O(k·n·d²),
O(1), O(log_k n) if dilated, else O(n/k); restricted self-attention O(r·n·d), O(1), O(n/r).
Self-attention is cheaper than recurrence if n < d.

How to read it: "alone" is what Table 1 counts, the two products of attention. The four projections
around them cost O(n·d²) more in a layer, restricted or not. The layers are in layer_kinds.py; all
numbers are float32. All points are measured once in each round, in one order and then in the other,
because the speed of a machine drifts; a time is the median over rounds. Exponents are fitted over
the upper half of lengths and widths. The exponents of counted FLOPs show what this fit gives if the
time follows the count. Memory is XLA's temporaries, without the scratch space inside its library
calls. On a GPU, times of small sizes are those of launching kernels.
"""

import datetime
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.table1_report import report
from experiments.table1_results import CLAIMS, DILATED, PATHS, WINDOWS, Row, write_rows
from transformer_jax.errors import UserError
from transformer_jax.reporting.page import markdown_table
from transformer_jax.reporting.provenance import revision
from transformer_jax.use.command_line import (
    Flag,
    describe_flags,
    exit_status,
    parse_flags,
    set_up_logs,
)

if TYPE_CHECKING:
    from experiments.layer_kinds import Sizes

log = logging.getLogger("experiments.table1_layer_cost")
RECORDED = "docs/results/table1_layer_cost"
FLAGS = [
    Flag("scale", str, "NAME", "paper, or small: tiny sizes for a test", default="paper"),
    Flag("out", str, "FOLDER", "where results.csv, table.md, plots and page go", default=RECORDED),
    Flag("rounds", int, "N", "how often each point is visited", default=3),
    Flag("report", bool, "", "only write table, plots and page from FOLDER/results.csv"),
    Flag("list", bool, "", "print the layers and the paper's table, and stop"),
    Flag("dry_run", bool, "", "print the points, their counted FLOPs and estimated times"),
]


class Plan(NamedTuple):
    """What to measure: every kind at all lengths and widths, and windows at one point."""

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    windows_at: tuple[int, int]  # n, d
    kernels: tuple[int, ...]  # the first is the usual one
    neighborhoods: tuple[int, ...]  # likewise
    batches: tuple[int, int]  # rows on a CPU, rows on any other device
    path_lengths: tuple[int, ...]
    path_neighborhood: int
    visit_seconds: float  # a visit takes about this long, with at most `MOST_CALLS` calls


PLANS = {
    "paper": Plan(
        lengths=(32, 64, 128, 256, 512, 1024, 2048),
        widths=(64, 128, 256, 512),
        windows_at=(1024, 256),
        kernels=(3, 5, 9, 17),
        neighborhoods=(33, 9, 17, 65, 129),
        batches=(4, 16),
        path_lengths=(16, 32, 64),
        path_neighborhood=9,
        visit_seconds=0.1,
    ),
    "small": Plan((16, 64), (8, 32), (64, 8), (3, 5), (5, 9), (2, 2), (5, 9), 5, 1e-3),
}
D_K = 64  # per head, as in the paper: wider layers have more heads
PATH_WIDTH = 4
MOST_CALLS = 5
# For estimates: FLOP/s, and seconds per product of a chain.
SPEEDS = {"cpu": (40e9, 30e-6), "gpu": (10e12, 10e-6)}
COMPILE_SECONDS = 1.2  # per point

# Measuring -------------------------------------------------------------------------------------


class Point(NamedTuple):
    """A compiled layer; each function runs once and waits for the result."""

    forward: Callable[[], object]
    forward_backward: Callable[[], object]
    memory: int  # bytes


def points(plan: Plan) -> Iterator[tuple[str, "Sizes"]]:
    """Kind and sizes of every timed point."""
    from experiments.layer_kinds import KINDS, Sizes

    for kind in KINDS:
        windows = {"k": plan.kernels, "r": plan.neighborhoods}.get(WINDOWS.get(kind, ""), (0,))
        for d in plan.widths:
            for n in plan.lengths:
                for window in windows if (n, d) == plan.windows_at else windows[:1]:
                    own = {WINDOWS[kind]: window} if kind in WINDOWS else {}
                    yield kind, Sizes(n, d, max(1, d // D_K), **own)


def compile_point(kind: str, sizes: "Sizes", batch: int) -> Point:
    """Compiles forward, and forward and backward with gradients of parameters and input."""
    import jax
    import jax.numpy as jnp

    from experiments.layer_kinds import KINDS, init

    draw = np.random.default_rng(0)
    shape = (2, batch, sizes.n, sizes.d)
    # The gradient of a plain sum is all ones, and XLA would simplify products with ones.
    x_BLD, weights_BLD = jnp.asarray(draw.normal(size=shape), jnp.float32)
    params = init(KINDS[kind], sizes)

    def forward(params: Any, x_BLD: Any) -> Any:
        return KINDS[kind].apply(params, x_BLD, sizes)

    def total(params: Any, x_BLD: Any, weights_BLD: Any) -> Any:
        return (forward(params, x_BLD) * weights_BLD).sum()

    both = jax.value_and_grad(total, argnums=(0, 1))
    one = jax.jit(forward).lower(params, x_BLD).compile()
    two = jax.jit(both).lower(params, x_BLD, weights_BLD).compile()
    return Point(
        lambda: jax.block_until_ready(one(params, x_BLD)),
        lambda: jax.block_until_ready(two(params, x_BLD, weights_BLD)),
        int(getattr(two.memory_analysis(), "temp_size_in_bytes", 0)),  # some backends report none
    )


def visit(run: Callable[[], object], seconds: float) -> float:
    """Median milliseconds of `MOST_CALLS` calls, or of fewer after `seconds`."""
    times: list[float] = []
    while len(times) < MOST_CALLS and sum(times) < seconds:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def measure(plan: Plan, rounds: int, out: Path, command: str) -> None:
    """Measures all points; writes results.csv again after each round."""
    from experiments.layer_kinds import KINDS

    todo = list(points(plan))
    batch = batch_rows(plan)
    made_by = provenance(command)
    paths = list(path_rows(plan, made_by))
    compiled = []
    for number, (kind, sizes) in enumerate(todo):
        point = compile_point(kind, sizes, batch)
        point.forward()  # the first call is slow
        point.forward_backward()
        compiled.append(point)
        if (number + 1) % 20 == 0:
            log.info("%d of %d points compiled", number + 1, len(todo))
    times: list[list[tuple[float, float]]] = [[] for _ in todo]
    for turn in range(rounds):
        for at in range(len(todo)) if turn % 2 == 0 else reversed(range(len(todo))):
            runs = compiled[at].forward, compiled[at].forward_backward
            forward, both = (visit(run, plan.visit_seconds) for run in runs)
            times[at].append((forward, both))
        rows = []
        for (kind, sizes), point, pairs in zip(todo, compiled, times, strict=True):
            medians = [round(statistics.median(each), 4) for each in zip(*pairs, strict=True)]
            flops = batch * KINDS[kind].flops(sizes)
            rest: tuple[Any, ...] = (batch, *medians, point.memory, flops, *[None] * 4, *made_by)
            rows.append(Row(kind, sizes.n, sizes.d, *_windows_of(kind, sizes), *rest))
        write_rows(out / "results.csv", rows + paths)
        log.info("round %d of %d", turn + 1, rounds)


def path_rows(plan: Plan, made_by: tuple[str, str, str, str]) -> Iterator[Row]:
    """Rows that are counted, not timed: products in sequence, and how far gradients reach."""
    from experiments.layer_kinds import KINDS, Sizes, products_in_sequence, reach

    for name in PATHS:
        kind = "convolution" if name == DILATED else name
        for n in plan.path_lengths:
            sizes = Sizes(n, PATH_WIDTH, 1, plan.kernels[0], plan.path_neighborhood)
            reached = reach(KINDS[kind], sizes, dilated=name == DILATED)
            chain = products_in_sequence(KINDS[kind], sizes)
            windows = _windows_of(kind, sizes)
            flops = KINDS[kind].flops(sizes)
            counted = (flops, chain, *reached)
            yield Row(name, n, sizes.d, *windows, 1, None, None, None, *counted, *made_by)
        log.info("paths of %s", name)


def _windows_of(kind: str, sizes: "Sizes") -> tuple[int | None, int | None]:
    """k and r; None if the kind does not have it."""
    window = WINDOWS.get(kind)
    return sizes.k if window == "k" else None, sizes.r if window == "r" else None


def batch_rows(plan: Plan) -> int:
    """Rows of a batch on this machine's device."""
    import jax

    return plan.batches[jax.default_backend() != "cpu"]


def provenance(command: str) -> tuple[str, str, str, str]:
    """Device, date, revision of the code, command."""
    import jax

    device = f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, JAX {jax.__version__}"
    return device, datetime.date.today().isoformat(), revision(), command


def dry_run(plan: Plan, rounds: int) -> str:
    """Markdown table of the points, and an estimate of the time to measure them."""
    import jax

    from experiments.layer_kinds import KINDS

    batch = batch_rows(plan)
    total = 0.0
    rows = []
    rate, latency = SPEEDS["cpu" if jax.default_backend() == "cpu" else "gpu"]
    for kind, sizes in points(plan):
        flops = batch * KINDS[kind].flops(sizes)
        forward = flops / rate + latency * (sizes.n if kind == "recurrent" else 1)
        for seconds in (forward, 3 * forward):
            total += rounds * min(MOST_CALLS * seconds, max(plan.visit_seconds, seconds))
        total += COMPILE_SECONDS
        k, r = _windows_of(kind, sizes)
        of_layer = [f"{sizes.n:,}", f"{sizes.d:,}", str(k or r or "")]
        rows.append([kind, *of_layer, f"{flops / 1e9:,.4f}", f"{3e3 * forward:,.2f}"])
    head = ["layer", "n", "d", "k or r", "forward GFLOPs", "forward and backward, ms (a guess)"]
    words = (
        f"{len(rows)} points, {batch} rows each, {rounds} rounds: about {total / 60:.1f} minutes."
    )
    return f"{markdown_table(head, rows)}\n{words}"


# The command -----------------------------------------------------------------------------------


def main() -> None:
    """Measures and reports, or does what the flags ask for instead."""
    if {"-h", "--help"} & set(sys.argv):
        print(f"{__doc__.strip()}\n\n{describe_flags(FLAGS)}")
        return
    values = parse_flags("table1_layer_cost", FLAGS, sys.argv[1:], keys=())
    scale = values["scale"]
    rounds = values["rounds"]
    out = Path(values["out"])
    if scale not in PLANS:
        raise UserError(f"--scale={scale} is not one of {', '.join(PLANS)}.")
    if rounds < 1:
        raise UserError(f"--rounds={rounds}: each point needs at least one visit.")
    if values["list"]:
        print(list_layers(), end="")
        return
    if values["dry_run"]:
        print(dry_run(PLANS[scale], rounds))
        return
    if not values["report"]:
        if scale == "small" and values["out"] == RECORDED:
            raise UserError("--scale=small gives no results to record: give --out=FOLDER.")
        command = f"python -m experiments.table1_layer_cost --scale={scale} --rounds={rounds}"
        measure(PLANS[scale], rounds, out, command)
    report(out)
    print((out / "table.md").read_text(), end="")
    log.info("%s", out / "index.html")


def list_layers() -> str:
    """Markdown table of the kinds, with the paper's complexities."""
    head = ["layer", "work", "operations in sequence", "longest path"]
    return markdown_table(head, [[kind, *claim] for kind, claim in CLAIMS.items()])


if __name__ == "__main__":
    set_up_logs()
    sys.exit(exit_status(main))
