"""Scaling by 1 / sqrt(d_k) helps training, and more for large d_k (section 3.2.1).

Two rows of table 3, eight heads and one, are trained without scaling too. So are one head of d_k 8
and one of d_k 128 on the built-in corpus, which may decide the second claim.
"""

import statistics
from collections.abc import Sequence

from experiments.claims.judging import Claim, Finding, Known, or_by_grammar
from experiments.claims.one_head import LARGE_KEYS, ONE_HEAD
from experiments.claims.one_head import ROWS as ONE_HEAD_ROWS
from experiments.judging import HOLDS, OPEN, judge, of_two
from experiments.table3_ablations import BASE, RECIPE, SHORT, shrink
from transformer_jax.reporting.page import Table
from transformer_jax.tables.statistics import by_seed, differences

HELPS = Claim("Scaling helps training", "section 3.2.1")
HELPS_MORE = Claim("Scaling helps training more for large d_k", "section 3.2.1")

SMALL_KEYS, NOT_SCALED = "one head of d_k 8", ", not scaled"  # the second ends a row's name
PLAIN = {"model.score": "dot"}
LARGE = ONE_HEAD_ROWS[LARGE_KEYS]
SMALL = {**LARGE, "model.d_k": 8, "model.d_v": 128}
ROWS = {
    LARGE_KEYS + NOT_SCALED: {**LARGE, **PLAIN},
    SMALL_KEYS: SMALL,
    SMALL_KEYS + NOT_SCALED: {**SMALL, **PLAIN},
}
AT_TABLE_3 = {**shrink(BASE), **RECIPE, **SHORT, **PLAIN}
ON_MULTI30K = {
    "Multi30k, 8 heads, not scaled": AT_TABLE_3,
    "Multi30k, 1 head, not scaled": {**AT_TABLE_3, "model.num_heads": 1},
}
WITHOUT = dict(zip(("base", ONE_HEAD), ON_MULTI30K, strict=True))  # row with scaling -> without
HEADS = {"base": "8 heads of d_k 16", ONE_HEAD: "1 head of d_k 128"}


def findings(known: Known) -> list[Finding]:
    """Compares the same rows with and without division by sqrt(d_k)."""
    lines = [*known.table_3.lines, *known.lines]
    few, many = (differences(lines, plain, scaled, "bleu") for scaled, plain in WITHOUT.items())
    if not (few and many):
        return [claim.is_not_run("rows are missing") for claim in (HELPS, HELPS_MORE)]
    spread = known.table_3.spread("bleu")
    because = (
        f"without it BLEU changes by {statistics.fmean(few):+.1f} with {HEADS['base']}, by "
        f"{statistics.fmean(many):+.1f} with {HEADS[ONE_HEAD]}"
    )
    helps = [judge(each, -1, spread) for each in (few, many)]
    which = helps[0] if helps[0] == helps[1] else OPEN
    bleu = by_seed(lines, "bleu", *WITHOUT, *WITHOUT.values()).dropna()
    each = [[*(bleu[plain] - bleu[scaled])] for scaled, plain in WITHOUT.items()]
    more = HELPS_MORE.is_found(helps_more(*each, spread), because)
    return [HELPS.is_found(which, because, _table(known)), _more_on_grammar(more, known)]


def _table(known: Known) -> Table:
    lines = [*known.table_3.lines, *known.lines]
    rows = []
    for pair in WITHOUT.items():
        means = [by_seed(lines, metric, *pair).mean() for metric in ("bleu", "perplexity")]
        rows.append([HEADS[pair[0]], *(f"{mean:.2f}" for both in means for mean in both)])
    head = ["heads", "BLEU, scaled", "not scaled", "perplexity, scaled", "not scaled"]
    return Table(head, rows, "Multi30k, table 3's small scale")


def _more_on_grammar(finding: Finding, known: Known) -> Finding:
    bleu = by_seed(known.lines, "bleu", LARGE_KEYS, *ROWS).dropna()
    if bleu.empty:
        return finding
    small, large = (bleu[keys + NOT_SCALED] - bleu[keys] for keys in (SMALL_KEYS, LARGE_KEYS))
    numbers = (
        f"BLEU {small.mean():+.1f} with one head of d_k 8, {large.mean():+.1f} with one of d_k 128"
    )
    return or_by_grammar(finding, helps_more([*small], [*large]), numbers, len(bleu))


def helps_more(few: Sequence[float], many: Sequence[float], spread: Sequence[float] = ()) -> str:
    """Judges whether scaling helps more for large keys; it must help there at all.

    Args:
      few: changes without scaling for small keys, a value for each seed.
      many: changes without scaling for large keys, for the same seeds.
      spread: as in `exceeds_seeds`.
    """
    more = [b - a for a, b in zip(few, many, strict=True)]
    which = judge(more, -1, of_two(spread))
    helps_large = judge(many, -1, spread) == HOLDS
    return OPEN if which == HOLDS and not helps_large else which
