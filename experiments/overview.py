"""What each part gains or loses: one figure from the recorded results of many experiments.

    python -m experiments.overview

Nothing is trained. A bar is the mean difference in BLEU between a row and the base row of its own
experiment, taken seed by seed; dots are the seeds. It is blue or orange if the difference is above
or below 0 by Student's t, p < 0.05, and gray otherwise; nothing corrects for the number of bars.
Bars of different experiments have different bases, numbers of updates and texts, so their lengths
do not compare parts with each other. "Few pairs": 5,000 instead of 29,000. A dagger marks parts
that use more FLOPs than their base row.

How to read it: the picture is overview.png; table.md has the numbers, and the base row of each bar.
"""

import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments.judging import FAILS, HOLDS, judged, mean_of
from transformer_jax.errors import DataError
from transformer_jax.files import make_folder
from transformer_jax.reporting.page import Code, Heading, Part, Picture, Table, Text, write_report
from transformer_jax.reporting.plots import BLUE, VERMILION, new_figure, save_figure
from transformer_jax.tables.results import FILE, read_results
from transformer_jax.tables.statistics import differences
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path("docs", "results")
HEADS = Path("figures", "attention_cross_2.png")  # what experiments.figures drew of the demo
MORE = 1.005  # times the FLOPs of the base row are more
FLAGS = [
    Flag("results", str, "FOLDER", "the folder of recorded results", default=str(RESULTS)),
    Flag("out", str, "FOLDER", "where picture and table go", default=str(RESULTS / "overview")),
]


# The folder of an experiment's results, and its base row; other rows, and the label of their bars.
Group = Mapping[tuple[str, str], Mapping[str, str]]
# Each experiment with all of its rows that change one part, and some that change several. Rows with
# more FLOPs get a dagger (`bars_of`); those of Muon, whose products are not counted, have it here.
CAPTIONS: Group = {
    ("fair_comparison/budget_1", "Transformer, pre-norm"): {
        "recurrent": "recurrent",
        "Transformer to recurrent": "recurrent decoder",
        "Transformer, post-norm": "post-norm",
        "convolutional": "convolutional",
    },
    ("positions/multi30k", "sinusoidal"): {
        "rotary": "rotary positions",
        "relative": "relative positions",
        "relative, keys only": "relative positions, keys only",
        "t5": "T5's position bias",
        "alibi": "ALiBi",
        "learned": "learned positions",
        "index": "position as a number",
        "none": "no positions",
    },
    ("several_sources/short", "French alone"): {
        "serial": "second source, serial",
        "parallel": "second source, parallel",
        "flat": "second source, flat",
        "hierarchical": "second source, hierarchical",
        "end to end": "second source, end to end",
    },
    ("small_corpus/small", "base"): {
        "R-Drop 5": "R-Drop, few pairs",
        "dropout 0.3": "dropout 0.3, few pairs",
        "dropout of attention weights 0.1": "dropout of weights, few pairs",
        "dropout of hidden units 0.1": "dropout of units, few pairs",
        "2,000 subwords": "2,000 subwords, few pairs",
        "weight decay 0.01": "weight decay, few pairs",
        "BPE-dropout 0.1": "BPE-dropout, few pairs",
    },
    ("few_pairs/pairs_5000", "pre-norm, layer"): {
        "recurrent": "recurrent, few pairs",
        "post-norm, layer": "post-norm, few pairs",
        "pre-norm, scale": "ScaleNorm, few pairs",
        "pre-norm, layer, fix_norm": "FixNorm, few pairs",
        "pre-norm, scale, fix_norm": "both norms, few pairs",
    },
}
BUILT_IN: Group = {
    ("later_parts/small", "base"): {
        "the four, and Muon": "all five †",
        "Muon": "Muon * †",
        "norms of queries and keys": "norms of queries and keys *",
        "cosine scores": "cosine scores",
        "talking heads": "talking heads",
        "contextual positions": "contextual positions",
        "rotary positions": "rotary positions *",
        "KERPLE": "KERPLE",
        "SwiGLU": "SwiGLU *",
        "RMSNorm": "RMSNorm *",
        "synthesizer encoder": "synthesizer encoder",
        "linear decoder": "linear decoder",
        "attention gate": "attention gate",
        "attention sink": "attention sink",
        "one key head": "one key head",
        "differential attention": "differential attention",
        "DeepNorm": "DeepNorm",
        "ReZero": "ReZero",
    },
    ("coverage/small", "no coverage"): {
        "memory coverage": "coverage",
        "memory coverage_gru": "gated coverage",
        "memory coverage_embedding": "coverage embedding",
        "coverage loss": "coverage as a loss",
    },
    ("monotonic/small", "softmax"): {
        "lookback": "monotonic, lookback",
        "chunkwise": "monotonic, chunkwise",
        "monotonic": "monotonic, hard",
    },
    ("one_stack/small", "two stacks"): {
        "prefix": "one stack (prefix)",
        "causal": "one stack (causal)",
    },
}
GROUPS = {
    "captions, models of 2 M parameters": CAPTIONS,
    "built-in corpus, 1 M (* one of the five)": BUILT_IN,
}


class Bar(NamedTuple):
    """A row's differences in BLEU from its base row."""

    label: str
    base: str
    folder: str
    gaps: list[float]  # one for each seed

    @property
    def verdict(self) -> str:
        """Whether the difference is above 0 (HOLDS), below it (FAILS) or not decided."""
        return judged(self.gaps, 0, 1)


def bars_of(results: Path, group: Group) -> list[Bar]:
    """The bars of a group, the largest gain first. Raises DataError if a row has no two seeds."""
    found = list[Bar]()
    for (folder, base), rows in group.items():
        if not (lines := read_results(results / folder)):
            file = results / folder / FILE
            raise DataError(f"{file} is not there: --results={results} names recorded results.")
        for row, label in rows.items():
            gaps = differences(lines, row, base, "bleu")
            if len(gaps) < 2:
                raise DataError(f"{results / folder}: {row!r} and {base!r} lack two seeds.")
            own, other = (mean_of(lines, name, "training_flops") or 0 for name in (row, base))
            dagger = " †" if own > MORE * other else ""
            found.append(Bar(label + dagger, base, folder, gaps))
    return sorted(found, key=lambda bar: -statistics.fmean(bar.gaps))


def draw(axes: "Axes", title: str, bars: Sequence[Bar]) -> None:
    """Bars with a dot for each seed, and the mean beside each label."""
    colors = {HOLDS: BLUE, FAILS: VERMILION}
    means = [statistics.fmean(bar.gaps) for bar in bars]
    heights = range(len(bars))
    axes.barh(heights, means, color=[colors.get(bar.verdict, "silver") for bar in bars], alpha=0.8)
    for height, bar in zip(heights, bars, strict=True):
        axes.plot(bar.gaps, [height] * len(bar.gaps), ".", color="black", markersize=3)
    labels = [f"{bar.label}  {mean:+.1f}" for bar, mean in zip(bars, means, strict=True)]
    axes.set_yticks(heights, labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("BLEU gained", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def overview(results: Path, out: Path) -> list[Part]:
    """Draws the figure into a folder; the rule, the picture, and a table of each group."""
    import matplotlib.image

    groups = {title: bars_of(results, group) for title, group in GROUPS.items()}
    make_folder("--out", out)
    figure = new_figure(9.0, 9.6)
    heads, parts = figure.subfigures(2, 1, height_ratios=(0.35, 0.65))
    top = heads.subplots()
    top.imshow(matplotlib.image.imread(results / HEADS))
    top.axis("off")
    panels = parts.subplots(1, len(groups))
    for axes, (title, bars) in zip(panels, groups.items(), strict=True):
        draw(axes, title, bars)
    words = "What four heads attend to, and what parts gain in BLEU over the base row of their test"
    picture = Picture(save_figure(figure, out / "overview.png"), words)
    found: list[Part] = [Text(__doc__.split("\n\n")[2]), picture]
    for title, bars in groups.items():
        rows = [
            [
                bar.label,
                bar.base,
                bar.folder,
                f"{statistics.fmean(bar.gaps):+.1f} ± {statistics.stdev(bar.gaps):.1f}",
                f"{len(bar.gaps)}",
                {HOLDS: "gains", FAILS: "loses"}.get(bar.verdict, bar.verdict),
            ]
            for bar in bars
        ]
        head = ["part", "base row", "results", "BLEU", "seeds", "verdict"]
        found += [Heading(title), Table(head, rows)]
    return found


def main() -> None:
    """Writes the figure, table.md and index.html."""
    values = parse_experiment("overview", __doc__, FLAGS, takes_keys=False)
    results, out = Path(values["results"]), Path(values["out"])
    command = shlex.join(["python", "-m", "experiments.overview", *sys.argv[1:]])
    parts: list[Part] = [Code(command), *overview(results, out)]
    print(f"page        {write_report(out, 'What each part gains', parts)}")


if __name__ == "__main__":
    run_main(main)
