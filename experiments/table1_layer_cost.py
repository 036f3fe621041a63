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
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.layer_kinds import KINDS, Sizes, init, products_in_sequence, reach
from experiments.table1_report import COLUMNS, DILATED, PATHS, WINDOWS, report
from transformer_jax.errors import UserError
from transformer_jax.files import write_csv
from transformer_jax.reporting.provenance import revision
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

log = logging.getLogger("experiments.table1_layer_cost")
RECORDED = "docs/results/table1_layer_cost"
FLAGS = [
    Flag("scale", str, "NAME", "paper, or small: tiny sizes for a test", default="paper"),
    Flag("out", str, "FOLDER", "where results.csv, table.md, plots and page go", default=RECORDED),
    Flag("rounds", int, "N", "how often each point is visited", default=3),
    Flag("report", bool, "", "only write table, plots and page from FOLDER/results.csv"),
]


class Plan(NamedTuple):
    """What to measure: every kind at all lengths and widths, and windows at one point."""

    lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048)
    widths: tuple[int, ...] = (64, 128, 256, 512)
    windows_at: tuple[int, int] = (1024, 256)  # n, d
    kernels: tuple[int, ...] = (3, 5, 9, 17)  # the first is the usual one
    neighborhoods: tuple[int, ...] = (33, 9, 17, 65, 129)  # likewise
    batches: tuple[int, int] = (4, 16)  # rows on a CPU, rows on any other device
    path_lengths: tuple[int, ...] = (16, 32, 64)
    path_neighborhood: int = 9
    visit_seconds: float = 0.1  # a visit takes about this long, with at most `MOST_CALLS` calls

    @property
    def batch(self) -> int:
        """Rows of a batch on this machine's device."""
        return self.batches[jax.default_backend() != "cpu"]

    def points(self) -> Iterator[tuple[str, Sizes]]:
        """Kind and sizes of every timed point."""
        for kind in KINDS:
            letter = WINDOWS.get(kind)
            windows = {"k": self.kernels, "r": self.neighborhoods, None: (None,)}[letter]
            for d in self.widths:
                for n in self.lengths:
                    for window in windows if (n, d) == self.windows_at else windows[:1]:
                        own = {letter: window} if letter else {}
                        yield kind, Sizes(n, d, heads=max(1, d // D_K), **own)


PLANS = {
    "paper": Plan(),
    "small": Plan((16, 64), (8, 32), (64, 8), (3, 5), (5, 9), (2, 2), (5, 9), 5, 1e-3),
}
D_K = 64  # per head, as in the paper: wider layers have more heads
PATH_WIDTH = 4
MOST_CALLS = 5

# Measuring -------------------------------------------------------------------------------------


Run = Callable[[], object]  # runs a compiled layer once and waits for the result


def compile_point(kind: str, sizes: Sizes, batch: int) -> tuple[tuple[Run, Run], int]:
    """Forward, and forward and backward with gradients of parameters and input; its bytes."""
    # The gradient of a plain sum is all ones, and XLA would simplify products with ones.
    draw = np.random.default_rng(0).normal(size=(2, batch, sizes.n, sizes.d))
    x_BLD, weights_BLD = jnp.asarray(draw, jnp.float32)
    params = init(KINDS[kind], sizes)

    def forward(params: Any, x_BLD: Any) -> Any:
        return KINDS[kind].apply(params, x_BLD, sizes)

    def total(params: Any, x_BLD: Any, weights_BLD: Any) -> Any:
        return (forward(params, x_BLD) * weights_BLD).sum()

    both = jax.value_and_grad(total, argnums=(0, 1))
    one = jax.jit(forward).lower(params, x_BLD).compile()
    two = jax.jit(both).lower(params, x_BLD, weights_BLD).compile()
    runs = (
        lambda: jax.block_until_ready(one(params, x_BLD)),
        lambda: jax.block_until_ready(two(params, x_BLD, weights_BLD)),
    )
    # Some backends report no memory.
    return runs, int(getattr(two.memory_analysis(), "temp_size_in_bytes", 0))


def visit(run: Run, seconds: float) -> float:
    """Median milliseconds of `MOST_CALLS` calls, or of fewer after `seconds`."""
    times: list[float] = []
    while len(times) < MOST_CALLS and sum(times) < seconds:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def measure(plan: Plan, rounds: int, out: Path, command: str) -> None:
    """Measures all points; writes results.csv again after each round."""
    made_by = {
        "device": f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, JAX {jax.__version__}",
        "date": datetime.date.today().isoformat(),
        "revision": revision(),
        "command": command,
    }
    paths = list(path_rows(plan))
    todo = list(plan.points())
    rows: list[dict[str, Any]] = []
    points = []
    for kind, sizes in todo:
        runs, memory = compile_point(kind, sizes, plan.batch)
        for run in runs:
            run()  # the first call is slow
        points.append(runs)
        flops = plan.batch * KINDS[kind].flops(sizes)
        counted = {"batch": plan.batch, "memory_bytes": memory, "forward_flops": flops}
        rows.append({"kind": kind, **sizes._asdict(), **counted})
        if len(points) % 20 == 0:
            log.info("%d of %d points compiled", len(points), len(todo))
    times_RP2 = np.full((rounds, len(points), 2), np.nan)
    for turn, times_P2 in enumerate(times_RP2):
        for at in range(len(points)) if turn % 2 == 0 else reversed(range(len(points))):
            times_P2[at] = [visit(run, plan.visit_seconds) for run in points[at]]
        medians_P2 = np.median(times_RP2[: turn + 1], axis=0).round(4).tolist()
        for row, times in zip(rows, medians_P2, strict=True):
            row["forward_ms"], row["forward_backward_ms"] = times
        lines = [[(row | made_by).get(name) for name in COLUMNS] for row in [*rows, *paths]]
        write_csv(out / "results.csv", COLUMNS, lines)
        log.info("round %d of %d", turn + 1, rounds)


def path_rows(plan: Plan) -> Iterator[Mapping[str, Any]]:
    """Rows that are counted, not timed: products in sequence, and how far gradients reach."""
    windows = {"k": plan.kernels[0], "r": plan.path_neighborhood}
    for name in PATHS:
        kind = "convolution" if name == DILATED else name
        own = {letter: windows[letter] for letter in WINDOWS.get(kind, "")}
        for n in plan.path_lengths:
            sizes = Sizes(n, PATH_WIDTH, **own)
            yield {
                "kind": name,
                **sizes._asdict(),
                "batch": 1,
                "forward_flops": KINDS[kind].flops(sizes),
                "products_in_sequence": products_in_sequence(KINDS[kind], sizes),
                **reach(KINDS[kind], sizes, dilated=name == DILATED)._asdict(),
            }
        log.info("paths of %s", name)


# The command -----------------------------------------------------------------------------------


def main() -> None:
    """Measures and reports, or only reports."""
    values = parse_experiment("table1_layer_cost", __doc__, FLAGS, takes_keys=False)
    scale, rounds, out = values["scale"], values["rounds"], Path(values["out"])
    if scale not in PLANS:
        raise UserError(f"--scale={scale} is not one of {', '.join(PLANS)}.")
    if rounds < 1:
        raise UserError(f"--rounds={rounds}: each point needs at least one visit.")
    if not values["report"]:
        if scale == "small" and values["out"] == RECORDED:
            raise UserError("--scale=small gives no results to record: give --out=FOLDER.")
        command = f"python -m experiments.table1_layer_cost --scale={scale} --rounds={rounds}"
        measure(PLANS[scale], rounds, out, command)
    report(out)
    print((out / "table.md").read_text(), end="")
    log.info("%s", out / "index.html")


if __name__ == "__main__":
    run_main(main)
