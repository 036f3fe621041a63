"""Makes a table from lines of results: means, deviations, differences and significance."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import pandas as pd

from transformer_jax.errors import ConfigError
from transformer_jax.files import read_table, write_csv
from transformer_jax.tables.experiment import Experiment
from transformer_jax.tables.results import Line

RESAMPLES = 1_000  # number of resamples of the paired bootstrap
COMPARED = ("perplexity", "bleu")  # metrics whose difference from the base row is shown
SMALLEST_BLEU = 0.005  # a lower BLEU prints as 0.00


class Metric(NamedTuple):
    """A metric that fills a column of the table."""

    label: str
    text: str  # format of a value
    of: Callable[[Any], Any]  # from a Line, or from a data frame with the columns of Line
    printed: str = ".1f"  # format of the paper's figures


METRICS = {
    "perplexity": Metric("perplexity (per subword)", ".2f", lambda line: line.perplexity, ".2f"),
    "bleu": Metric("BLEU", ".2f", lambda line: line.bleu, ""),
    "paper_bleu": Metric("paper BLEU", ".2f", lambda line: line.paper_bleu, ""),
    "chrf": Metric("chrF2", ".2f", lambda line: line.chrf),
    "parameters": Metric("parameters, millions", ".2f", lambda line: line.parameters / 1e6, ".0f"),
    "training_flops": Metric("training FLOPs", ".2e", lambda line: line.training_flops, ".1e"),
    # As the paper estimates it, but with a device's peak rate instead of its sustained rate.
    "estimated_flops": Metric(
        "training FLOPs by time", ".2e", lambda line: line.train_seconds * line.device_rate, ".1e"
    ),
    "minutes": Metric("minutes of training", ".1f", lambda line: line.train_seconds / 60),
}


def check_metrics(experiment: Experiment) -> None:
    """Raises ConfigError if the table has a column that is none of METRICS."""
    for name in experiment.metrics:
        if name not in METRICS:
            raise ConfigError(
                f"{experiment.name}: metrics has {name!r}, which is not one of "
                f"{', '.join(METRICS)}."
            )


class Summary(NamedTuple):
    """A metric of a row over its seeds."""

    mean: float
    deviation: float | None  # sample standard deviation; None for a single seed


def summarize(values: Sequence[float]) -> Summary | None:
    """Mean and sample standard deviation of the values that are numbers; None if there are none."""
    known = pd.Series(values, dtype=float).dropna()
    deviation = float(known.std()) if len(known) > 1 else None
    return None if known.empty else Summary(float(known.mean()), deviation)


def by_seed(lines: Sequence[Line], metric: str, *rows: str) -> pd.DataFrame:
    """A metric of these rows: a column for each, a line for each seed; NaN: there is no value."""
    table = pd.DataFrame(lines, columns=list(Line._fields))
    table["value"] = METRICS[metric].of(table)
    values = table.pivot_table(index="seed", columns="row", values="value", dropna=False)
    return values.reindex(columns=list(dict.fromkeys(rows))).astype(float)


def of_row(lines: Sequence[Line], row: str, metric: str) -> Summary | None:
    """The summary of a row's metric; None if no seed of the row has it."""
    return summarize(by_seed(lines, metric, row)[row])


def differences(lines: Sequence[Line], row: str, base: str, metric: str) -> list[float]:
    """The row's metric minus the base row's, one value for each seed that both have.

    They are taken seed by seed, since runs of one seed share batches and so part of the noise.
    Seeds at which both have a BLEU of 0.00 have no difference in BLEU: it means nothing.
    """
    values = by_seed(lines, metric, row, base)
    gaps = values[row] - values[base]
    if metric == "bleu":
        gaps = gaps.drop(without_bleu(lines, row, base))
    return gaps.dropna().tolist()


def without_bleu(lines: Sequence[Line], row: str, base: str) -> list[int]:
    """The seeds at which both rows have a BLEU of 0.00."""
    bleu = by_seed(lines, "bleu", row, base)
    return bleu.index[(bleu < SMALLEST_BLEU).all(axis="columns")].tolist()


def paired_p_value(
    base: Sequence[str], other: Sequence[str], references: Sequence[str]
) -> tuple[float, float]:
    """(difference in BLEU, p) of the paired bootstrap test (Koehn 2004), by sacreBLEU.

    With d the differences of n resamples, p is (1 + the number of |d| - mean |d| above the observed
    difference) / (n + 1). If one system is better in almost all resamples, this is the tail on one
    side, about half of the p of a two-sided test. NaN if both have a BLEU of 0.00, so that there is
    nothing to compare.
    """
    from sacrebleu.metrics.bleu import BLEU  # imported late, since `--list` does not need it
    from sacrebleu.significance import PairedTest

    systems: Any = [("base", list(base)), ("other", list(other))]
    test = PairedTest(
        systems, {"BLEU": BLEU()}, [list(references)], test_type="bs", n_samples=RESAMPLES
    )
    first, second = (cast(Any, result) for result in test()[1]["BLEU"])
    gap = second.score - first.score
    if max(first.score, second.score) < SMALLEST_BLEU:
        return gap, math.nan
    return gap, float(second.p_value) if gap else 1.0


Counted = Mapping[str, Mapping[str, float]]  # row -> metric -> its value, as the table shows it
# (row, seed) -> p of its BLEU against the base row; NaN: the two cannot be compared.
PValues = dict[tuple[str, int], float]


class Significance(NamedTuple):
    """A line of significance.csv."""

    row: str
    seed: int
    p: float  # an empty cell if it is NaN


def read_p_values(path: Path) -> PValues:
    """Reads significance.csv; empty if there is no such file. Raises DataError if it is damaged."""
    return {(row, seed): p for row, seed, p in read_table(path, Significance, ("p",))}


def write_p_values(path: Path, values: PValues) -> None:
    """Writes significance.csv, one line per row and seed."""
    rows = ([row, seed, "" if math.isnan(p) else f"{p:.4f}"] for (row, seed), p in values.items())
    write_csv(path, Significance._fields, rows)


def text_of(summary: Summary | None, form: str) -> str:
    """`27.31 ± 0.12`, or only the mean if all seeds agree; empty if there is no value."""
    if summary is None:
        return ""
    mean = f"{summary.mean:{form}}"
    if not summary.deviation:
        return mean
    deviation = f"{summary.deviation:{form.lstrip('+')}}"
    return mean if float(mean) == float(deviation) == 0 else f"{mean} ± {deviation}"


def make_table(
    experiment: Experiment,
    scale: str,
    lines: Sequence[Line],
    p_values: PValues,
    counted: Counted = MappingProxyType({}),
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table as text: every row of this scale, every metric a row has.

    Args:
      experiment: the table.
      scale: a name in its scales.
      lines: the results of finished runs.
      p_values: p-values of rows and seeds against the first row.
      counted: metrics of rows that are known before the rows are run.
    """
    shown = experiment.shown(scale)
    chosen = experiment.scales[scale]
    base = shown[0] if chosen.compared else None
    columns = [["row", *map(chosen.label, shown)], ["seeds"]]
    for row in shown:
        seeds = sum(line.row == row for line in lines)
        columns[1].append(str(seeds or ("not run" if row in experiment.rows else "the paper's")))
    for name in experiment.metrics:
        columns += _columns(experiment, shown, lines, base, name, counted)
    if base is not None and any(head == METRICS["bleu"].label for head, *_ in columns):
        p = [_p(p_values, lines, row, base) for row in shown]
        columns.append(["p (median of seeds)", *p])
    head, *rows = map(list, zip(*columns, strict=True))
    return head, rows


def _columns(
    experiment: Experiment,
    shown: Sequence[str],
    lines: Sequence[Line],
    base: str | None,
    name: str,
    counted: Counted,
) -> list[list[str]]:
    """A metric's columns: values, differences from the base row, the paper's; [] if no value."""
    label, form, _, form_of_paper = METRICS[name]
    values = [text_of(of_row(lines, row, name), form) for row in shown]
    for n, row in enumerate(shown):
        if not values[n] and name in counted.get(row, {}):
            values[n] = f"{counted[row][name]:{form}}"
    figures = [experiment.paper.get(row, {}).get(name) for row in shown]
    printed = ["" if figure is None else f"{figure:{form_of_paper}}" for figure in figures]
    columns = [[label, *values]] if any(values + printed) else []
    if columns and base is not None and name in COMPARED:
        gaps = [summarize(differences(lines, row, base, name)) for row in shown[1:]]
        columns.append(["− base", "", *(text_of(gap, f"+{form}") for gap in gaps)])
    if any(printed):
        columns.append([f"the paper's {label.removeprefix('paper ')}", *printed])
    return columns


def _p(p_values: PValues, lines: Sequence[Line], row: str, base: str) -> str:
    """The median of a row's p-values over the seeds; empty if there is none."""
    left_out = without_bleu(lines, row, base)  # earlier versions recorded 1.0 for them
    own = [p for (name, seed), p in p_values.items() if name == row and seed not in left_out]
    median = pd.Series(own, dtype=float).median()
    return "" if math.isnan(median) else f"{median:.3f}"  # at least 1 / (RESAMPLES + 1)
