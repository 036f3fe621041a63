"""How well a query matches a key: five score functions, with narrow and with wide keys.

    python -m experiments.scores --seeds=0,1,2

The question: the paper says that dot products fail as d_k grows unless they are divided by its root
(section 3.2.1), and that additive attention (Bahdanau et al. 2015) does not fail. Is that so here?
And do a bilinear form and the cosine fail?

It trains a pre-norm Transformer with 2 + 2 layers of d_model 128 on the built-in corpus. Every
attention has one head with d_v 128 and d_k 8 or 128. Every row trains for 1,000 steps of 1,000
target subwords with Adam and a cosine schedule, at the best of four peak rates (experiments.rates).

The rules, written before the runs. A score's loss is its BLEU with d_k 8 minus its BLEU with d_k
128, of the same seed. A score fails with wide keys if its loss is larger than that of the scaled
product by Student's t over three seeds, p < 0.05. For additive, bilinear and cosine scores the
claim is the same: the score does not fail with wide keys. It holds if the score does not fail by
this rule and its loss is smaller than that of the plain product by the same test; it does not hold
if the score fails; otherwise it is not decided. A score whose BLEU with d_k 8 is already below 5
shows nothing about d_k: not decided.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN, judge
from experiments.short_demo import SHORT_DEMO, at_rates
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.tables.results import Line, read_results
from transformer_jax.tables.statistics import by_seed, of_row, text_of

SCORES = ("scaled_dot", "dot", "bilinear", "additive", "cosine")
NARROW, WIDE = 8, 128  # d_k
SCALED, PLAIN = "scaled_dot", "dot"
LEARNED = 5.0  # BLEU; a row below it learned nothing


def name_of(score: str, d_k: int) -> str:
    """A row's name."""
    return f"{score}, d_k {d_k}"


RATES = {  # chosen by experiments.rates, with narrow and with wide keys
    name_of(score, d_k): rate
    for score, own in {
        "scaled_dot": (0.008, 0.004),
        "dot": (0.004, 0.004),
        "bilinear": (0.008, 0.002),
        "additive": (0.008, 0.008),
        "cosine": (0.008, 0.008),
    }.items()
    for d_k, rate in zip((NARROW, WIDE), own, strict=True)
}


def is_larger(some: Sequence[float], others: Sequence[float]) -> bool:
    """Whether losses exceed others of the same seeds (Student's t, p < 0.05)."""
    return judge([a - b for a, b in zip(some, others, strict=True)], 1) == HOLDS


def verdict_of(lines: Sequence[Line], score: str) -> tuple[str, str]:
    """The verdict on "it does not fail with wide keys", and the reason."""
    names = [name_of(each, d_k) for each in {SCALED, PLAIN, score} for d_k in (NARROW, WIDE)]
    bleu = by_seed(lines, "bleu", *names).dropna()  # at the seeds that all of them have
    own, scaled, plain = (
        (bleu[name_of(each, NARROW)] - bleu[name_of(each, WIDE)]).tolist()
        for each in (score, SCALED, PLAIN)
    )
    if not own:
        return NOT_RUN, "no seed has its rows and those it is compared with"
    reason = (
        f"loss {statistics.fmean(own):+.1f} BLEU; scaled product {statistics.fmean(scaled):+.1f}"
    )
    if score != PLAIN:
        reason += f", plain product {statistics.fmean(plain):+.1f}"
    if bleu[name_of(score, NARROW)].mean() < LEARNED:
        return OPEN, f"{reason}; with d_k {NARROW} it learned nothing"
    if is_larger(own, scaled):
        return FAILS, reason
    return (HOLDS if is_larger(plain, own) else OPEN), reason


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdict on each score, and its BLEU with narrow and wide keys."""
    lines = read_results(folder)
    rows = []
    for score in SCORES:
        names = [name_of(score, d_k) for d_k in (NARROW, WIDE)]
        cells = [text_of(of_row(lines, name, "bleu"), ".1f") for name in names]
        verdict, reason = ("", "") if score == SCALED else verdict_of(lines, score)
        rows.append([score, *cells, verdict, reason])
    head = ["score", f"BLEU, d_k {NARROW}", f"d_k {WIDE}", "does not fail with wide keys"]
    return [Heading("Verdicts"), Table([*head, "because"], rows)]


ROWS: dict[str, Overrides] = {
    name_of(score, d_k): {
        "model.num_heads": 1,
        "model.d_v": 128,
        "model.score": score,
        "model.d_k": d_k,
    }
    for d_k in (NARROW, WIDE)
    for score in SCORES
}


EXPERIMENT = Experiment(
    name="scores",
    rows=ROWS,
    scales={"small": SHORT_DEMO._replace(own=at_rates(RATES))},
    about=__doc__,
    findings=findings,
)

if __name__ == "__main__":
    main(EXPERIMENT)
