"""Makes a table from lines of results: means, deviations, differences and significance."""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import pandas as pd

from transformer_jax.errors import ConfigError
from transformer_jax.tables.experiment import Experiment
from transformer_jax.tables.results import Line

RESAMPLES = 1_000  # resamples of the paired bootstrap, and trials of the permutation test
COMPARED = ("perplexity", "bleu")  # metrics whose difference from the base row is shown
SMALLEST_BLEU = 0.005  # a lower BLEU prints as 0.00
P_LARGEST = 0.05  # a difference counts if its p is below this
P_COLUMNS = {  # medians over seeds; those after the first only where they were tested
    "bleu": "p (median of seeds)",
    "bleu_permutation": "p, permutation",
    "chrf": "p of chrF2",
    "chrf_permutation": "p of chrF2, permutation",
}
TESTS = (*P_COLUMNS,)


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
    """Raises ConfigError if a column, or a figure of the paper, is none of METRICS."""
    of_paper = (name for figures in experiment.paper.values() for name in figures)
    named = [*(("metrics", name) for name in experiment.metrics), *(("paper", x) for x in of_paper)]
    for part, name in named:
        if name not in METRICS:
            raise ConfigError(
                f"{experiment.name}: {part} has {name!r}, which is not one of {', '.join(METRICS)}."
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


def tokens_of(signature: str) -> str:
    """The name of the tokens in sacreBLEU's signature of a BLEU; 13a if it names none."""
    found = re.search(r"tok:([\w-]+)", signature)
    return found[1] if found else "13a"


def compare(
    base: Sequence[str], other: Sequence[str], references: Sequence[str], signature: str = ""
) -> dict[str, float]:
    """Whether differences in BLEU and chrF of two systems exceed chance, by sacreBLEU.

    BLEU has the tokens that `signature`, that of the table's BLEU, names; without one 13a.

    p of two paired tests, by the names of TESTS. The bootstrap (Koehn 2004) draws sentences; the
    permutation test (approximate randomization, Riezler and Maxwell 2005) swaps the two systems'
    translations of a sentence. There is none of BLEU if both have a BLEU of 0.00.

    Of the bootstrap, with d the differences of n resamples, p is (1 + the number of |d| - mean |d|
    above the observed difference) / (n + 1). If one system is better in almost all resamples, this
    is the tail on one side, about half of the p of a two-sided test. The permutation test is
    two-sided: p is (1 + the number of trials whose |d| is above the observed one) / (n + 1). So it
    is too small if few sentences differ, where many trials have the observed difference itself.
    """
    from sacrebleu.metrics.bleu import BLEU  # imported late, since `--list` does not need it
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    systems: Any = [("base", list(base)), ("other", list(other))]
    metrics: Any = {"BLEU": BLEU(tokenize=tokens_of(signature)), "chrF2": CHRF()}
    wanted = [list(references)]
    found = [
        PairedTest(systems, metrics, wanted, test_type=kind, n_samples=RESAMPLES)()[1]
        for kind in ("bs", "ar")
    ]
    p_values = []
    for name in metrics:
        first, second = (cast(Any, result).score for result in found[0][name])
        nothing = name == "BLEU" and max(first, second) < SMALLEST_BLEU
        for of_kind in found:
            p = 1.0 if first == second else float(cast(Any, of_kind[name][1]).p_value)
            p_values.append(math.nan if nothing else p)
    known = zip(TESTS, p_values, strict=True)
    return {name: round(p, 4) for name, p in known if not math.isnan(p)}


Counted = Mapping[str, Mapping[str, float]]  # row -> metric -> its value, as the table shows it


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
    counted: Counted = MappingProxyType({}),
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table as text: every row of this scale, every metric a row has.

    Args:
      experiment: the table.
      scale: a name in its scales.
      lines: the results of finished runs.
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
        for name, label in P_COLUMNS.items():
            medians = [_median_p(lines, row, base, name) for row in shown]
            if name == "bleu" or not all(map(math.isnan, medians)):
                p = ["" if math.isnan(x) else f"{x:.3f}" for x in medians]
                columns.append([label, *p])  # at least 1 / (RESAMPLES + 1)
        verdicts = [verdict(lines, shown, row, base) for row in shown]
        if any(verdicts):
            columns.append(["against base", *verdicts])
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


def _median_p(lines: Sequence[Line], row: str, base: str, name: str) -> float:
    """The median of a row's p-values over the seeds; NaN if there is none."""
    left_out = without_bleu(lines, row, base)  # earlier versions recorded 1.0 for them
    seeds = {line.seed for line in lines if line.row == base} - set(left_out)
    own = [
        line.p[name] for line in lines if line.row == row and line.seed in seeds and name in line.p
    ]
    return float(pd.Series(own, dtype=float).median())


def verdict(lines: Sequence[Line], rows: Sequence[str], row: str, base: str) -> str:
    """Whether a row is better than the base: "better", "worse" or "not decided".

    BLEU and chrF must agree. The median p over the seeds of both paired tests of both metrics must
    be below 0.05. And the differences must exceed the spread of seeds (`exceeds_seeds`); for a
    single seed that is the pooled deviation of the other rows' differences from their own means.
    Empty if a test is missing.
    """
    p = [_median_p(lines, row, base, name) for name in TESTS]
    if row == base or any(math.isnan(one) for one in p):
        return ""
    gaps = {name: differences(lines, row, base, name) for name in ("bleu", "chrf")}
    signs = {math.copysign(1, statistics.fmean(own)) for own in gaps.values() if own}
    exceeding = all(
        exceeds_seeds(own, *(differences(lines, x, base, name) for x in rows if x != base))
        for name, own in gaps.items()
    )
    if max(p) >= P_LARGEST or len(signs) != 1 or not exceeding:
        return "not decided"
    return "better" if signs == {1.0} else "worse"


def exceeds_seeds(gaps: Sequence[float], *others: Sequence[float]) -> bool:
    """Whether differences over seeds have a mean other than 0: Student's t, two-sided, p < 0.05.

    Args:
      gaps: a difference for each seed.
      others: those of other rows. If there is a single gap, their pooled deviation from their own
        means counts.
    """
    from scipy.stats import t  # imported late, since `--list` does not need it

    samples = [own for own in ([gaps] if len(gaps) > 1 else others) if len(own) > 1]
    degrees = sum(len(own) - 1 for own in samples)
    if not gaps or not degrees:
        return False
    squares = sum(statistics.variance(own) * (len(own) - 1) for own in samples)
    error = (squares / degrees / len(gaps)) ** 0.5
    return abs(statistics.fmean(gaps)) > t.ppf(1 - P_LARGEST / 2, degrees) * error
