"""The records of experiments.speedrun: rules, recorded runs, verdicts, and the page about them."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.files import read_table
from transformer_jax.reporting.page import markdown_table
from transformer_jax.tables.statistics import summarize, text_of

BAR = 37.0  # sacreBLEU on the validation split
SEEDS = (0, 1, 2, 3, 4)
LEVEL = 0.05  # a mean counts as above the bar, or a time as shorter, if p is below
GOAL = 0.6  # of the baseline's time


class Record(NamedTuple):
    """A way to train, to be timed."""

    config: str  # its config file
    changes: str  # what it does differently, for the page
    average: int = 0  # last checkpoints to average; 0: the last one, not averaged


BASELINE = "baseline"
RECORDS = {
    BASELINE: Record("configs/multi30k.py", "the preset"),
    "fast": Record(
        "configs/multi30k_fast.py",
        "half the width, twice the heads, half the dropout, clipping, four times the rate",
    ),
}

RULES = f"""\
1. A record trains on the 29,000 pairs of Multi30k's training split, English to German, and on
   nothing else: no other text, vocabulary or weights. It may choose everything else, also the
   order and the length of the rows, the model and the search.
2. Its score is sacreBLEU (13a, cased, detokenized) of the whole validation split, which it does not
   train on. The mean over the seeds {SEEDS[0]} to {SEEDS[-1]} is above {BAR:.1f} by a one-sided
   t test, p < {LEVEL}. All five seeds count; no seed may be left out or replaced.
3. Its time is the wall clock from the command to the score: start of Python, vocabulary, encoding,
   compilation without a cache, training, averages, translation, score. The run has two CPU cores;
   CPU seconds (user and system, of all threads) are shown beside it.
4. The baseline, configs/multi30k.py, runs beside it, on the same machine and with the same code,
   seed by seed in turns. A record has a smaller share of the baseline's time than the record before
   it; the shares of the five seeds have a mean below that one by a one-sided t test, p < {LEVEL}.
   So records from different machines can be compared.
"""


class Run(NamedTuple):
    """A line of docs/results/speedrun/RECORD.csv."""

    record: str  # of the record, or of the baseline beside it
    seed: int
    bleu: float  # sacreBLEU on the validation split
    seconds: float  # wall clock, from the command to the score
    cpu_seconds: float  # user and system
    config_digest: str
    revision: str
    processor: str
    date: str
    signature: str  # sacreBLEU's


def results_file(name: str, docs: Path = Path("docs")) -> Path:
    """The file of a record's runs and of the baseline's beside it."""
    return docs / "results" / "speedrun" / f"{name}.csv"


# Verdicts --------------------------------------------------------------------------------------


def p_above(values: Sequence[float], bar: float) -> float:
    """p of Student's one-sided t test that the mean is above the bar; 1 for a single value.

    p is the probability of a mean at least as far above the bar if the true one is the bar.
    """
    if len(values) < 2:
        return 1.0
    from scipy.stats import ttest_1samp

    p = float(ttest_1samp(values, bar, alternative="greater").pvalue)
    return 1.0 if math.isnan(p) else p  # NaN: every value is the bar


RECORD = "record"  # the verdict on a record that counts


class Standing(NamedTuple):
    """What the recorded runs say about one record."""

    runs: Sequence[Run]  # of the record, by seed
    shares: Sequence[float]  # of the time of the baseline beside it, for each seed that both have
    verdict: str


def standing(name: str, beside: Sequence[Run], best: float = 1.0) -> Standing:
    """What the runs of a file say about a record.

    Args:
      name: the record, or the baseline, whose share is not judged.
      beside: the lines of a record's file.
      best: the smallest share of the baseline's time among earlier records.
    """
    runs = sorted((run for run in beside if run.record == name), key=lambda run: run.seed)
    of_baseline = {run.seed: run.seconds for run in beside if run.record == BASELINE}
    shares = [run.seconds / of_baseline[run.seed] for run in runs if run.seed in of_baseline]
    if not runs:
        verdict = "not run"
    elif len(shares) < len(SEEDS):
        verdict = f"{len(shares)} of {len(SEEDS)} seeds"
    elif p_above([run.bleu for run in runs], BAR) >= LEVEL:
        verdict = "misses the bar"
    elif name != BASELINE and p_above([-share for share in shares], -best) >= LEVEL:
        verdict = "not faster"
    else:
        verdict = "the first record" if name == BASELINE else RECORD
    return Standing(runs, shares, verdict)


# The page --------------------------------------------------------------------------------------

HEAD = (
    "record",
    "what it changes",
    "BLEU",
    "p, mean above the bar",
    "seconds",
    "CPU seconds",
    "share of the baseline's seconds",
    "verdict",
)


def page(docs: Path) -> str:
    """docs/records.md, from the results beside it."""
    return f"""\
# Records

How fast can two CPU cores learn to translate Multi30k at {BAR:.1f} sacreBLEU? The rules follow
those of [modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt): a score to reach (the
bar), several seeds, a significance test, and the baseline run again on the same machine.
`python -m experiments.speedrun` runs and judges a record, and writes this page from the lines in
`docs/results/speedrun/`.

{markdown_table(HEAD, rows(docs))}
Figures are mean ± sample standard deviation over the seeds. The goal for the first record was
{GOAL:.0%} of the baseline's time; the next one has to be faster than the record before it.

## Rules

{RULES}
## Enter a record

1. Write a config file in `configs/`, and its line in `RECORDS` of `experiments/speedrun_page.py`.
   Tune it with `train` and other seeds than the five.
2. On a quiet machine: `TRANSFORMER_JAX_DATA=FOLDER python -m experiments.speedrun --record=NAME`.
   `FOLDER/multi30k` has the files that [multi30k.md](multi30k.md) names; other text is refused.
   `--dry_run` predicts the time; a run that was stopped is run again, and the others are kept.
3. Commit `docs/results/speedrun/NAME.csv` and this page.

A faster training step makes the baseline faster as well, because both have the same code. It
belongs on [the page about speed](speed.md).
"""


def rows(docs: Path) -> list[list[str]]:
    """A line for each record, and one for the baseline that ran beside it."""
    found = list[list[str]]()
    best = 1.0
    for name in RECORDS:
        if name == BASELINE:
            continue
        beside = read_table(results_file(name, docs), Run)
        of_baseline = standing(BASELINE, beside)
        own = standing(name, beside, best)
        found.append(_row(f"{BASELINE}, beside {name}", RECORDS[BASELINE], of_baseline))
        found.append(_row(name, RECORDS[name], own))
        if own.verdict == RECORD:
            best = statistics.fmean(own.shares)
    return found


def _row(label: str, record: Record, own: Standing) -> list[str]:
    def summary(values: Sequence[float], form: str) -> str:
        return text_of(summarize(values), form)

    bleu = [run.bleu for run in own.runs]
    p = f"{p_above(bleu, BAR):.3f}" if len(bleu) > 1 else ""
    return [
        label,
        f"{record.config}: {record.changes}",
        summary(bleu, ".2f"),
        p,
        summary([run.seconds for run in own.runs], ".0f"),
        summary([run.cpu_seconds for run in own.runs], ".0f"),
        summary(own.shares, ".3f"),
        own.verdict,
    ]
