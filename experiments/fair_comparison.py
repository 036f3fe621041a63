"""Table 2 again, with the same tuning for every contender, at 1, 3 and 9 times the budget.

    python -m experiments.fair_comparison --scale=budget_1
    python -m experiments.fair_comparison --scale=budget_3
    python -m experiments.fair_comparison --scale=budget_9 --rows="A;B"

The question: at equal training FLOPs, does the Transformer translate better than what it replaced,
and from which budget on? experiments.table2_bleu answered "no" for one budget, but there the rate
of the recurrent model was searched and the Transformer's was the paper's.

The contenders, on Multi30k, have 2.15 million parameters within 1 %, and the same data, vocabulary,
batches, loss, dropout, clipping (norm 1), schedule (inverse root after 200 steps) and average of
the last 5 checkpoints: the Transformer with the norms after (the paper) and before, the recurrent
model of Bahdanau et al. 2015, the convolutional one of Gehring et al. 2017, and a hybrid of the
pre-norm Transformer's encoder and the recurrent decoder. A budget of 1 is 2.25e13 training FLOPs,
800 steps of the Transformer. Each contender's steps are as many as the same FLOPs allow.

Tuning: each contender has the best of three peak rates at budget 1 with seed 0 (experiments.rates),
and the choice holds for all budgets. Budgets are run with other seeds, so that the choice has no
part in the scores.

The rules, written before the runs. At each budget the better Transformer and the best of the others
are those with the lower mean validation perplexity. "The Transformer translates better at equal
FLOPs" holds if its BLEU on test2016 is higher, seed by seed, by Student's t, p < 0.05; it does not
hold if it is lower by the same test; otherwise it is not decided. With one seed, the deviation of a
difference is taken from budget 3. Budget 9 is run for the two that are compared at budget 3.
Minutes of training are shown beside BLEU; on shared cores they are rough, so no verdict rests on
them.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.judging import NOT_RUN, judge
from experiments.table2_bleu import AT_SMALL, CONFIG, LAST
from transformer_jax.reporting.page import Heading, Part, Picture, Table
from transformer_jax.reporting.plots import (
    finish_axes,
    new_figure,
    plot_curve,
    save_figure,
    use_log_axis,
)
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale
from transformer_jax.tables.results import Line, read_results
from transformer_jax.tables.statistics import differences, of_row, text_of

POST, PRE = "Transformer, post-norm", "Transformer, pre-norm"
TRANSFORMERS = (POST, PRE)
HYBRID = "Transformer to recurrent"
# Steps at budget 1 have the FLOPs of 800 steps of the Transformer.
ROWS: dict[str, Overrides] = {
    POST: {"model.norm": "post", "train.steps": 800},
    PRE: {"model.norm": "pre", "train.steps": 800},
    "recurrent": {
        "model.encoder": "recurrent",
        "model.decoder": "recurrent",
        "model.d_hidden": 220,
        "train.remat": True,
        "train.steps": 839,
    },
    "convolutional": {
        "model.encoder": "convolutional",
        "model.decoder": "convolutional",
        "model.num_layers": 4,
        "model.d_hidden": 154,
        "train.steps": 830,
    },
    HYBRID: {
        "model.norm": "pre",
        "model.decoder": "recurrent",
        "model.d_hidden": 294,
        "train.remat": True,
        "train.steps": 825,
    },
}
RATES: dict[str, float] = {  # chosen by experiments.rates
    POST: 0.003,
    PRE: 0.009,
    "recurrent": 0.003,
    "convolutional": 0.003,
    HYBRID: 0.009,
}
FLOPS = 2.25e13  # of training, at budget 1
BUDGETS = {1: (1, 2, 3), 3: (1, 2), 9: (1,)}  # times FLOPS, and the seeds
ALIKE: dict[str, Any] = {**AT_SMALL, "train.clip_norm": 1.0}


def best(lines: Sequence[Line], rows: Sequence[str]) -> str:
    """The row with the lowest mean validation perplexity; empty: nothing was run."""
    found = {name: of_row(lines, name, "perplexity") for name in rows}
    known = {name: value.mean for name, value in found.items() if value is not None}
    return min(known, key=lambda name: known[name], default="")


def gaps_of(lines: Sequence[Line]) -> tuple[str, str, list[float]]:
    """The better Transformer, the best other, and their difference in BLEU for each seed."""
    others = [name for name in ROWS if name not in TRANSFORMERS]
    ours, theirs = (best(lines, rows) for rows in (TRANSFORMERS, others))
    return ours, theirs, differences(lines, ours, theirs, "bleu")


def verdict_of(lines: Sequence[Line], spread: Sequence[float] = ()) -> tuple[str, str]:
    """The verdict at a budget, and the reason.

    Args:
      lines: the runs of the budget.
      spread: differences at another budget; their deviation counts if there is one seed.
    """
    ours, theirs, gaps = gaps_of(lines)
    if not gaps:
        return NOT_RUN, ""
    reason = f"{ours} against {theirs}: {statistics.fmean(gaps):+.1f} BLEU, seeds {len(gaps)}"
    return judge(gaps, 1, spread), reason


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """BLEU at every budget that was run, the verdicts, and curves over FLOPs and minutes."""
    by_budget = {times: read_results(folder.parent / f"budget_{times}") for times in BUDGETS}
    *_, spread = gaps_of(by_budget[3])
    rows = []
    for name in ROWS:
        cells = [text_of(of_row(lines, name, "bleu"), ".1f") for lines in by_budget.values()]
        cells += [text_of(of_row(lines, name, "minutes"), ".0f") for lines in by_budget.values()]
        rows.append([name, *cells])
    verdicts = [
        [f"{times} x 2.25e13 FLOPs", *verdict_of(lines, spread)]
        for times, lines in by_budget.items()
    ]
    of_budgets = [f"budget {times}" for times in BUDGETS]
    parts: list[Part] = [
        Heading("Verdicts: the Transformer translates better at equal FLOPs"),
        Table(["training", "verdict", "because"], verdicts),
        Heading("BLEU and minutes of training"),
        Table(["contender", *of_budgets, *(f"minutes, {one}" for one in of_budgets)], rows),
    ]
    if any(by_budget.values()):
        parts.append(Picture(_curves(by_budget, folder), "BLEU over training FLOPs and minutes"))
    return parts


def _curves(by_budget: dict[int, list[Line]], folder: Path) -> Path:
    """Draws BLEU over training FLOPs and over minutes, a line for each contender."""
    figure = new_figure(9, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    labels = {"training_flops": "training FLOPs", "minutes": "minutes of training"}
    for axes, (metric, label) in zip(panels, labels.items(), strict=True):
        for name in ROWS:
            points = []
            for lines in by_budget.values():
                x = of_row(lines, name, metric)
                y = of_row(lines, name, "bleu")
                if x is not None and y is not None:
                    points.append((x.mean, y.mean))
            if points:
                plot_curve(axes, points, label=name)
        if metric == "training_flops":
            axes.set_xlim(0.7 * min(BUDGETS) * FLOPS, 1.4 * max(BUDGETS) * FLOPS)
        use_log_axis(axes, "x")
        finish_axes(axes, label, "BLEU")
    panels[0].legend(frameon=False, fontsize=8)
    return save_figure(figure, folder / "budgets.png")


def budget_scale(times: int) -> Scale:
    """The scale of one budget, with the rate that was chosen for each row."""
    own = {
        name: {"train.steps": times * row["train.steps"], "train.peak_learning_rate": RATES[name]}
        for name, row in ROWS.items()
    }
    return Scale(CONFIG, ALIKE, BUDGETS[times], average=LAST, own=own, compared=False)


EXPERIMENT = Experiment(
    name="fair_comparison",
    rows=ROWS,
    scales={f"budget_{times}": budget_scale(times) for times in BUDGETS},
    about=__doc__,
    metrics=("perplexity", "bleu", "training_flops", "minutes", "parameters"),
    findings=findings,
    in_scale=True,
)

if __name__ == "__main__":
    main(EXPERIMENT)
