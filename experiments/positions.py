"""How a model knows the order of subwords: BLEU within and beyond the lengths of training.

    python -m experiments.positions --seeds=0,1,2
    python -m experiments.positions --scale=multi30k

The question: which kind of positions translates sentences that are longer than any in training, and
does it cost anything within those lengths? The paper chose sinusoids because they "may allow the
model to extrapolate" (section 3.5); its own measurement is on lengths that training has.

The small scale trains a pre-norm Transformer with 2 + 2 layers of d_model 128 and 4 heads on
sentences of the built-in corpus of at most 12 subwords a side, for 1,000 steps of 1,000 target
subwords. No row is tuned: all have the preset's learning rate. The test split has sources of any
length; "within" is BLEU of those of at most 12 subwords, "beyond" of all longer ones. The row "all
lengths" trains on every length, with sinusoids, and shows what is possible. The scale multi30k
compares BLEU within the lengths of training, for the small pre-norm model of table 2.

The rules, written before the runs. A kind extrapolates if in every seed its BLEU beyond is above
80 % of that of the row "all lengths", and does not if it is below 50 % in every seed; otherwise it
is not decided. It is better or worse than sinusoids, within or beyond, if its BLEU differs seed by
seed by Student's t, p < 0.05; otherwise it is not decided. With eight kinds and two comparisons
each, about one of the 16 will differ by chance.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.claims.lengths import (
    ALL_LENGTHS,
    BEYOND,
    LONG_SENTENCES_UNSEEN,
    SHORT_SENTENCES,
    SINUSOIDAL,
    WITHIN,
    Lengths,
    bleu_by_length,
    by_row,
    extrapolates,
)
from experiments.evidence import answers
from experiments.judging import FAILS, HOLDS, judged
from experiments.short_demo import SHORT_DEMO
from experiments.table3_ablations import BASE, RECIPE, SHORT, shrink
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale
from transformer_jax.tables.results import Line, read_results
from transformer_jax.tables.statistics import summarize, text_of

KINDS: dict[str, Overrides] = {
    SINUSOIDAL: {"model.positions": "sinusoidal"},
    "learned": {"model.positions": "learned"},
    "none": {"model.positions": "none"},
    "index": {"model.positions": "index"},
    "relative": {"model.positions": "relative"},
    "relative, keys only": {"model.positions": "relative", "model.relative_values": False},
    "t5": {"model.positions": "t5"},
    "rotary": {"model.positions": "rotary"},
    "alibi": {"model.positions": "alibi"},
}
ROWS: dict[str, Overrides] = {**KINDS, ALL_LENGTHS: {}}
# What the table calls the verdict on "extrapolates".
SHOWN = {HOLDS: "extrapolates", FAILS: "does not"}


def against_sinusoids(lengths: Lengths, row: str, which: int) -> str:
    """Whether a row is better or worse than sinusoids."""
    own, other = lengths.get(row, {}), lengths.get(SINUSOIDAL, {})
    gaps = [own[seed][which] - other[seed][which] for seed in own if seed in other]
    verdict = judged(gaps, 0, 1)
    if verdict not in (HOLDS, FAILS):
        return verdict
    return f"{'better' if verdict == HOLDS else 'worse'} ({statistics.fmean(gaps):+.1f})"


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """BLEU, within and beyond the lengths of training where they are limited, and the verdicts."""
    if folder.name == "multi30k":
        return of_all_lengths(read_results(folder))
    asked = {job.label: ([job], bleu_by_length) for job in jobs}
    lengths = by_row(answers(folder, asked))
    rows = []
    for name in ROWS:
        cells = [_mean(lengths, name, which) for which in (WITHIN, BEYOND)]
        verdicts = ["", "", ""]
        if name != ALL_LENGTHS:
            verdict = extrapolates(lengths, name)
            verdicts[0] = SHOWN.get(verdict, verdict)
        if name not in (ALL_LENGTHS, SINUSOIDAL):
            verdicts[1:] = [against_sinusoids(lengths, name, n) for n in (WITHIN, BEYOND)]
        rows.append([name, *cells, *verdicts])
    head = [
        "positions",
        f"BLEU to {SHORT_SENTENCES} subwords",
        f"BLEU above {SHORT_SENTENCES}",
        "extrapolates",
        f"against sinusoids, to {SHORT_SENTENCES}",
        f"against sinusoids, above {SHORT_SENTENCES}",
    ]
    return [Heading("Verdicts"), Table(head, rows)]


def of_all_lengths(lines: Sequence[Line]) -> list[Part]:
    """BLEU of the whole test split, and what differs from sinusoids."""
    lengths = {row: {line.seed: (line.bleu,) for line in lines if line.row == row} for row in KINDS}
    verdicts = {name: against_sinusoids(lengths, name, 0) for name in KINDS} | {SINUSOIDAL: ""}
    rows = [[name, _mean(lengths, name, 0), verdicts[name]] for name in KINDS]
    return [Heading("Verdicts"), Table(["positions", "BLEU", "against sinusoids"], rows)]


def _mean(lengths: Lengths, row: str, which: int) -> str:
    values = [bins[which] for bins in lengths.get(row, {}).values()]
    return text_of(summarize(values), ".1f")


EXPERIMENT = Experiment(
    name="positions",
    rows=ROWS,
    scales={
        "small": SHORT_DEMO._replace(own=dict.fromkeys(KINDS, LONG_SENTENCES_UNSEEN)),
        "multi30k": Scale(
            "configs/multi30k.py",
            {**shrink(BASE), **RECIPE, **SHORT, "model.norm": "pre"},
            rows=tuple(KINDS),
        ),
    },
    about=__doc__,
    findings=findings,
    in_scale=True,
)

if __name__ == "__main__":
    main(EXPERIMENT)
