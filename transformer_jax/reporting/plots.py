"""Plots of a run as PNG files: training curves, and attention weights.

The colors are those of Okabe and Ito (2008), which color-blind readers can tell apart.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_jax.errors import RunError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
RUN_COLORS = (BLUE, VERMILION, GREEN, PURPLE, "#E69F00", "#56B4E9", "#000000")
RUN_LINES = ("-", "--", ":", "-.")  # another one each time that the colors are used up
KIND_STYLES: dict[str, dict[str, Any]] = {
    "train": {"color": BLUE, "linewidth": 1.0},
    "valid": {"color": VERMILION, "linewidth": 1.5, "marker": "o", "markersize": 3.5},
    "test": {"color": GREEN, "linewidth": 1.5, "marker": "s", "markersize": 3.5},
}
OTHER_STYLE: dict[str, Any] = {"color": PURPLE, "linewidth": 1.5, "marker": "^", "markersize": 3.5}
DOTS_PER_INCH = 150
LEGEND_INCHES, LETTER_INCHES = 0.7, 0.085  # of a label in a legend: its line and space, a letter
LONGEST_LABEL = 20  # characters of a subword that a label shows
LABEL_INCHES = 0.12  # space of a label in a 7-point font, gap included
MAPS_WIDTH = 9.5  # inches of heat maps side by side; with their labels, the width of a page


class Panel(NamedTuple):
    """One plot of curves: the name of its metric, and the axis."""

    metric: str
    label: str
    scale: str = "linear"


PANELS = (
    Panel("nats_per_token", "loss (nats per subword)"),
    Panel("perplexity", "perplexity (per subword)", "log"),
    Panel("token_accuracy", "token accuracy (share)"),
    Panel("bleu", "BLEU (0 to 100)"),
    Panel("learning_rate", "learning rate"),
    Panel("grad_norm", "gradient norm", "log"),
    Panel("target_tokens_per_second", "target tokens per second"),
    Panel("padding_share", "padding (share of positions)"),
)


def plot_curves(metrics: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> Path:
    """Writes the curves of a run over its training steps as a PNG file.

    Args:
      metrics: the lines of `metrics.jsonl`, as `read_metrics` returns them.
      path: the file to write.

    Returns:
      The path.

    Raises:
      RunError: no panel shows any of the metrics.
    """
    return _save(curves_figure(metrics), path)


def plot_runs(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: str | os.PathLike) -> Path:
    """Writes the curves of several runs into one PNG file: a color per run, a line per kind.

    Args:
      runs: the metrics of each run, as for `plot_curves`, by the name that the legend shows.
      path: the file to write.

    Returns:
      The path.

    Raises:
      RunError: no panel shows any of the metrics.
    """
    return _save(runs_figure(runs), path)


def runs_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The figure of `plot_runs`."""
    records, styles = [], {}
    for n, (name, metrics) in enumerate(runs.items()):
        color = RUN_COLORS[n % len(RUN_COLORS)]
        line = RUN_LINES[n // len(RUN_COLORS) % len(RUN_LINES)]
        for record in metrics:
            style = KIND_STYLES.get(record["kind"], OTHER_STYLE)
            label = f"{printable(name)}, {record['kind']}"
            styles[label] = style | {"color": color, "linestyle": line}
            records.append({**record, "kind": label})
    return curves_figure(records, styles)


def curves_figure(
    metrics: Sequence[Mapping[str, Any]],
    styles: Mapping[str, Mapping[str, Any]] = KIND_STYLES,
) -> Figure:
    """The figure of `plot_curves`: one plot for each metric of PANELS that was measured."""
    from matplotlib.figure import Figure

    panels = [panel for panel in PANELS if any(panel.metric in record for record in metrics)]
    if not panels:
        names = ", ".join(panel.metric for panel in PANELS)
        raise RunError(f"nothing to plot: the metrics hold none of {names}. Train first.")
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.0 * columns, 2.5 * rows + 0.4), layout="constrained")
    lines: dict[str, Artist] = {}
    for at, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, at)
        lines |= _draw_panel(axes, panel, metrics, styles)
    # A label that begins with "_" would be left out of a legend.
    labels = [f" {name}" if name.startswith("_") else name for name in lines]
    entry_inches = LEGEND_INCHES + LETTER_INCHES * max(map(len, labels))
    across = max(1, min(len(lines), int(figure.get_figwidth() / entry_inches)))
    legend = figure.legend(
        lines.values(), labels, loc="outside upper center", ncols=across, frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a run's name may hold dollar signs
    return figure


def plot_attention(
    weights: Any,
    src_pieces: Sequence[str],
    tgt_pieces: Sequence[str],
    path: str | os.PathLike[str],
    title: str,
    alignment: Collection[tuple[int, int]] = (),
) -> Path:
    """Writes one heat map per head into a PNG file.

    Args:
      weights: [heads, tgt, src]; each row is a distribution over the source.
      src_pieces: the subwords attended to, one per column; any Unicode.
      tgt_pieces: the attending subwords, one per row. For self-attention both lists are the same.
      path: the file to write.
      title: title of the figure.
      alignment: gold links (source subword, target subword), 0-based, to mark with squares.

    Returns:
      The path.
    """
    return _save(attention_figure(weights, src_pieces, tgt_pieces, title, alignment), path)


def attention_figure(
    weights: Any,
    src_pieces: Sequence[str],
    tgt_pieces: Sequence[str],
    title: str,
    alignment: Collection[tuple[int, int]] = (),
) -> Figure:
    """The figure of `plot_attention`, from its arguments. All heads share one color scale."""
    from matplotlib.figure import Figure

    weights_HLM = np.asarray(weights, dtype=np.float32)
    heads, *shape = weights_HLM.shape
    if shape != [len(tgt_pieces), len(src_pieces)]:
        raise ValueError(
            f"attention weights {weights_HLM.shape}: expected [heads, {len(tgt_pieces)} target "
            f"pieces, {len(src_pieces)} source pieces]"
        )
    # Four maps side by side, or two if there is no room for the labels of four.
    columns = min(heads, 4 if 4 * (LABEL_INCHES * len(src_pieces) + 0.15) <= MAPS_WIDTH else 2)
    rows = math.ceil(heads / columns)
    widest = min(8.0, MAPS_WIDTH / columns - 0.15)
    width, height = (min(max(0.2 * len(p), 1.2), widest) for p in (src_pieces, tgt_pieces))
    # The labels (about an inch) and the color bar need space beside the maps.
    size = (columns * (width + 0.15) + 2.2, rows * (height + 0.35) + 1.8)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(printable(title), parse_math=False)
    for head in range(heads):
        axes = figure.add_subplot(rows, columns, head + 1)
        image = axes.imshow(
            weights_HLM[head], cmap="Blues", vmin=0.0, vmax=weights_HLM.max(), aspect="auto"
        )
        axes.set_title(f"head {head + 1}", fontsize=8)
        _mark(axes, alignment)
        _label_pieces(axes.xaxis, src_pieces, width, shown=head + columns >= heads)
        _label_pieces(axes.yaxis, tgt_pieces, height, shown=head % columns == 0)
    figure.supxlabel("attended to", fontsize=9)
    figure.supylabel("attending", fontsize=9)
    figure.colorbar(image, ax=figure.axes, label="attention weight", aspect=30, pad=0.01)
    return figure


def _draw_panel(
    axes: Axes,
    panel: Panel,
    metrics: Sequence[Mapping[str, Any]],
    styles: Mapping[str, Mapping[str, Any]],
) -> dict[str, Artist]:
    """Draws one line per kind of metrics; returns the lines by kind, for the legend."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    lines: dict[str, Artist] = {}
    for kind in dict.fromkeys(record["kind"] for record in metrics if panel.metric in record):
        points = [
            (record["step"], record[panel.metric])
            for record in metrics
            if record["kind"] == kind and panel.metric in record
        ]
        style = dict(styles.get(kind, OTHER_STYLE))
        if len(points) == 1:
            style = style | {"marker": "o"}  # a line through one point is invisible
        (lines[kind],) = axes.plot(*zip(*points, strict=True), label=kind, **style)
    axes.set_yscale(panel.scale)
    if panel.scale == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if panel.metric == "target_tokens_per_second":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.metric == "learning_rate":
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    finish_axes(axes, "step", panel.label)
    return lines


def finish_axes(axes: Axes, x: str, y: str) -> None:
    """Adds the labels and the light grid that all plots here have."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _label_pieces(axis: Any, pieces: Sequence[str], inches: float, shown: bool) -> None:
    # If labels would touch, show only every second one, third one, and so on.
    every = math.ceil(len(pieces) * LABEL_INCHES / inches)
    at = range(0, len(pieces), every)
    axis.set_ticks(at)
    labels = [printable(pieces[i])[:LONGEST_LABEL] if shown else "" for i in at]
    rotation = 90 if axis.axis_name == "x" else 0
    # parse_math: two dollar signs in a piece would be read as TeX.
    axis.set_ticklabels(labels, fontsize=7, rotation=rotation, parse_math=False)
    axis.set_tick_params(length=2)


def _mark(axes: Axes, alignment: Collection[tuple[int, int]]) -> None:
    from matplotlib.patches import Rectangle

    for src, tgt in alignment:
        corner = (src - 0.5, tgt - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=VERMILION, linewidth=1.2))


def printable(text: str) -> str:
    """The text with control characters and lone surrogates escaped, for fonts and terminals."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # DejaVu Sans lacks some characters, such as Chinese ones. They become boxes, which needs
        # no warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, format="png", dpi=DOTS_PER_INCH)
    return path
