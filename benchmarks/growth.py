"""How the measured cost of a training step and of a search grows, compared with counted costs.

    python -m benchmarks.growth --out=FOLDER
    python -m benchmarks.growth --out=FOLDER --axes=step.rows,search.beam --rounds=3 --cpu_time

The script varies one axis at a time around a base point. It fits size^exponent to the time, to the
matrix products' FLOPs (training/cost.py, search_cost.py), to the bytes that must be moved, to the
bytes that XLA counts and to the memory. It prints Markdown tables and writes the log-log plots
step.png and search.png. If the time grows faster than FLOPs and bytes, the program does work that
is not counted.

The speed of a machine changes by a factor of two within minutes. So the points of an axis take
turns (turns.py); each round gives an exponent of the time, and the median is reported.
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

from benchmarks.growth_points import MIB, Point, Setting, make_point
from benchmarks.turns import by_turns, markdown, matrix_product, spread, timed
from transformer_jax.errors import UserError
from transformer_jax.reporting import plots
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment, set_up_logs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Clock = Callable[[], float]  # seconds
logger = logging.getLogger("transformer_jax.benchmarks")

FLAGS = [
    Flag("out", str, "FOLDER", "folder for the plots; default: no plots"),
    Flag("axes", str, "NAMES", "such as step.rows,search.beam; default: all axes"),
    Flag("rounds", int, "N", "how often each point is visited", default=4),
    Flag("cpu_time", bool, "", "measure CPU time of all threads, if others use the CPU too"),
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
    seconds: list[list[float]]  # [points, rounds]
    product: list[float]  # GFLOP/s of a matrix product [rounds]

    @property
    def label(self) -> str:
        """The axis's name in tables and plots."""
        return LABELS.get(self.name, self.name.split(".")[1])

    def median_seconds(self) -> list[float]:
        """The median time of each point."""
        return [statistics.median(times) for times in self.seconds]

    def counted(self) -> dict[str, list[float]]:
        """The costs beside the time: name -> one value per point."""
        moved = [p.xla_moved for p in self.points if p.xla_moved is not None]
        return {
            "FLOPs": [p.flops for p in self.points],
            "bytes": [p.moved for p in self.points],
            **({"XLA's bytes": moved} if len(moved) == len(self.points) else {}),
            "memory": [p.memory for p in self.points],
        }

    def exponents(self, last: int = 0) -> dict[str, float]:
        """The exponents of what is counted, over all points or the `last` ones."""
        every = self.counted().items()
        return {name: exponent(self.sizes[-last:], values[-last:]) for name, values in every}

    def time_exponents(self, last: int = 0) -> list[float]:
        """The exponent of each round, over all points or the `last` ones."""
        rounds = zip(*self.seconds[-last:], strict=True)
        return [exponent(self.sizes[-last:], times) for times in rounds]

    def over_counted(self, last: int = 0) -> float:
        """The time's exponent minus the larger one of FLOPs and bytes."""
        counted = self.exponents(last)
        return statistics.median(self.time_exponents(last)) - max(
            counted["FLOPs"], counted["bytes"]
        )


def measure(
    name: str, plan: Plan, rounds: int, make: Callable[[Setting], Point], clock: Clock
) -> Result:
    """Measures one axis: its points take turns, and every round times a matrix product too."""
    key = name.split(".")[1]
    sizes = plan.axes[key]
    points = [make(plan.base._replace(**{key: size})) for size in sizes]
    runs = [point.run for point in points]
    visits = [functools.partial(timed, run, calls_of_a_visit(run), clock) for run in runs]
    visits.append(functools.partial(matrix_product, PRODUCT_SIZE, 5))
    logger.info("%s: %d rounds", name, rounds)
    *seconds, product = by_turns(dict(enumerate(visits)), rounds).values()
    return Result(name, sizes, points, seconds, product)


def calls_of_a_visit(run: Callable[[], Any]) -> int:
    """Calls per visit. The first call warms up; if it is short, a second call decides."""
    if timed(run) > VISIT_SECONDS:
        return 1
    return min(VISIT_CALLS, max(1, round(VISIT_SECONDS / timed(run))))


# Tables and plots ------------------------------------------------------------------------------


def table(result: Result) -> str:
    """Markdown table of an axis: its points, and the exponents of all and of the last two."""
    counted = result.counted()
    head = [result.label, "time, ms", "FLOPs, G", "GFLOP/s"]
    head += [f"{name}, MiB" for name in counted if name != "FLOPs"]
    rows = []
    for size, times, costs in zip(
        result.sizes, result.seconds, zip(*counted.values(), strict=True), strict=True
    ):
        flops, *held = costs
        rate = flops / statistics.median(times) / 1e9
        figures = [spread([1e3 * t for t in times], "{:,.1f}"), f"{flops / 1e9:,.2f}"]
        rows.append([f"{size:,}", *figures, f"{rate:,.1f}", *(f"{b / MIB:,.1f}" for b in held)])
    for words, last in (("exponent", 0), ("of the last two", 2)):
        each = result.time_exponents(last)
        flops, *held = result.exponents(last).values()
        numbers = [flops, flops - statistics.median(each), *held]
        rows.append([f"**{words}**", spread(each), *(f"{number:.2f}" for number in numbers)])
    beside = f"A matrix product beside it: {spread(result.product, '{:,.0f}')} GFLOP/s."
    return f"{markdown(head, rows)}\n\n{beside}"


def summary(results: Sequence[Result]) -> str:
    """Markdown table of the exponents of all axes, and of `over_counted`."""
    head = ["axis", "time", "FLOPs", "bytes", "memory", "time over counted", "at the end"]
    rows = []
    for result in results:
        counted = result.exponents()
        numbers = [statistics.median(result.time_exponents()), *map(counted.get, head[2:5])]
        over = [f"{result.over_counted(last):+.2f}" for last in (0, 2)]
        rows.append([result.name, *(f"{number:.2f}" for number in numbers), *over])
    return markdown(head, rows)


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
    plots.save_figure(figure, path)


def _draw(axes: "Axes", result: Result) -> None:
    curves = {"time": result.median_seconds(), **result.counted()}
    slopes = result.exponents() | {"time": statistics.median(result.time_exponents())}
    styles: dict[str, dict[str, Any]] = {
        "time": {"color": plots.BLUE, "marker": "o", "linewidth": 2.0, "zorder": 3},
        "FLOPs": {"color": plots.VERMILION, "linestyle": "--"},
        "bytes": {"color": plots.GREEN, "linestyle": "-."},
        "memory": {"color": plots.PURPLE, "linestyle": ":"},
    }
    for name, style in styles.items():
        relative = np.array(curves[name]) / curves[name][0]
        axes.plot(result.sizes, relative, label=f"{name}: {slopes[name]:.2f}", **style)
    for axis in ("x", "y"):
        plots.use_log_axis(axes, axis)
    axes.set_xticks(result.sizes, [f"{size:,}" for size in result.sizes])
    plots.finish_axes(axes, result.label, "times the first point's")
    axes.legend(title="exponent", frameon=False, fontsize=8, title_fontsize=8)


# The command -----------------------------------------------------------------------------------


def main() -> None:
    """Measures what the flags ask for, and prints the report."""
    values = parse_experiment("growth", __doc__, FLAGS, takes_keys=False)
    out = Path(values["out"]) if values["out"] else None
    names = values["axes"].split(",") if values["axes"] else None
    clock = time.process_time if values["cpu_time"] else time.perf_counter
    print(report(FULL, values["rounds"], out, names, clock=clock))


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
    threads = "; time of all threads" if clock is time.process_time else ""
    head = f"JAX {jax.__version__}, {device}, float32, {rounds} rounds; medians (range){threads}.\n"
    lines, results = [head], list[Result]()
    for kind, plan in plans.items():
        wanted = [name for name in known if name in (names or known) and name.startswith(kind)]
        taken = base_once(plan, make)
        measured = [measure(name, plan, rounds, taken, clock) for name in wanted]
        lines += [f"### {own.name} around {plan.base}\n\n{table(own)}\n" for own in measured]
        if out and measured:
            plot(measured, TITLES[kind], out / f"{kind}.png")
        results += measured
    return "\n".join([*lines, "### Exponents\n", summary(results)])


def base_once(plan: Plan, make: Callable[[Setting], Point]) -> Callable[[Setting], Point]:
    """`make`, but the base point, which all axes have, is compiled once."""
    base = functools.cache(lambda: make(plan.base))
    return lambda setting: base() if setting == plan.base else make(setting)


if __name__ == "__main__":
    set_up_logs()
    sys.exit(exit_status(main))
