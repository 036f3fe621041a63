"""How the Transformer and a recurrent model do on few pairs, and which norms help.

    python -m experiments.few_pairs --scale=pairs_5000
    python -m experiments.few_pairs --scale=pairs_29000

The questions: is a Transformer harder to train on few pairs than a recurrent model? Do other norms
change that?

The rows are the small models of experiments.fair_comparison on the first 5,000 and on all pairs of
Multi30k, 800 steps of 2,000 target subwords: the Transformer in post- and in pre-norm, with
LayerNorm or ScaleNorm, with and without FixNorm (Nguyen & Salazar 2019), and the recurrent model.
Their peak rates are those that experiments.fair_comparison chose for post-norm, pre-norm and the
recurrent model, from three each. ScaleNorm and FixNorm take the rate that was chosen for post-norm
or pre-norm, whichever they use. On all pairs, three rows are read from experiments.fair_comparison
at budget 1 and not run again: post-norm and pre-norm with LayerNorm, and the recurrent model.

The rules, written before the runs. "Hard on few pairs" holds if the BLEU that the post-norm
Transformer with LayerNorm loses from 29,000 to 5,000 pairs is larger than what the recurrent model
loses, seed by seed, by Student's t, p < 0.05, and fails if it is smaller by the same test. A norm
helps on 5,000 pairs if BLEU with it is higher than without it, in the mean over the other choices,
by the same test, and does not if it is lower. Otherwise nothing is decided.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.fair_comparison import ALIKE, POST, PRE, RATES
from experiments.fair_comparison import ROWS as CONTENDERS
from experiments.judging import judged, mean_text
from experiments.table2_bleu import CONFIG, LAST
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import NONE, Experiment, Overrides, Scale
from transformer_jax.tables.results import Line, read_results
from transformer_jax.tables.statistics import by_seed, of_row, text_of, without_bleu

RECURRENT = "recurrent"
PLACES = {"post": POST, "pre": PRE}  # of the norm, and whose rate a row takes


def name_of(place: str, kind: str, fixed: bool) -> str:
    """A row's name."""
    return f"{place}-norm, {kind}" + (", fix_norm" if fixed else "")


def row_of(place: str, kind: str, fixed: bool) -> Overrides:
    """A row of the scales with Multi30k."""
    row = {"model.norm": place, "model.norm_kind": kind, "model.fix_norm": fixed}
    return {**row, "train.steps": 800, "train.peak_learning_rate": RATES[PLACES[place]]}


CHOICES = [(a, b, c) for a in PLACES for b in ("layer", "scale") for c in (False, True)]
ROWS: dict[str, Overrides] = {
    **{name_of(*choice): row_of(*choice) for choice in CHOICES},
    RECURRENT: {**CONTENDERS[RECURRENT], "train.peak_learning_rate": RATES[RECURRENT]},
}
FEW, ALL = "pairs_5000", "pairs_29000"
# Rows of experiments.fair_comparison at budget 1 that are the same runs as rows with all pairs.
SAME = {
    POST: name_of("post", "layer", False),
    PRE: name_of("pre", "layer", False),
    RECURRENT: RECURRENT,
}


def effect_of(lines: Sequence[Line], part: int, value: Any) -> list[float]:
    """What a value of a choice adds in BLEU, for each seed: the mean over the other choices.

    Args:
      lines: runs of all rows of CHOICES.
      part: of a choice: 0 the place of the norm, 1 its kind, 2 FixNorm.
      value: its value; the other one is the base.
    """
    pairs = []
    for choice in CHOICES:
        if choice[part] == value:
            differ = [[a != b for a, b in zip(choice, x, strict=True)] for x in CHOICES]
            base = CHOICES[differ.index([n == part for n in range(len(choice))])]
            pairs.append((name_of(*choice), name_of(*base)))
    # A seed at which two compared rows have no BLEU is left out of all pairs.
    empty = {seed for pair in pairs for seed in without_bleu(lines, *pair)}
    known = [line for line in lines if line.seed not in empty]
    bleu = by_seed(known, "bleu", *(name_of(*choice) for choice in CHOICES)).dropna()
    gaps: Any = sum(bleu[own] - bleu[base] for own, base in pairs)
    return list(gaps / len(pairs))


def losses(few: Sequence[Line], every: Sequence[Line], row: str) -> dict[int, float]:
    """The BLEU that a row loses with few pairs, by seed."""
    bleu = [{line.seed: line.bleu for line in lines if line.row == row} for lines in (few, every)]
    return {seed: bleu[1][seed] - bleu[0][seed] for seed in bleu[0] if seed in bleu[1]}


def findings(folder: Path) -> list[Part]:
    """BLEU with few and with all pairs, and the verdicts."""
    few, every = (read_results(folder.parent / name) for name in (FEW, ALL))
    others = read_results(folder.parent.with_name("fair_comparison") / "budget_1")
    every += [line._replace(row=SAME[line.row]) for line in others if line.row in SAME]
    rows = []
    for row in ROWS:
        cells = [text_of(of_row(lines, row, "bleu"), ".1f") for lines in (few, every)]
        rows.append([row, *cells, mean_text(list(losses(few, every, row).values()), "+.1f")])
    ours, theirs = (losses(few, every, row) for row in (name_of("post", "layer", False), RECURRENT))
    gaps = {
        "a Transformer is hard on few pairs": [ours[x] - theirs[x] for x in ours if x in theirs],
        "pre-norm helps on 5,000 pairs": effect_of(few, 0, "pre"),
        "ScaleNorm helps on 5,000 pairs": effect_of(few, 1, "scale"),
        "FixNorm helps on 5,000 pairs": effect_of(few, 2, True),
    }
    verdicts = [[name, judged(own, 0, 1), mean_text(own, "+.1f")] for name, own in gaps.items()]
    return [
        Heading("Verdicts"),
        Table(["claim", "verdict", "BLEU"], verdicts),
        Heading("BLEU by the number of pairs"),
        Table(["norms", "5,000 pairs", "29,000 pairs", "loss"], rows),
    ]


def scale_of(settings: Overrides = NONE, rows: Sequence[str] = ()) -> Scale:
    """The scale of a number of pairs; rows: which ones it runs, empty for all."""
    changes = {**ALIKE, **settings}
    return Scale(CONFIG, changes, seeds=(1, 2), average=LAST, compared=False, rows=tuple(rows))


EXPERIMENT = Experiment(
    name="few_pairs",
    rows=ROWS,
    scales={
        FEW: scale_of({"data.train": ("train[:5000]",)}),
        ALL: scale_of(rows=[row for row in ROWS if row not in SAME.values()]),
    },
    about=__doc__,
    findings=lambda folder, jobs: findings(folder),
    in_scale=True,
)

if __name__ == "__main__":
    main(EXPERIMENT)
