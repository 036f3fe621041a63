"""Label smoothing hurts perplexity and helps BLEU (section 5.4).

Row (D) of table 3 without smoothing is compared with its base row, or else a row without smoothing
with the reference on the built-in corpus.
"""

from experiments.claims.judging import GRAMMAR, Claim, Finding, Known, on_grammar
from experiments.judging import mean_of

PLACE = "section 5.4, table 3 (D)"
# By metric, with what the paper prints for smoothing of 0 and of 0.1.
CLAIMS = {
    "perplexity": (Claim("Label smoothing hurts perplexity", PLACE), "4.67 and 4.92"),
    "bleu": (Claim("Label smoothing helps BLEU", PLACE), "25.3 and 25.8"),
}
NO_SMOOTHING = "(D) smoothing 0.0"  # of table 3
UNSMOOTHED = "no smoothing"  # on the built-in corpus
ROWS = {UNSMOOTHED: {**GRAMMAR, "train.label_smoothing": 0.0}}


def findings(known: Known) -> list[Finding]:
    """Compares smoothing with none: without it, both metrics should be lower."""
    found = []
    table = known.table_3
    for metric, (claim, printed) in CLAIMS.items():
        if not table.differences(NO_SMOOTHING, metric):
            found.append(claim.is_not_run(f"{NO_SMOOTHING} of table 3 is missing"))
            continue
        which = table.judge(NO_SMOOTHING, metric, -1, table.spread(metric))
        without, with_it = (mean_of(table.lines, x, metric) for x in (NO_SMOOTHING, table.base))
        because = f"{without:.2f} without it, {with_it:.2f} with 0.1 (the paper: {printed})"
        own = claim.is_found(which, because)
        found.append(on_grammar(own, known.lines, UNSMOOTHED, metric, -1))
    return found
