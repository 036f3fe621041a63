"""Table 1's report (table.md, plots, page) from results.csv; it measures nothing."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_jax.errors import UserError
from transformer_jax.files import blamed, read_csv
from transformer_jax.reporting.page import Code, Heading, Part, Picture, Table, Text, write_report
from transformer_jax.reporting.plots import (
    BLUE,
    GREEN,
    PURPLE,
    VERMILION,
    finish_axes,
    new_figure,
    save_figure,
    use_log_axis,
)


class Claim(NamedTuple):
    """A line of the paper's Table 1."""

    work: str
    sequential: str
    path: str


DILATED = "convolution, dilated"  # only its paths are measured
CLAIMS = {
    "self-attention alone": Claim("O(n²·d)", "O(1)", "O(1)"),
    "self-attention": Claim("O(n²·d)", "O(1)", "O(1)"),
    "recurrent": Claim("O(n·d²)", "O(n)", "O(n)"),
    "convolution": Claim("O(k·n·d²)", "O(1)", "O(n/k)"),
    DILATED: Claim("O(k·n·d²)", "O(1)", "O(log_k n)"),
    "restricted alone": Claim("O(r·n·d)", "O(1)", "O(n/r)"),
    "restricted": Claim("O(r·n·d)", "O(1)", "O(n/r)"),
}
PATHS = [kind for kind in CLAIMS if "alone" not in kind]
WINDOWS = {"convolution": "k", "restricted alone": "r", "restricted": "r"}
CROSSING = {"alone": "self-attention alone", "layer": "self-attention"}

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

# Results ---------------------------------------------------------------------------------------

MADE_BY = ("device", "date", "revision", "command")
# A line of results.csv is a timed point, or (without times) a path. An empty cell has no value.
COLUMNS = (
    "kind",
    "n",
    "d",
    "k",
    "r",
    "batch",
    "forward_ms",  # medians
    "forward_backward_ms",
    "memory_bytes",  # temporaries of forward and backward
    "forward_flops",  # of the batch's products; the backward pass has twice as many
    "products_in_sequence",  # the longest chain, forward
    "positions_reached",  # this and the next two: layer_kinds.Reach
    "distance_reached",
    "layers_to_reach_all",
    *MADE_BY,
)


class Results(NamedTuple):
    """Lines of results.csv."""

    usual: pd.DataFrame  # timed points with the usual window
    windows: pd.DataFrame  # those at which windows vary, with all of their windows
    paths: pd.DataFrame

    def curves(self, column: str, over: str, **at: int) -> pd.DataFrame:
        """A column's values over n at a width d, or over d at a length n; one curve a kind."""
        [(name, size)] = at.items()
        here = self.usual[self.usual[name] == size]
        return here.pivot(index=over, columns="kind", values=column)[here.kind.unique()]


def read_results(path: Path) -> Results:
    """Reads results.csv. Raises UserError if there is no such file, or if it is damaged."""
    if not path.exists():
        raise UserError(f"{path}: no such file. Measure first: leave --report out.")
    rows = pd.DataFrame([cells for _, cells in read_csv(path, COLUMNS)], columns=COLUMNS)
    twice = rows[rows.duplicated(["kind", "n", "d", "k", "r"])]
    if len(twice):
        raise UserError(f"{path} has {twice.iloc[0].kind} with n={twice.iloc[0].n} twice.")
    try:
        for name in set(COLUMNS) - {"kind", *MADE_BY}:
            rows[name] = pd.to_numeric(rows[name])
    except ValueError as error:
        raise UserError(f"{path}, column {name}: {error}. Restore the file.") from error
    timed = rows[rows.forward_ms.notna()]
    window = timed.k.fillna(timed.r).fillna(0)
    is_usual = window == window.groupby(timed.kind).transform("first")
    others = pd.MultiIndex.from_frame(timed.loc[~is_usual, ["kind", "n", "d"]])
    varies = pd.MultiIndex.from_frame(timed[["kind", "n", "d"]]).isin(others)
    paths = rows[rows.forward_ms.isna()].convert_dtypes()  # whole numbers, beside empty cells too
    return Results(timed[is_usual], timed[varies], paths)


# Fits ------------------------------------------------------------------------------------------


def exponents(sizes: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exponents of values = c · size_1^e_1 · size_2^e_2 ..., by least squares of logarithms.

    Args:
      sizes: a line for each point, a column for each size, such as n and d.
      values: one for each point, above 0.

    Returns:
      The exponents, and the standard errors of the fit; 0 if it has no points to spare.
    """
    design = np.column_stack([np.ones(len(sizes)), np.log(sizes)])
    logs = np.log(values)
    solution, *_ = np.linalg.lstsq(design, logs)
    spare = len(logs) - design.shape[1]
    variance = ((logs - design @ solution) ** 2).sum() / spare if spare > 0 else 0.0
    errors = np.sqrt(variance * np.diag(np.linalg.pinv(design.T @ design)))
    return solution[1:], errors[1:]


def law(results: Results, kind: str, column: str, errors: bool = True) -> str:
    """The fitted power law, such as `n^2.00±0.01 d^0.98±0.02`; empty if a value is not above 0."""
    usual, windows = (own[own.kind == kind] for own in (results.usual, results.windows))
    upper = usual[usual.n.isin(upper_half(usual.n)) & usual.d.isin(upper_half(usual.d))]
    words = []
    for points, names in ((windows, ["k", "r"]), (upper, ["n", "d"])):
        varied = [name for name in names if points[name].nunique() > 1]
        if (points[column] <= 0).any():
            return ""
        fitted = exponents(points[varied].to_numpy(), points[column].to_numpy())
        for name, value, error in zip(varied, *fitted, strict=True):
            spread = f"±{error:.2f}" if errors and error else ""
            words.append(f"{name}^{round(value, 2) + 0.0:.2f}{spread}")  # + 0: no -0.00
    return " ".join(words)


def upper_half(sizes: pd.Series) -> Sequence[int]:
    """The upper half of the sizes; at least two of them, if there are two."""
    known = sorted(sizes.unique())
    return known[max(0, min(len(known) // 2, len(known) - 2)) :]


def crossing(first: pd.Series, second: pd.Series) -> float:
    """The length from which the first curve is above the second, by a power law between points.

    Returns:
      The length; 0 if it is before the first one, infinity if it is after the last one.
    """
    gap = np.log(first / second)
    [below] = np.nonzero(gap < -1e-12)
    if not len(below):
        return 0.0
    two = gap.iloc[below[-1] : below[-1] + 2]
    return math.inf if len(two) < 2 else math.exp(np.interp(0, two, np.log(two.index)))


# Report ----------------------------------------------------------------------------------------


def report(folder: Path) -> None:
    """Writes table.md, index.html and the plots, from results.csv alone."""
    with blamed(folder / "results.csv"):
        _write(folder, read_results(folder / "results.csv"))


def _write(folder: Path, results: Results) -> None:
    save_figure(cost_figure(results), folder / "cost.png")
    save_figure(crossing_figure(results), folder / "crossing.png")
    title = "Table 1: what a layer costs"
    first = results.usual.iloc[0]
    made_by = f"{first.device}; {first.date}, revision {first.revision}; float32, "
    parts: list[Part] = [
        Code(first.command),
        Text(f"{made_by}{first.batch} rows a batch."),
        Heading("Work and memory of a layer"),
        work_table(results),
        Text(READING),
        Picture(folder / "cost.png", "Time and memory of forward and backward."),
        Heading("Operations in sequence"),
        table_of_paths(results.paths, "sequential", results.paths.products_in_sequence.map(str)),
        Text(SEQUENCE_READING),
        Heading("Longest path"),
        path_table(results.paths),
        Text(PATH_READING),
        Heading("Where self-attention costs more than recurrence"),
        crossing_table(results),
        Text(CROSSING_READING),
        Picture(folder / "crossing.png", "Forward and backward; a ring where the curves cross."),
    ]
    write_report(folder, title, parts)


def work_table(results: Results) -> Table:
    """Table of the fitted exponents and the paper's."""
    rows = []
    for kind in results.usual.kind.unique():
        laws = [law(results, kind, name) for name in ("forward_ms", "forward_backward_ms")]
        counted = law(results, kind, "forward_flops", errors=False)
        memory = law(results, kind, "memory_bytes", errors=False)
        rows.append([kind, CLAIMS[kind].work, counted, *laws, memory])
    times = ("time, forward", "time, forward and backward")
    return Table(["layer", "paper", "counted FLOPs", *times, "memory"], rows)


def path_table(paths: pd.DataFrame) -> Table:
    """Table of the layers, or steps of a recurrence, until gradients reach every position."""

    def cell(row: Any) -> str:
        if row.kind == "recurrent":
            return f"{row.distance_reached + 1} steps"
        layers = row.layers_to_reach_all
        return "never" if pd.isna(layers) else f"{layers} layer{'s' if layers > 1 else ''}"

    longest = paths[paths.n == paths.n.max()]
    table = table_of_paths(paths, "path", paths.apply(cell, axis="columns"))
    head = [*table.head, f"reached in one layer from the middle of n = {longest.n.max()}"]
    one = longest.positions_reached.map(str)
    return Table(head, [[*row, cell] for row, cell in zip(table.rows, one, strict=True)])


def table_of_paths(paths: pd.DataFrame, claim: str, cells: pd.Series) -> Table:
    """Table with a line for each kind, its claim in the paper, and the cells of all lengths."""
    rows = []
    for kind, own in paths.groupby("kind", sort=False):
        windows = [f", {x} = {own[x].iloc[0]}" for x in ("k", "r") if own[x].notna().any()]
        rows.append([kind + "".join(windows), getattr(CLAIMS[kind], claim), *cells[own.index]])
    return Table(["layer", "paper", *(f"n = {n}" for n in paths.n.unique())], rows)


def crossing_table(results: Results) -> Table:
    """Table of the lengths from which self-attention, alone or as a layer, costs more."""
    columns = {
        "FLOPs": "forward_flops",
        "forward": "forward_ms",
        "forward and backward": "forward_backward_ms",
    }
    head = ["d", "paper", *(f"{name}, {short}" for short in CROSSING for name in columns)]
    rows = []
    for d in results.usual.d.unique():
        rows.append([f"{d:,}", f"{d:,}"])
        for kind in CROSSING.values():
            for column in columns.values():
                curves = results.curves(column, "n", d=d)
                at = crossing(curves[kind], curves["recurrent"])
                bound = f"≤ {curves.index[0]:,}" if at == 0 else f"> {curves.index[-1]:,}"
                rows[-1].append(f"{at:,.0f}" if 0 < at < math.inf else bound)
    return Table(head, rows)


# Plots -----------------------------------------------------------------------------------------

STYLES: dict[str, Any] = {  # color, marker and line
    "self-attention alone": (BLUE, "o-"),
    "self-attention": (BLUE, "o--"),
    "recurrent": (VERMILION, "s-"),
    "convolution": (PURPLE, "^-"),
    "restricted alone": (GREEN, "D-"),
    "restricted": (GREEN, "D--"),
}
BESIDE: dict[str, Any] = {"textcoords": "offset points", "color": "0.35", "fontsize": 9}
DOTTED: dict[str, Any] = {"color": "0.5", "linewidth": 1.0, "linestyle": ":"}


def cost_figure(results: Results) -> Figure:
    """Log-log plots of time and memory over n and over d, with reference slopes."""
    n, d = (upper_half(results.usual[name])[-2:][0] for name in ("n", "d"))
    panels = []
    for column, label, unit in (
        ("forward_backward_ms", "time, ms", 1.0),
        ("memory_bytes", "memory, MiB", 2.0**20),
    ):
        panels.append((f"d = {d:,}", label, results.curves(column, "n", d=d) / unit))
        panels.append((f"n = {n:,}", label, results.curves(column, "d", n=n) / unit))
    figure = _figure(panels)
    for axes, (_, _, curves) in zip(figure.axes, panels, strict=True):
        _guide(axes, curves)
    return figure


def crossing_figure(results: Results) -> Figure:
    """Plots of self-attention and recurrence over n, one panel per width."""
    kinds = [*CROSSING.values(), "recurrent"]
    widths = results.usual.d.unique()
    curves = [results.curves("forward_backward_ms", "n", d=d)[kinds] for d in widths]
    figure = _figure([(f"d = {d:,}", "time, ms", c) for d, c in zip(widths, curves, strict=True)])
    for axes, d, own in zip(figure.axes, widths, curves, strict=True):
        _ring(axes, own, d)
    return figure


def _figure(panels: Sequence[tuple[str, str, pd.DataFrame]]) -> Figure:
    """Log-log plots of curves, with their titles and the labels of their values."""
    rows = math.ceil(len(panels) / 2)
    figure = new_figure(10.0, 3.8 * rows + 0.6)
    for at, (title, label, curves) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, 2, at)
        for kind, values in curves.items():
            color, line = STYLES[kind]
            face = "white" if "--" in line else color
            look = {"color": color, "markerfacecolor": face, "linewidth": 1.5, "markersize": 4.5}
            axes.plot(values[values > 0], line, label=kind, **look)
        axes.set_title(title, fontsize=10)
        axes.set_xscale("log")
        axes.set_xticks(curves.index, [f"{size:,}" for size in curves.index])
        axes.minorticks_off()
        use_log_axis(axes)
        finish_axes(axes, curves.index.name, label)
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _guide(axes: Axes, curves: pd.DataFrame) -> None:
    """Draws gray reference slopes 1 and 2 below the right ends of the curves."""
    low = curves.iloc[-1].min() / 2.5
    last = curves.index[-1]
    first = max(1.3 * curves.index[0], last / 4)
    for power, words in ((1, f"∝ {curves.index.name}"), (2, f"∝ {curves.index.name}²")):
        left = low * (first / last) ** power
        axes.plot([first, last], [left, low], **DOTTED)
        axes.annotate(words, (first, left), (-4, 0), ha="right", va="center", **BESIDE)


def _ring(axes: Axes, curves: pd.DataFrame, d: int) -> None:
    """Marks where recurrence and attention alone cross, and the paper's n = d."""
    if curves.index[0] <= d <= curves.index[-1]:
        axes.axvline(d, **DOTTED)
        axes.annotate("n = d", (d, 0), (3, 4), xycoords=("data", "axes fraction"), **BESIDE)
    n = crossing(curves["self-attention alone"], curves["recurrent"])
    if 0 < n < math.inf:
        y = np.exp(np.interp(np.log(n), np.log(curves.index), np.log(curves["recurrent"])))
        axes.plot([n], [y], "o", markersize=13, color="black", fillstyle="none")
