"""Writes Table 1's report (table.md, plots, page) from results.csv; it measures nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.table1_results import CLAIMS, Results, Row, crossing, read_rows, upper_half
from transformer_jax.files import write_atomically
from transformer_jax.reporting.page import (
    Code,
    Heading,
    Part,
    Picture,
    Table,
    Text,
    markdown_page,
    write_page,
)
from transformer_jax.reporting.plots import (
    BLUE,
    DOTS_PER_INCH,
    GREEN,
    PURPLE,
    VERMILION,
    finish_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Report ----------------------------------------------------------------------------------------

READING = """
"Alone" is attention itself, which is what the paper counts. A layer also has four
projections, which cost O(n·d²), so its exponents are between those of both. A head is at most 64
wide. Restricted self-attention works in blocks, which compute twice as many scores as r keys per
query need. A law is fitted over the upper half of lengths and widths, and the law of k or r at one
point; ± is the fit's standard error. "Counted" is the same fit to the FLOPs of products: the law of
the time if all FLOPs were equally fast.
"""
SEQUENCE_READING = """
The longest chain of matrix products in the traced forward pass: each product needs the result of
the one before it. Sums inside a product or a softmax count as one operation, as in the paper.
"""
PATH_READING = """
The number of stacked layers until every output depends on every input, found from the entries of
Jacobians that are not 0. Recurrence reaches all later positions in one layer, with one step of its
scan for each, and no earlier position: its path is counted in steps. Kernels and neighborhoods move
(k-1)/2 or (r-1)/2 positions per layer, so paths are O(n/k) and O(n/r). The paper's logarithm is
that of dilated kernels. A symmetric kernel of k positions, dilated by ((k+1)/2)^i in layer i, gives
the base (k+1)/2 instead of the paper's k.
"""
CROSSING_READING = """
The length n from which self-attention costs more than recurrence. The paper's n = d leaves out
constants. An LSTM's four gates take 16·n·d² FLOPs, attention alone takes 4·n²·d, and its layer
8·n·d² more: by count they cross at n = 4d and n = 2d. Where measured times cross depends on the
device: recurrence has n steps that wait for one another, and self-attention has a softmax, which is
not a product.
"""


def report(folder: Path) -> None:
    """Writes table.md, index.html and the plots, from results.csv alone."""
    results = Results(read_rows(folder / "results.csv"))
    pictures = {"cost.png": cost_figure(results), "crossing.png": crossing_figure(results)}
    for name, figure in pictures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
    title = "Table 1: what a layer costs"
    parts = report_parts(results, folder)
    write_atomically(folder / "table.md", markdown_page(title, parts).encode())
    write_page(folder / "index.html", title, parts)


def report_parts(results: Results, folder: Path) -> list[Part]:
    """The parts of the page and of table.md."""
    first = results.first
    made_by = f"{first.device}; {first.date}, revision {first.revision}; float32, "
    made_by += f"{first.batch} rows a batch."
    return [
        Code(first.command),
        Text(made_by),
        Heading("Work and memory of a layer"),
        work_table(results),
        Text(READING),
        Picture(folder / "cost.png", "Time and memory of forward and backward."),
        Heading("Operations in sequence"),
        sequence_table(results),
        Text(SEQUENCE_READING),
        Heading("Longest path"),
        path_table(results),
        Text(PATH_READING),
        Heading("Where self-attention costs more than recurrence"),
        crossing_table(results),
        Text(CROSSING_READING),
        Picture(folder / "crossing.png", "Forward and backward; a ring where the curves cross."),
    ]


def work_table(results: Results) -> Table:
    """Table of the fitted exponents and the paper's."""
    rows = []
    for kind in results.kinds:
        laws = [results.law(kind, name) for name in ("forward_ms", "forward_backward_ms")]
        counted = results.law(kind, "forward_flops", errors=False)
        memory = results.law(kind, "memory_bytes", errors=False)
        rows.append([kind, CLAIMS[kind].work, counted, *laws, memory])
    times = ("time, forward", "time, forward and backward")
    return Table(["layer", "paper", "counted FLOPs", *times, "memory"], rows)


def sequence_table(results: Results) -> Table:
    """Table of the longest chains of products and the paper's O(1) or O(n)."""
    return _table_of_paths(results, "sequential", lambda row: str(row.products_in_sequence))


def path_table(results: Results) -> Table:
    """Table of the layers, or steps of a recurrence, until gradients reach every position."""

    def cell(row: Row) -> str:
        if row.kind == "recurrent":
            return f"{(row.distance_reached or 0) + 1} steps"
        layers = row.layers_to_reach_all
        return "never" if layers is None else f"{layers} layer{'s' if layers > 1 else ''}"

    longest = max(row.n for row in results.paths)
    table = _table_of_paths(results, "path", cell)
    one = [str(row.positions_reached) for row in results.paths if row.n == longest]
    head = [*table.head, f"reached in one layer from the middle of n = {longest}"]
    return Table(head, [[*row, cell] for row, cell in zip(table.rows, one, strict=True)])


def _table_of_paths(results: Results, claim: str, cell: Callable[[Row], str]) -> Table:
    lengths = sorted({row.n for row in results.paths})
    rows = []
    for kind in dict.fromkeys(row.kind for row in results.paths):
        here = {row.n: row for row in results.paths if row.kind == kind}
        k, r = here[lengths[0]].k, here[lengths[0]].r
        name = kind + (f", k = {k}" if k else "") + (f", r = {r}" if r else "")
        rows.append([name, getattr(CLAIMS[kind], claim), *(cell(here[n]) for n in lengths)])
    return Table(["layer", "paper", *(f"n = {n}" for n in lengths)], rows)


def crossing_table(results: Results) -> Table:
    """Table of the lengths from which self-attention, alone or as a layer, costs more."""
    columns = {
        "FLOPs": "forward_flops",
        "forward": "forward_ms",
        "forward and backward": "forward_backward_ms",
    }
    head = ["d", "paper"]
    rows = []
    for kind in ("alone", "layer"):
        head += [f"{name}, {kind}" for name in columns]
    for d in results.widths:
        cells = [_crossing_of(results, kind, c, d) for kind in CROSSING for c in columns.values()]
        rows.append([f"{d:,}", f"{d:,}", *cells])
    return Table(head, rows)


CROSSING = ("self-attention alone", "self-attention")


def _crossing_of(results: Results, kind: str, column: str, d: int) -> str:
    lengths, first = zip(*results.curve(kind, column, d=d), strict=True)
    _, second = zip(*results.curve("recurrent", column, d=d), strict=True)
    return crossing(lengths, first, second)


# Plots -----------------------------------------------------------------------------------------

STYLES: dict[str, dict[str, Any]] = {
    "self-attention alone": {"color": BLUE, "marker": "o"},
    "self-attention": {"color": BLUE, "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "recurrent": {"color": VERMILION, "marker": "s"},
    "convolution": {"color": PURPLE, "marker": "^"},
    "restricted alone": {"color": GREEN, "marker": "D"},
    "restricted": {"color": GREEN, "marker": "D", "linestyle": "--", "markerfacecolor": "white"},
}


def cost_figure(results: Results) -> "Figure":
    """Log-log plots of time and memory over n and over d, with reference slopes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 8.4), layout="constrained")
    n, d = (upper_half(sizes)[-2:][0] for sizes in (results.lengths, results.widths))
    columns = {"forward_backward_ms": ("time, ms", 1.0), "memory_bytes": ("memory, MiB", 2.0**20)}
    for row, (column, (label, unit)) in enumerate(columns.items()):
        for at, here in enumerate(({"d": d}, {"n": n})):
            axes = figure.add_subplot(2, 2, 2 * row + at + 1)
            for kind in results.kinds:
                _draw(axes, results.curve(kind, column, **here), unit, kind)
            over = "d" if "n" in here else "n"
            sizes = results.widths if over == "d" else results.lengths
            _guide(axes, over, sizes)
            _finish(axes, sizes, over, label)
            axes.set_title(f"n = {n:,}" if over == "d" else f"d = {d:,}", fontsize=10)
    _legend(figure)
    return figure


def crossing_figure(results: Results) -> "Figure":
    """Plots of self-attention and recurrence over n, one panel per width."""
    from matplotlib.figure import Figure

    columns = 2
    rows = -(-len(results.widths) // columns)
    figure = Figure(figsize=(5.0 * columns, 3.6 * rows + 0.6), layout="constrained")
    for at, d in enumerate(results.widths, start=1):
        axes = figure.add_subplot(rows, columns, at)
        for kind in (*CROSSING, "recurrent"):
            _draw(axes, results.curve(kind, "forward_backward_ms", d=d), 1.0, kind)
        _ring(axes, results, d)
        _finish(axes, results.lengths, "n", "time, ms")
        axes.set_title(f"d = {d:,}", fontsize=10)
    _legend(figure)
    return figure


def _draw(axes: "Axes", curve: Sequence[tuple[int, float]], unit: float, kind: str) -> None:
    sizes, values = zip(*((size, value / unit) for size, value in curve if value), strict=True)
    axes.plot(sizes, values, label=kind, linewidth=1.5, markersize=4.5, **STYLES[kind])


def _guide(axes: "Axes", name: str, sizes: Sequence[int]) -> None:
    """Draws gray reference slopes 1 and 2 below the right ends of the curves."""
    low = min(float(np.asarray(line.get_ydata())[-1]) for line in axes.lines) / 2.5
    last = sizes[-1]
    first = max(1.3 * sizes[0], sizes[-1] / 4)
    for power, words in ((1, f"∝ {name}"), (2, f"∝ {name}²")):
        left = low * (first / last) ** power
        axes.plot([first, last], [left, low], color="0.5", linewidth=1.0, linestyle=":")
        axes.annotate(words, (first, left), (-4, 0), ha="right", va="center", **BESIDE)


BESIDE: dict[str, Any] = {"textcoords": "offset points", "color": "0.35", "fontsize": 9}


def _ring(axes: "Axes", results: Results, d: int) -> None:
    """Marks where recurrence and attention alone cross, and the paper's n = d."""
    at = _crossing_of(results, "self-attention alone", "forward_backward_ms", d)
    if results.lengths[0] <= d <= results.lengths[-1]:
        axes.axvline(d, color="0.5", linewidth=1.0, linestyle=":")
        axes.annotate("n = d", (d, 0), (3, 4), xycoords=("data", "axes fraction"), **BESIDE)
    if at[0] not in "≤>":
        n = float(at.replace(",", ""))
        curve = np.log(results.curve("recurrent", "forward_backward_ms", d=d))
        y = np.exp(np.interp(np.log(n), curve[:, 0], curve[:, 1]))
        axes.plot([n], [y], "o", markersize=13, color="black", fillstyle="none")


def _finish(axes: "Axes", sizes: Sequence[int], name: str, label: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 1e3 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    finish_axes(axes, name, label)


def _legend(figure: "Figure") -> None:
    lines = {str(line.get_label()): line for line in figure.axes[0].lines}
    shown = {name: line for name, line in lines.items() if name in STYLES}
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=3, frameon=False)
