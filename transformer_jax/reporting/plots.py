"""Plots of a run as PNG, PDF or SVG files: training curves, and attention weights.

The colors are those of Okabe and Ito (2008), which color-blind readers can tell apart.
"""

from __future__ import annotations

import functools
import io
import logging
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_jax.errors import RunError
from transformer_jax.files import write_atomically

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
# TrueType fonts (42) keep the text of a PDF as text, which conferences ask for; the same figure is
# the same file.
REPRODUCIBLE: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "transformer_jax"}
WIDE = 8.0  # values that span this factor look squeezed on a linear axis
# A log axis is labeled at these times powers of 10: the first that are often enough in its range.
LOG_TICKS = (1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FEWEST_TICKS = 4
LEGEND_INCHES, LETTER_INCHES = 0.7, 0.085  # a legend's label: its line and space, and one letter
LONGEST_LABEL = 20  # characters of a subword that a label shows
LABEL_INCHES = 0.12  # space of a label in a 7-point font, gap included
PIECE_INCHES = 0.2  # space of a subword, if there is enough
MAPS_WIDTH = 9.5  # inches of heat maps side by side; with their labels, the width of a page
TALL = 3.0  # inches of a heat map that is too tall to share its labels with the one below
MOST_AREA, MOST_HEIGHT = 4_000.0, 400.0  # square inches and inches of all heat maps: 90 megapixels
BYTE = re.compile("<0x([0-9A-F]{2})>")  # a byte as SentencePiece writes it
BOXES = "Last Resort High-Efficiency"  # a font of matplotlib that has a box for every character
CONTINUED = "⋯"  # label of a byte that continues the character before it

log = logging.getLogger(__name__)


class Panel(NamedTuple):
    """One plot of curves: the name of its metric, and the axis."""

    metric: str
    label: str
    scale: str = "linear"  # "log"; or "wide": log if the values span a factor of WIDE


PANELS = (
    Panel("nats_per_token", "loss (nats per subword)", "wide"),
    Panel("perplexity", "perplexity (per subword)", "log"),
    Panel("token_accuracy", "token accuracy (share)"),
    Panel("bleu", "BLEU (0 to 100)"),
    Panel("learning_rate", "learning rate"),
    Panel("grad_norm", "gradient norm", "log"),
    Panel("target_tokens_per_second", "target tokens per second"),
    Panel("padding_share", "padding (share of positions)"),
)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, which is not one of pyplot's."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def runs_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The curves of several runs: a color per run, a line per kind.

    Args:
      runs: the metrics of each run, as for `curves_figure`, by the name that the legend shows.

    Raises:
      RunError: no panel shows any of the metrics.
    """
    records = []
    styles = {}
    for n, (name, metrics) in enumerate(runs.items()):
        for record in metrics:
            style = KIND_STYLES.get(record["kind"], OTHER_STYLE)
            label = f"{printable(name)}, {record['kind']}"
            styles[label] = style | run_style(n)
            records.append({**record, "kind": label})
    return curves_figure(records, styles=styles)


def run_style(n: int) -> dict[str, Any]:
    """Color and kind of line of run number n, from 0."""
    line = RUN_LINES[n // len(RUN_COLORS) % len(RUN_LINES)]
    return {"color": RUN_COLORS[n % len(RUN_COLORS)], "linestyle": line}


def curves_figure(
    metrics: Sequence[Mapping[str, Any]],
    title: str = "",
    styles: Mapping[str, Mapping[str, Any]] = KIND_STYLES,
) -> Figure:
    """The curves of a run over its steps: one plot for each metric of PANELS that was measured.

    Args:
      metrics: the lines of `metrics.jsonl`, as `read_metrics` returns them.
      title: title of the figure.
      styles: how lines look, by kind of metrics.

    Raises:
      RunError: no panel shows any of the metrics.
    """
    panels = [panel for panel in PANELS if any(panel.metric in record for record in metrics)]
    if not panels:
        names = ", ".join(panel.metric for panel in PANELS)
        raise RunError(f"nothing to plot: the metrics hold none of {names}. Train first.")
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(5.0 * columns, 2.5 * rows + 0.4)
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
    # A suptitle would be drawn over a legend outside the plots.
    legend.set_title(printable(title))
    legend.get_title().set(fontsize="large", parse_math=False)
    return figure


def attention_figure(
    weights: Any,
    src_pieces: Sequence[str],
    tgt_pieces: Sequence[str],
    title: str,
    numbers: Sequence[int] = (),
    labels: tuple[str, str, str] | None = None,
) -> Figure:
    """One heat map per head; all heads share one color scale.

    The figure grows with the number of subwords, so that each one has a label; only if it would
    grow beyond MOST_AREA are labels left out.

    Args:
      weights: [heads, tgt, src]; each row is a distribution over the source.
      src_pieces: the subwords attended to, one per column; any Unicode.
      tgt_pieces: the attending subwords, one per row. For self-attention both lists are the same.
      title: title of the figure.
      numbers: of the heads, for their titles; empty: 1, 2, ...
      labels: of columns, rows and colors, if the map is no head's; None: those of weights.
    """
    weights_HLM = np.asarray(weights, dtype=np.float32)
    heads, *shape = weights_HLM.shape
    if shape != [len(tgt_pieces), len(src_pieces)]:
        raise ValueError(
            f"attention weights {weights_HLM.shape}: expected [heads, {len(tgt_pieces)} target "
            f"pieces, {len(src_pieces)} source pieces]"
        )
    columns, width, height = _layout(heads, len(tgt_pieces), len(src_pieces))
    rows = math.ceil(heads / columns)
    is_tall = rows > 1 and height > TALL
    # The labels (about an inch) and the color bar need space beside the maps.
    whole_height = rows * (height + (1.5 if is_tall else 0.35)) + 1.8
    figure = new_figure(columns * (width + 0.15) + 2.2, whole_height)
    figure.suptitle(printable(title), parse_math=False)
    x_label, y_label, color_label = labels or ("attended to", "attending", "attention weight")
    low, high = min(0.0, weights_HLM.min()), weights_HLM.max()
    colors: dict[str, Any] = {"cmap": "Blues", "vmin": low, "vmax": high}
    if low < 0:  # some normalizers have negative weights
        colors = {"cmap": "RdBu", "vmin": -max(-low, high), "vmax": max(-low, high)}
    for head in range(heads):
        axes = figure.add_subplot(rows, columns, head + 1)
        image = axes.imshow(weights_HLM[head], aspect="auto", **colors)
        if labels is None:
            axes.set_title(f"head {numbers[head] if numbers else head + 1}", fontsize=8)
        is_left = head % columns == 0
        is_lowest = head + columns >= heads
        _label_pieces(axes.xaxis, src_pieces, width, shown=is_lowest or is_tall)
        _label_pieces(axes.yaxis, tgt_pieces, height, shown=is_left)
        if is_tall:
            axes.set_xlabel(x_label, fontsize=9)
            axes.set_ylabel(y_label if is_left else "", fontsize=9)
    if not is_tall:
        figure.supxlabel(x_label, fontsize=9)
        figure.supylabel(y_label, fontsize=9)
    shrink = min(1.0, 2 * TALL / whole_height)
    look: dict[str, Any] = {"aspect": 30, "pad": 0.01, "shrink": shrink, "anchor": (0, 1)}
    figure.colorbar(image, ax=figure.axes, label=color_label, **look)
    return figure


def _layout(heads: int, tgt_pieces: int, src_pieces: int) -> tuple[int, float, float]:
    """The number of heat maps side by side, and the width and height of each in inches."""
    fitting = [n for n in (4, 2) if n * (LABEL_INCHES * src_pieces + 0.15) <= MAPS_WIDTH]
    columns = min(heads, max([1, *fitting]))
    widest = min(8.0, MAPS_WIDTH / columns - 0.15)
    width, height = (
        min(max(PIECE_INCHES * pieces, 1.2), max(widest, LABEL_INCHES * pieces))
        for pieces in (src_pieces, tgt_pieces)
    )
    shrink = min(1.0, math.sqrt(MOST_AREA / (heads * width * height)))
    highest = MOST_HEIGHT / math.ceil(heads / columns)
    return columns, shrink * width, min(shrink * height, highest)


def _draw_panel(
    axes: Axes,
    panel: Panel,
    metrics: Sequence[Mapping[str, Any]],
    styles: Mapping[str, Mapping[str, Any]],
) -> dict[str, Artist]:
    """Draws one line per kind of metrics; returns the lines by kind, for the legend."""
    from matplotlib.ticker import EngFormatter

    lines: dict[str, Artist] = {}
    for kind in dict.fromkeys(record["kind"] for record in metrics if panel.metric in record):
        points = [
            (record["step"], record[panel.metric])
            for record in metrics
            if record["kind"] == kind and panel.metric in record
        ]
        style = styles.get(kind, OTHER_STYLE)
        lines[kind] = plot_curve(axes, points, label=kind, **style)
    values = [record[panel.metric] for record in metrics if panel.metric in record]
    if panel.scale == "log" or (panel.scale == "wide" and is_wide(values)):
        use_log_axis(axes)
    if panel.metric == "target_tokens_per_second":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.metric == "learning_rate":
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    finish_axes(axes, "step", panel.label)
    return lines


def is_wide(values: Sequence[float]) -> bool:
    """Whether the finite ones of these values are positive and span a factor of WIDE."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) >= WIDE * min(known)


def plot_curve(axes: Axes, points: Sequence[tuple[float, float]], **style: Any) -> Artist:
    """Draws a line through the points (x, y); a single point, which has no line, has a marker."""
    if len(points) == 1:
        style = {"marker": "o", "markersize": 4.5, **style}
    [line] = axes.plot(*zip(*points, strict=True), **style)
    return line


def use_log_axis(axes: Axes, name: str = "y") -> None:
    """Makes an axis of a plot, "x" or "y", logarithmic; it has labels whatever its range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis: Any = {"x": axes.xaxis, "y": axes.yaxis}[name]
    low, high = {"x": axes.get_xlim, "y": axes.get_ylim}[name]()
    for locator in (*(LogLocator(subs=subs) for subs in LOG_TICKS), MaxNLocator(6)):
        axis.set_major_locator(locator)
        if sum(low <= tick <= high for tick in locator.tick_values(low, high)) >= FEWEST_TICKS:
            break
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def finish_axes(axes: Axes, x: str, y: str) -> None:
    """Adds the labels and the light grid that all plots here have; a step is a whole number."""
    if x == "step":
        axes.locator_params(axis="x", integer=True)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _label_pieces(axis: Any, pieces: Sequence[str], inches: float, shown: bool) -> None:
    # If labels would touch, show only every second one, third one, and so on.
    every = math.ceil(len(pieces) * LABEL_INCHES / inches - 1e-6)
    at = range(0, len(pieces), every)
    texts = readable(pieces)
    axis.set_ticks(at)
    labels = [printable(texts[i])[:LONGEST_LABEL] if shown else "" for i in at]
    # parse_math: two dollar signs in a piece would be read as TeX.
    look: dict[str, Any] = {"rotation": 90 if axis.axis_name == "x" else 0, "parse_math": False}
    axis.set_ticklabels(labels, fontsize=7, family=font_families("".join(labels)), **look)
    axis.set_tick_params(length=2)


@functools.lru_cache(maxsize=64)
def font_families(text: str) -> list[str]:
    """The usual font, and installed ones with what it lacks; warns if none has a character."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager
    from matplotlib.ft2font import FT2Font

    own = FT2Font(findfont(FontProperties()))
    found, missing = [own.family_name], set(map(ord, text)) - own.get_charmap().keys()
    files = {
        font.name: font.fname
        for font in fontManager.ttflist
        if (font.style, font.weight) == ("normal", 400) and font.name != BOXES
    }
    for name, file in sorted(files.items()) if missing else ():
        if known := missing & FT2Font(file).get_charmap().keys():
            found.append(name)
            missing -= known
    if missing:
        some = "".join(map(chr, sorted(missing)[:5]))
        log.warning("no installed font has %s: install one, such as Noto Sans CJK", some)
    return found


def printable(text: str) -> str:
    """The text with control characters and lone surrogates escaped, for fonts and terminals."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def readable(pieces: Sequence[str]) -> list[str]:
    """The subwords, with bytes as the characters that they form.

    The first byte of a character becomes the character, its other bytes become CONTINUED. Bytes
    that are not UTF-8, such as an incomplete character's, stay as they are.
    """
    labels = list(pieces)
    at = 0
    while at < len(labels):
        length = next((n for n in range(1, 5) if _character(pieces[at : at + n])), 0)
        if length:
            labels[at] = _character(pieces[at : at + length])
            labels[at + 1 : at + length] = [CONTINUED] * (length - 1)
        at += max(length, 1)
    return labels


def _character(pieces: Sequence[str]) -> str:
    """The character whose bytes these are; empty if they are anything else."""
    values = [BYTE.fullmatch(piece) for piece in pieces]
    try:
        text = bytes(int(value[1], 16) for value in values if value).decode()
    except UnicodeDecodeError:
        return ""
    return text if all(values) and len(text) == 1 else ""


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure into a file .png, .pdf or .svg; returns its path."""
    path = Path(path)
    # At once: a full disk leaves an earlier picture as it was.
    write_atomically(path, _content(figure, path.suffix[1:]))
    return path


def shown_by_notebooks(figure: Figure) -> Figure:
    """The figure; notebooks show it as a PNG, which they do of themselves only for pyplot's."""
    vars(figure)["_repr_png_"] = lambda: _content(figure, "png")
    return figure


def _content(figure: Figure, form: str) -> bytes:
    """What a file of this format holds."""
    import matplotlib

    content = io.BytesIO()
    with warnings.catch_warnings():
        # A character that no font has becomes a box, which needs no warning of each picture.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        with matplotlib.rc_context(REPRODUCIBLE):
            date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form)
            figure.savefig(content, format=form, dpi=DOTS_PER_INCH, metadata=date)
    return content.getvalue()
