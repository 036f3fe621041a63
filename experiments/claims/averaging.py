"""Averaging the last checkpoints helps (section 6.1).

Table 2's first row, which is averaged, is compared with table 3's base row where both are the same
run, by their perplexity; or else two rows on the built-in corpus.
"""

import math

from experiments.claims.judging import GRAMMAR, Claim, Finding, Known, on_grammar
from experiments.judging import judge
from experiments.table2_bleu import LAST
from transformer_jax.tables.results import Line
from transformer_jax.tables.statistics import differences

CLAIM = Claim("Averaging the last checkpoints helps", "section 6.1")
# A cosine schedule ends at 0, so averaging changes nothing; the paper's does not end at 0.
SLOW_END = {**GRAMMAR, "train.schedule": "rsqrt", "train.decay_steps": None}
RSQRT, AVERAGED = "paper's schedule", "paper's schedule, averaged"
ROWS = {
    RSQRT: SLOW_END,
    AVERAGED: {**SLOW_END, "train.checkpoint_every": 20, "train.keep_last": LAST},
}


def is_same_run(one: Line, other: Line) -> bool:
    """Whether two lines are of one training, whose last perplexity is the same."""
    return math.isclose(one.perplexity, other.perplexity, rel_tol=1e-5)


def findings(known: Known) -> list[Finding]:
    """Compares BLEU seed by seed."""
    base = {line.seed: line for line in known.table_3.lines if line.row == "base"}
    mean = [one._replace(row="mean") for one in known.table_2.lines if one.row == "Transformer"]
    same = [one for one in mean if one.seed in base and is_same_run(one, base[one.seed])]
    gaps = differences([*base.values(), *same], "mean", "base", "bleu")
    if not gaps:
        return [CLAIM.is_not_run("table 2 at the small scale is missing")]
    because = (
        f"of table 3's base row the mean of the last {LAST} checkpoints has "
        f"{', '.join(f'{gap:+.2f}' for gap in gaps)} BLEU against the last one"
    )
    finding = CLAIM.is_found(judge(gaps, 1, known.table_3.spread("bleu")), because)
    return [on_grammar(finding, known.lines, AVERAGED, "bleu", 1, base=RSQRT)]
