"""The paper's claims, one verdict each: holds, does not hold, or is not decided at this scale.

    python -m experiments.claims

Verdicts come from three sources: measurements that need no training; runs of this experiment, most
of them on the built-in corpus, whose word order and alignments are known exactly; and recorded rows
of tables 2 and 3 at their small scale, of table 2 at its longer scale and of experiments.positions
(run those first, or their claims are shown as not run). The file results.jsonl keeps measurements
and probes of trained runs: remove an entry to make it again.

How to read it: a difference of BLEU counts if both the paired bootstrap (not used for averaging and
scaling) and Student's t over seeds give p < 0.05. If a row has one seed, the deviation over the
seeds of table 3's base row is used instead of its own. If Multi30k does not decide a claim in this
way, the built-in corpus may decide it by Student's t over three seeds. Otherwise the claim is not
decided. Other rules are in the sentence that gives the reason. A claim that does not hold here may
hold at the paper's scale, with 30 times the parameters and 50,000 times the computation.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.claims import (
    alignments,
    averaging,
    headline,
    lengths,
    linear_shifts,
    one_head,
    saturation,
    scaling_in_training,
    smoothing,
    warm_up,
    word_order,
)
from experiments.claims.judging import GRAMMAR, REFERENCE, Known, Recorded
from experiments.evidence import answers
from experiments.table2_bleu import LAST
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.experiment import Experiment, Job, Scale
from transformer_jax.tables.results import read_results

CLAIMS = (  # in reading order; a file each
    headline,
    saturation,
    scaling_in_training,
    one_head,
    lengths,
    word_order,
    linear_shifts,
    smoothing,
    averaging,
    alignments,
    warm_up,
)
PROBED = (saturation, linear_shifts, word_order, alignments, warm_up)
PROBES = [claim.PROBE for claim in PROBED]
OVER_SEEDS: dict[str, Any] = {  # rows on the built-in corpus with three seeds
    REFERENCE: GRAMMAR,
    **smoothing.ROWS,
    **one_head.ROWS,
    **scaling_in_training.ROWS,
    **averaging.ROWS,
}
ON_GRAMMAR = {**OVER_SEEDS, **word_order.ROWS, **warm_up.ROWS}
ROWS = {**ON_GRAMMAR, **scaling_in_training.ON_MULTI30K}
RECORDED = Path("docs", "results")  # where tables are, of the working directory


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts as one table, and the evidence for each."""
    first = {job.row: job for job in jobs if job.seed == jobs[0].seed}
    asked = {one.name: ([first[row] for row in one.rows], one.ask) for one in PROBES}
    known = Known(
        folder,
        read_results(folder),
        answers(folder, asked),
        table_2=recorded("table2_bleu", "Transformer"),
        longer=recorded("table2_bleu", "Transformer", "longer"),
        table_3=recorded("table3_ablations", "base"),
        positions=answers(RECORDED / "positions" / "small", {}),
    )
    found = [finding for claim in CLAIMS for finding in claim.findings(known)]
    head = ["claim", "in the paper", "verdict", "because"]
    parts: list[Part] = [Heading("Verdicts"), Table(head, [one[:4] for one in found])]
    for one in found:
        if one.parts:
            parts += [Heading(one.claim), *one.parts]
    return parts


def recorded(name: str, base: str, scale: str = "small") -> Recorded:
    """A table's finished runs."""
    return Recorded(read_results(RECORDED / name / scale), base)


EXPERIMENT = Experiment(
    name="claims",
    rows=ROWS,
    scales={
        "small": Scale(
            {row: f"configs/{'demo' if row in ON_GRAMMAR else 'multi30k'}.py" for row in ROWS},
            seeds={row: (0, 1, 2) if row in OVER_SEEDS else (0,) for row in ROWS},
            average={row: LAST if row == averaging.AVERAGED else 0 for row in ROWS},
            compared=False,
        )
    },
    about=__doc__,
    metrics=("perplexity", "bleu", "minutes"),
    findings=findings,
)
