"""One head is 0.9 BLEU worse than the best setting (table 3, rows A).

Rows (A) of table 3 at its small scale decide it, or else one head against the four of the row
"reference" on the built-in corpus.
"""

import statistics

from experiments.claims.judging import GRAMMAR, Claim, Finding, Known, on_grammar
from experiments.judging import OPEN, mean_of
from experiments.table3_ablations import small_label

CLAIM = Claim("One head is worse than the best setting", "table 3 (A)")
ONE_HEAD = "(A) 1 head, d_k 512"  # of table 3
LARGE_KEYS = "one head"  # on the built-in corpus: its keys are as wide as the model, 128
ROWS = {LARGE_KEYS: {**GRAMMAR, "model.num_heads": 1}}


def findings(known: Known) -> list[Finding]:
    """Compares one head with the other rows (A) of table 3."""
    table = known.table_3
    rows = dict.fromkeys(x.row for x in table.lines if x.row == "base" or x.row.startswith("(A)"))
    scores = {row: mean_of(table.lines, row, "bleu") or 0.0 for row in rows}
    gaps = table.differences(ONE_HEAD, "bleu")
    if not gaps or len(scores) < 5:
        return [CLAIM.is_not_run("rows (A) of table 3 are missing")]
    best = max(scores, key=lambda row: scores[row])
    gap = statistics.fmean(gaps)
    which = table.judge(ONE_HEAD, "bleu", -1, table.spread("bleu"))
    # A row below the base row is below the best; one above it is the best only if none is higher.
    if gap > 0 and best != ONE_HEAD:
        which = OPEN
    others = ", ".join(f"{small_label(row)} {score:.1f}" for row, score in scores.items())
    because = f"{gap:+.1f} BLEU against the base row ({others}; the paper: -0.9)"
    # The reference need not be the best setting, so one head above it would not refute the claim.
    return [
        on_grammar(
            CLAIM.is_found(which, because), known.lines, LARGE_KEYS, "bleu", -1, refutes=False
        )
    ]
