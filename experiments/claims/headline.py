"""At equal cost of training, the Transformer translates better than a recurrent model.

The paper claims it at less cost (table 2). Rows of table 2 decide it: its small scale, and for
three times the budget its longer scale.
"""

from experiments.claims.judging import Claim, Finding, Known, Recorded
from experiments.judging import OPEN, mean_of

OURS = "Transformer"
AS_EQUAL = 0.1  # times count as equal if their ratio differs from 1 by no more


def findings(known: Known) -> list[Finding]:
    """Compares at equal FLOPs, at three times as many, and at equal time."""
    spread = known.table_3.spread("bleu")
    thrice = "FLOPs and three times the budget"
    return [
        _at_equal("FLOPs", known.table_2, "recurrent, equal FLOPs", spread),
        _at_equal(thrice, known.longer, "recurrent, equal FLOPs", spread),
        _at_equal("time", known.table_2, "recurrent, equal time", spread),
    ]


def _at_equal(cost: str, table: Recorded, row: str, spread: list[float]) -> Finding:
    text = f"At equal training {cost}, the Transformer translates better than a recurrent model"
    claim = Claim(text, "table 2")
    lines = table.lines
    if not table.differences(row, "bleu"):
        return claim.is_not_run("its rows are missing")
    which = table.judge(row, "bleu", -1, spread)
    ours, theirs = (mean_of(lines, name, "minutes") or 0 for name in (OURS, row))
    if cost == "time" and abs(theirs / ours - 1) > AS_EQUAL:
        which = OPEN
    scores = [f"{name} {mean_of(lines, name, 'bleu'):.1f} BLEU" for name in (OURS, row)]
    because = f"{', '.join(scores)} ({ours:.1f} and {theirs:.1f} minutes)"
    if (pre := mean_of(lines, f"{OURS}, pre-norm", "bleu")) is not None:
        because += f"; with pre-norm the Transformer has {pre:.1f}"
    return claim.is_found(which, because)
