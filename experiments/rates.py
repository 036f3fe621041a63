"""Peak learning rates: every row of these experiments gets the same trials, and takes the best.

    python -m experiments.rates --scale=later_parts --jobs=2
    python -m experiments.rates --scale=scores --rows="additive, d_k 8 at 0.004"

The question: which peak rate should a row have? An experiment that gives all rows one rate compares
how well the rate suits them. So each row of a scale, which is the experiment of that name, is
trained for the same few updates at the same rates, with seed 0.

The rule, written before the runs: the rate with the lowest validation perplexity is taken.
`fair_comparison` tries budget 1 with a seed that its table does not have. `real_text` tries 300
updates of the model for two cores.
`later_parts`, `one_stack` and `scores` try 400 updates on the built-in corpus; for `scores` 0.008
was added when 0.004 was the best for nine of ten rows, and for `later_parts` 0.016 when nine of
eleven had chosen 0.008.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import fair_comparison, later_parts, one_stack, real_text, scores
from experiments.short_demo import updates
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale
from transformer_jax.tables.results import read_results


class Trials(NamedTuple):
    """The trials of an experiment."""

    rows: Mapping[str, Overrides]
    rates: tuple[float, ...]
    scale: Scale  # of every trial

    def names(self) -> dict[tuple[str, float], str]:
        """The name of each trial, by row and rate."""
        return {(row, rate): f"{row} at {rate}" for row in self.rows for rate in self.rates}

    def as_scale(self) -> Scale:
        """The scale whose rows are the trials."""
        own = {
            name: {**self.rows[row], "train.peak_learning_rate": rate}
            for (row, rate), name in self.names().items()
        }
        return self.scale._replace(own=own, rows=tuple(own), split="valid", compared=False)


ON_DEMO = Scale("configs/demo.py", updates(400))
TRIALS = {
    "fair_comparison": Trials(
        fair_comparison.ROWS,
        (0.001, 0.003, 0.009),
        Scale(fair_comparison.CONFIG, fair_comparison.ALIKE, average=fair_comparison.LAST),
    ),
    "later_parts": Trials(later_parts.ROWS, (0.002, 0.004, 0.008, 0.016), ON_DEMO),
    "one_stack": Trials(one_stack.ROWS, (0.002, 0.004, 0.008, 0.016), ON_DEMO),
    "real_text": Trials(
        real_text.trial_rows(),
        (0.001, 0.003, 0.009),
        Scale("configs/europarl.py:en-it", real_text.TRIAL),
    ),
    "scores": Trials(scores.ROWS, (0.001, 0.002, 0.004, 0.008), ON_DEMO),
}


def perplexities(folder: Path, trials: Trials) -> dict[str, dict[float, float]]:
    """The recorded validation perplexities of each row, by rate."""
    recorded = {line.row: line.perplexity for line in read_results(folder)}
    found: dict[str, dict[float, float]] = {row: {} for row in trials.rows}
    for (row, rate), name in trials.names().items():
        if name in recorded:
            found[row][rate] = recorded[name]
    return found


def best_of(own: Mapping[float, float]) -> float | None:
    """The rate with the lowest perplexity; None: no trial was run."""
    return min(own, key=own.__getitem__) if own else None


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The validation perplexity of each row at each rate, and the rate with the lowest."""
    trials = next(own for own in TRIALS.values() if jobs[0].row in own.names().values())
    rows = []
    for row, own in perplexities(folder, trials).items():
        cells = [f"{own[rate]:,.2f}" if rate in own else "" for rate in trials.rates]
        rows.append([row, *cells, str(best_of(own) or "")])
    return [
        Heading("Verdicts: validation perplexity by peak rate"),
        Table(["row", *map(str, trials.rates), "best"], rows),
    ]


EXPERIMENT = Experiment(
    name="rates",
    rows={name: {} for trials in TRIALS.values() for name in trials.names().values()},
    scales={name: trials.as_scale() for name, trials in TRIALS.items()},
    about=__doc__,
    findings=findings,
)

if __name__ == "__main__":
    main(EXPERIMENT)
