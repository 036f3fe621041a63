"""The paper's claims, one verdict each: holds, does not hold, or is not decided at this scale.

    python -m experiments.claims

Verdicts come from three sources: measurements that need no training; runs of this experiment, most
of them on the built-in corpus, whose word order and alignments are known exactly; and recorded rows
of tables 2 and 3 at their small scale and of table 2 at its longer scale (run those first, or their
claims are shown as not run). The file evidence.json keeps measurements and probes of trained runs:
remove an entry to make it again.

How to read it: a difference of BLEU counts if both the paired bootstrap (not used for averaging and
scaling) and Student's t over seeds give p < 0.05. If a row has one seed, the deviation over the
seeds of table 3's base row is used instead of its own. If Multi30k does not decide a claim in this
way, the built-in corpus may decide it by Student's t over three seeds. Otherwise the claim is not
decided. Other rules are in the sentence that gives the reason. A claim that does not hold here may
hold at the paper's scale, with 30 times the parameters and 50,000 times the computation.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.claims_evidence import (
    NO_POSITIONS,
    REFERENCE,
    SHORT_LEARNED,
    SHORT_SINUSOIDAL,
    gather,
)
from experiments.claims_judging import Finding, Known, Recorded
from experiments.claims_measured import alignments, lengths, linear_shifts, scaling, word_order
from experiments.claims_tables import (
    AVERAGED,
    LARGE_KEYS,
    NOT_SCALED,
    RSQRT,
    SMALL_KEYS,
    UNSMOOTHED,
    averaging,
    headline,
    one_head,
    scaling_in_training,
    smoothing,
    warm_up,
)
from experiments.table2_bleu import LAST
from experiments.table3_ablations import BASE, RECIPE, SHORT, shrink
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Scale
from transformer_jax.tables.report import Output
from transformer_jax.tables.results import read_results
from transformer_jax.tables.statistics import read_p_values

SHORT_SENTENCES = 12  # subwords a side, end sign included: 57 % of the corpus
GRAMMAR: dict[str, Any] = {
    **{"train.steps": 1_000, "train.decay_steps": 1_000, "train.valid_every": 250},
    **{"train.checkpoint_every": 500, "train.keep_last": 1},
}
LONG_SENTENCES_UNSEEN = {"data.max_length": SHORT_SENTENCES}
DEEP: dict[str, Any] = {  # so that missing warm-up can do harm: 6 layers, a rate that stays high
    **{**GRAMMAR, "train.steps": 400, "train.decay_steps": None, "train.valid_every": 100},
    **{"model.num_layers": 6, "train.schedule": "constant", "train.peak_learning_rate": 1e-3},
}
ON_MULTI30K: dict[str, Any] = {**shrink(BASE), **RECIPE, **SHORT}

PLAIN = {"model.score": "dot"}
WIDE_KEYS = {**GRAMMAR, "model.num_heads": 1}  # d_k and d_v 128
NARROW_KEYS = {**WIDE_KEYS, "model.d_k": 8, "model.d_v": 128}
# A cosine schedule ends at 0, so averaging changes nothing; the paper's does not end at 0.
SLOW_END = {**GRAMMAR, "train.schedule": "rsqrt", "train.decay_steps": None}
OVER_SEEDS = {  # rows on the built-in corpus with three seeds
    REFERENCE: GRAMMAR,
    UNSMOOTHED: {**GRAMMAR, "train.label_smoothing": 0.0},
    LARGE_KEYS: WIDE_KEYS,
    LARGE_KEYS + NOT_SCALED: {**WIDE_KEYS, **PLAIN},
    SMALL_KEYS: NARROW_KEYS,
    SMALL_KEYS + NOT_SCALED: {**NARROW_KEYS, **PLAIN},
    RSQRT: SLOW_END,
    RSQRT + AVERAGED: {**SLOW_END, "train.checkpoint_every": 20, "train.keep_last": LAST},
}
ON_GRAMMAR: dict[str, dict[str, Any]] = {
    **OVER_SEEDS,
    NO_POSITIONS: {**GRAMMAR, "model.positions": "none"},
    SHORT_SINUSOIDAL: {**GRAMMAR, **LONG_SENTENCES_UNSEEN},
    SHORT_LEARNED: {**GRAMMAR, **LONG_SENTENCES_UNSEEN, "model.positions": "learned"},
    "post-norm, warm-up": {**DEEP, "model.norm": "post", "train.warmup_steps": 200},
    "post-norm, no warm-up": {**DEEP, "model.norm": "post", "train.warmup_steps": 0},
    "pre-norm, warm-up": {**DEEP, "model.norm": "pre", "train.warmup_steps": 200},
    "pre-norm, no warm-up": {**DEEP, "model.norm": "pre", "train.warmup_steps": 0},
}
ROWS = {
    **ON_GRAMMAR,
    "Multi30k, 8 heads, not scaled": {**ON_MULTI30K, **PLAIN},
    "Multi30k, 1 head, not scaled": {**ON_MULTI30K, **PLAIN, "model.num_heads": 1},
}


RECORDED = Path(__file__).parent.parent / "docs" / "results"
CLAIMS: list[Callable[[Known], list[Finding]]] = [
    *(headline, scaling, scaling_in_training, one_head, lengths, word_order, linear_shifts),
    *(smoothing, averaging, alignments, warm_up),
]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts as one table, and the evidence for each."""
    evidence = gather(folder / "evidence.json", jobs)
    known = Known(
        folder,
        read_results(folder / "results.csv"),
        evidence,
        table_2=recorded("table2_bleu", "Transformer"),
        longer=recorded("table2_bleu", "Transformer", "longer"),
        table_3=recorded("table3_ablations", "base"),
    )
    found = [finding for claim in CLAIMS for finding in claim(known)]
    rows = [[one.claim, one.place, one.verdict, one.because] for one in found]
    parts: list[Part] = [
        Heading("Verdicts"),
        Table(["claim", "in the paper", "verdict", "because"], rows),
    ]
    for one in found:
        if one.parts:
            parts += [Heading(one.claim), *one.parts]
    return parts


def recorded(name: str, base: str, scale: str = "small") -> Recorded:
    """A table's finished runs."""
    output = Output(RECORDED / name / scale)
    return Recorded(read_results(output.results), read_p_values(output.significance), base)


EXPERIMENT = Experiment(
    name="claims",
    rows=ROWS,
    scales={
        "small": Scale(
            {
                row: "configs/demo.py" if row in ON_GRAMMAR else "configs/multi30k.py"
                for row in ROWS
            },
            seeds={row: (0, 1, 2) if row in OVER_SEEDS else (0,) for row in ROWS},
            average={row: LAST if row.endswith(AVERAGED) else 0 for row in ROWS},
            compared=False,
        )
    },
    about=__doc__,
    metrics=("perplexity", "bleu", "minutes"),
    findings=findings,
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
