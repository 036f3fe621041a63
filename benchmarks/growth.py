"""How the measured cost of a training step and of a search grows, compared with counted costs.

    python -m benchmarks.growth --out=FOLDER
    python -m benchmarks.growth --out=FOLDER --axes=step.rows,search.beam --rounds=3 --cpu_time
    python -m benchmarks.growth --base_memory

The script varies one axis at a time around a base point. It fits size^exponent to the time, to the
matrix products' FLOPs (training/cost.py, search_cost.py), to the bytes that must be moved, to the
bytes that XLA counts and to the memory. It prints Markdown tables and writes the log-log plots
step.png and search.png. If the time grows faster than FLOPs and bytes, the program does work that
is not counted.

The speed of a machine changes by a factor of two within minutes. So the points of an axis take
turns, forward and back; each round gives an exponent of the time, and the median is reported.
"""

import functools
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from benchmarks.growth_points import MIB, Point, Setting, base_memory, make_point
from benchmarks.turns import markdown
from transformer_jax.errors import UserError
from transformer_jax.reporting.plots import BLUE, DOTS_PER_INCH, GREEN, PURPLE, VERMILION
from transformer_jax.use.command_line import (
    Flag,
    describe_flags,
    exit_status,
    parse_flags,
    set_up_logs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Clock = Callable[[], float]  # seconds
logger = logging.getLogger("transformer_jax.benchmarks")

FLAGS = [
    Flag("out", str, "FOLDER", "folder for the plots; default: no plots"),
    Flag("axes", str, "NAMES", "such as step.rows,search.beam; default: all axes"),
    Flag("rounds", int, "N", "how often each point is visited", default=4),
    Flag("cpu_time", bool, "", "measure CPU time of all threads, if others use the CPU too"),
    Flag("quick", bool, "", "only test that the script works: two points an axis"),
    Flag("base_memory", bool, "", "only print the memory of the base model's compiled step"),
]
VISIT_SECONDS, VISIT_CALLS = 0.4, 9  # limits of one visit: time, and number of calls
PRODUCT_SIZE = 1024  # of the matrix product that measures the machine's speed


class Plan(NamedTuple):
    """The base point, and the sizes along each axis."""

    base: Setting
    axes: dict[str, tuple[int, ...]]  # field of Setting -> its values


FULL = {
    "step": Plan(
        Setting(16, 128, 256, 3, 8_000),
        {
            "rows": (4, 8, 16, 32, 64),
            "length": (32, 64, 128, 256, 512),
            "d_model": (64, 128, 256, 512),
            "layers": (1, 2, 3, 6),
            "vocabulary": (2_000, 4_000, 8_000, 16_000, 32_000),
        },
    ),
    "search": Plan(
        Setting(16, 64, 256, 3, 8_000, beam=4),
        {
            "beam": (1, 2, 4, 8, 16),
            "rows": (4, 8, 32, 128),
            "length": (16, 32, 64, 128),
        },
    ),
}
QUICK = {
    "step": Plan(
        Setting(2, 16, 64, 1, 256),
        {
            "rows": (2, 4),
            "length": (16, 32),
            "d_model": (64, 128),
            "layers": (1, 2),
            "vocabulary": (256, 512),
        },
    ),
    "search": Plan(
        Setting(2, 8, 64, 1, 256, beam=2), {"beam": (1, 2), "rows": (2, 4), "length": (8, 16)}
    ),
}
LABELS = {
    "step.rows": "rows",
    "step.length": "positions a row",
    "search.rows": "sentences",
    "search.length": "subwords a sentence",
}

TITLES = {"step": "How a training step grows", "search": "How a search grows"}

# Measuring -------------------------------------------------------------------------------------


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent of the best power law size^exponent, by least squares of logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


class Result(NamedTuple):
    """The measurements of one axis."""

    name: str  # such as step.rows
    sizes: tuple[int, ...]
    points: list[Point]
    seconds: list[list[float]]  # [rounds, points]
    product: list[float]  # FLOP/s of a matrix product [rounds]

    @property
    def label(self) -> str:
        """The axis's name in tables and plots."""
        return LABELS.get(self.name, self.name.split(".")[1])

    def median_seconds(self) -> list[float]:
        """The median time of each point."""
        return [statistics.median(times) for times in zip(*self.seconds, strict=True)]

    def counted(self) -> dict[str, list[float]]:
        """The costs beside the time: name -> one value per point."""
        moved = [p.xla_moved for p in self.points if p.xla_moved is not None]
        return {
            "FLOPs": [p.flops for p in self.points],
            "bytes": [p.moved for p in self.points],
            **({"XLA's bytes": moved} if len(moved) == len(self.points) else {}),
            "memory": [p.memory for p in self.points],
        }

    def time_exponents(self, last: int = 0) -> list[float]:
        """The exponent of each round, over all points or the `last` ones."""
        return [exponent(self.sizes[-last:], times[-last:]) for times in self.seconds]


def measure(
    name: str, plan: Plan, rounds: int, make: Callable[[Setting], Point], clock: Clock
) -> Result:
    """Measures one axis: its points take turns, and every round times a matrix product too."""
    key = name.split(".")[1]
    sizes = plan.axes[key]
    points = [make(plan.base._replace(**{key: size})) for size in sizes]
    calls = [calls_of_a_visit(point.run) for point in points]
    seconds, product = [], []
    for turn in range(rounds):
        times = [0.0] * len(points)
        for i in range(len(points)) if turn % 2 == 0 else reversed(range(len(points))):
            times[i] = statistics.median(timed(points[i].run, clock) for _ in range(calls[i]))
        seconds.append(times)
        product.append(product_rate(clock))
        logger.info("%s, round %d of %d", name, turn + 1, rounds)
    return Result(name, sizes, points, seconds, product)


def timed(run: Callable[[], Any], clock: Clock = time.perf_counter) -> float:
    """Seconds that one call takes."""
    begin = clock()
    run()
    return clock() - begin


def calls_of_a_visit(run: Callable[[], Any]) -> int:
    """Calls per visit. The first call warms up; if it is short, a second call decides."""
    if timed(run) > VISIT_SECONDS:
        return 1
    return min(VISIT_CALLS, max(1, round(VISIT_SECONDS / timed(run))))


def product_rate(clock: Clock) -> float:
    """The current FLOP/s of a float32 matrix product by XLA."""
    product, matrix = _product()
    seconds = statistics.median(timed(lambda: product(matrix), clock) for _ in range(5))
    return 2 * PRODUCT_SIZE**3 / seconds


@functools.cache
def _product() -> tuple[Any, jax.Array]:
    matrix = jax.random.normal(jax.random.key(0), (PRODUCT_SIZE, PRODUCT_SIZE))
    compiled = jax.jit(lambda x: x @ x).lower(matrix).compile()
    return lambda x: compiled(x).block_until_ready(), matrix


# Tables and plots ------------------------------------------------------------------------------


def table(result: Result) -> str:
    """Markdown table of an axis: its points, and the exponents of all and of the last two."""
    counted = result.counted()
    times = result.median_seconds()
    head = [result.label, "time, ms", "FLOPs, G", "GFLOP/s"]
    head += [f"{name}, MiB" for name in counted if name != "FLOPs"]
    rows = []
    for i, size in enumerate(result.sizes):
        flops, *held = (values[i] for values in counted.values())
        spread = [1e3 * turn[i] for turn in result.seconds]
        milliseconds = f"{1e3 * times[i]:,.1f} ({min(spread):,.1f}-{max(spread):,.1f})"
        rates = [f"{flops / 1e9:,.2f}", f"{flops / times[i] / 1e9:,.1f}"]
        rows.append([f"{size:,}", milliseconds, *rates, *(f"{b / MIB:,.1f}" for b in held)])
    for words, last in (("exponent", 0), ("of the last two", 2)):
        each = result.time_exponents(last)
        mid = statistics.median(each)
        flops, *held = (exponent(result.sizes[-last:], v[-last:]) for v in counted.values())
        cells = [
            f"{mid:.2f} ({min(each):.2f}-{max(each):.2f})",
            f"{flops:.2f}",
            f"{flops - mid:.2f}",
        ]
        rows.append([f"**{words}**", *cells, *(f"{e:.2f}" for e in held)])
    rate = [r / 1e9 for r in result.product]
    beside = f"{statistics.median(rate):,.0f} ({min(rate):,.0f}-{max(rate):,.0f}) GFLOP/s"
    return f"{markdown(head, rows)}\n\nA matrix product beside it: {beside}."


def summary(results: Sequence[Result]) -> str:
    """Markdown table of the exponents of all axes, and of `over_counted`."""
    head = ["axis", "time", "FLOPs", "bytes", "memory", "time over counted", "at the end"]
    rows = []
    for result in results:
        counted = result.counted()
        cells = [f"{exponent(result.sizes, counted[n]):.2f}" for n in ("FLOPs", "bytes", "memory")]
        over = [f"{over_counted(result, last):+.2f}" for last in (0, 2)]
        mid = statistics.median(result.time_exponents())
        rows.append([result.name, f"{mid:.2f}", *cells, *over])
    return markdown(head, rows)


def over_counted(result: Result, last: int = 0) -> float:
    """The time's exponent minus the larger one of FLOPs and bytes, over all or the last points."""
    counted = result.counted()
    most = max(exponent(result.sizes[-last:], counted[n][-last:]) for n in ("FLOPs", "bytes"))
    return statistics.median(result.time_exponents(last)) - most


def plot(results: Sequence[Result], title: str, path: Path) -> None:
    """Draws log-log curves, one panel per axis, relative to the first point of each curve."""
    from matplotlib.figure import Figure

    columns = min(3, len(results))
    rows = math.ceil(len(results) / columns)
    figure = Figure(figsize=(4.0 * columns, 3.6 * rows + 0.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    for at, result in enumerate(results, start=1):
        _draw(figure.add_subplot(rows, columns, at), result)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def _draw(axes: "Axes", result: Result) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    curves = {"time": result.median_seconds(), **result.counted()}
    styles: dict[str, dict[str, Any]] = {
        "time": {"color": BLUE, "marker": "o", "linewidth": 2.0, "markersize": 4.5, "zorder": 3},
        "FLOPs": {"color": VERMILION, "linestyle": "--"},
        "bytes": {"color": GREEN, "linestyle": "-."},
        "memory": {"color": PURPLE, "linestyle": ":"},
    }
    for name, style in styles.items():
        slope = exponent(result.sizes, curves[name])
        if name == "time":
            slope = statistics.median(result.time_exponents())
        relative = np.array(curves[name]) / curves[name][0]
        axes.plot(result.sizes, relative, label=f"{name}: {slope:.2f}", **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(result.sizes, [f"{size:,}" for size in result.sizes])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(result.label)
    axes.set_ylabel("times the first point's")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="exponent", frameon=False, fontsize=8, title_fontsize=8)


# The command -----------------------------------------------------------------------------------


def main() -> None:
    """Measures what the flags ask for, and prints the report."""
    if "--help" in sys.argv:
        print(f"{__doc__}\n{describe_flags(FLAGS)}")
        return
    values = parse_flags("growth", FLAGS, sys.argv[1:])
    if values["base_memory"]:
        print(base_memory())
        return
    out = Path(values["out"]) if values["out"] else None
    names = values["axes"].split(",") if values["axes"] else None
    plans = QUICK if values["quick"] else FULL
    clock = time.process_time if values["cpu_time"] else time.perf_counter
    print(report(plans, values["rounds"], out, names, clock=clock))


def report(
    plans: Mapping[str, Plan],
    rounds: int,
    out: Path | None,
    names: Sequence[str] | None = None,
    make: Callable[[Setting], Point] = make_point,
    clock: Clock = time.perf_counter,
) -> str:
    """Measures the named axes, or all; returns Markdown. Writes plots to the folder `out`."""
    known = [f"{kind}.{key}" for kind, plan in plans.items() for key in plan.axes]
    if unknown := set(names or ()) - set(known):
        raise UserError(f"unknown axes: {', '.join(unknown)}. Known axes: {', '.join(known)}.")
    device = f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores"
    lines = [f"JAX {jax.__version__}, {device}, float32, {rounds} rounds; medians (range)"]
    lines[0] += "; time of all threads.\n" if clock is time.process_time else ".\n"
    results: list[Result] = []
    for kind, plan in plans.items():
        wanted = [name for name in known if name in (names or known) and name.startswith(kind)]
        measured = measure_axes(plan, wanted, rounds, make, clock)
        lines += [
            f"### {result.name} around {plan.base}\n\n{table(result)}\n" for result in measured
        ]
        if out and measured:
            plot(measured, TITLES[kind], out / f"{kind}.png")
        results += measured
    return "\n".join([*lines, "### Exponents\n", summary(results)])


def measure_axes(
    plan: Plan,
    names: Sequence[str],
    rounds: int,
    make: Callable[[Setting], Point],
    clock: Clock = time.perf_counter,
) -> list[Result]:
    """Measures axes of a plan; their common base point is compiled once."""
    base = functools.cache(lambda: make(plan.base))

    def make_or_take(setting: Setting) -> Point:
        return base() if setting == plan.base else make(setting)

    return [measure(name, plan, rounds, make_or_take, clock) for name in names]


if __name__ == "__main__":
    set_up_logs()
    sys.exit(exit_status(main))
