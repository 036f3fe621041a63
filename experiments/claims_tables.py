"""The claims that trained rows decide: rows of tables 2 and 3, and the claims' own rows."""

import statistics
from collections.abc import Sequence

from experiments.claims_judging import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    Finding,
    Known,
    is_certain,
    judge,
    mean_of,
    of_shared_seeds,
    on_grammar,
    or_by_grammar,
    verdict,
)
from experiments.table2_bleu import LAST
from experiments.table3_ablations import small_label
from transformer_jax.reporting.page import Table
from transformer_jax.tables.statistics import differences

# Rows of table 3, and the claims' own rows at its small scale.
ONE_HEAD, NO_SMOOTHING = "(A) 1 head, d_k 512", "(D) smoothing 0.0"
WITHOUT = {  # row with scaling -> row without
    "base": "Multi30k, 8 heads, not scaled",
    ONE_HEAD: "Multi30k, 1 head, not scaled",
}
HEADS = {"base": "8 heads of d_k 16", ONE_HEAD: "1 head of d_k 128"}
# Rows on the built-in corpus. If there is one head, its keys are as wide as the model.
UNSMOOTHED, LARGE_KEYS, SMALL_KEYS = "no smoothing", "one head", "one head of d_k 8"
RSQRT = "paper's schedule"
NOT_SCALED, AVERAGED = ", not scaled", ", averaged"  # endings of rows' names
AS_EQUAL = 0.1  # times count as equal if their ratio is as close to 1
LEARNT = 0.5  # share of the perplexity by subword frequencies; above it a model learned nothing


def headline(known: Known) -> list[Finding]:
    """Compares the Transformer and a recurrent model at equal cost (the paper: at less cost)."""
    claim = "At equal training {}, the Transformer translates better than a recurrent model"
    findings, thrice = [], "FLOPs and three times the budget"
    for cost, row, table in (
        ("FLOPs", "recurrent, equal FLOPs", known.table_2),
        (thrice, "recurrent, equal FLOPs", known.longer),
        ("time", "recurrent, equal time", known.table_2),
    ):
        gaps, place, lines = table.differences(row, "bleu"), "table 2", table.lines
        if not gaps:
            findings.append(Finding(claim.format(cost), place, NOT_RUN, "its rows are missing"))
            continue
        which = verdict(statistics.fmean(gaps), -1, is_certain(table, known.table_3, row, "bleu"))
        ours, theirs = (mean_of(lines, name, "minutes") or 0 for name in ("Transformer", row))
        if cost == "time" and abs(theirs / ours - 1) > AS_EQUAL:
            which = OPEN
        scores = {name: mean_of(lines, name, "bleu") for name in ("Transformer", row)}
        because = ", ".join(f"{name} {score:.1f} BLEU" for name, score in scores.items())
        because += f" ({ours:.1f} and {theirs:.1f} minutes)"
        if (pre := mean_of(lines, "Transformer, pre-norm", "bleu")) is not None:
            because += f"; with pre-norm the Transformer has {pre:.1f}"
        findings.append(Finding(claim.format(cost), place, which, because))
    return findings


def scaling_in_training(known: Known) -> list[Finding]:
    """Compares the same rows with and without division by sqrt(d_k)."""
    claims = "Scaling helps training", "Scaling helps training more for large d_k"
    place = "section 3.2.1"
    lines = [*known.table_3.lines, *known.lines]
    gaps: dict[str, list[float]] = {}
    rows = []
    for scaled, plain in WITHOUT.items():
        gaps[scaled] = differences(lines, plain, scaled, "bleu")
        cells = [(metric, row) for metric in ("bleu", "perplexity") for row in (scaled, plain)]
        values = [mean_of(lines, row, metric) for metric, row in cells]
        rows.append([HEADS[scaled], *("" if value is None else f"{value:.2f}" for value in values)])
    if not all(gaps.values()):
        return [Finding(claim, place, NOT_RUN, "rows are missing") for claim in claims]
    noise = known.table_3.of_base("bleu")
    few, many = gaps["base"], gaps[ONE_HEAD]
    means = statistics.fmean(few), statistics.fmean(many)
    because = (
        f"without it BLEU changes by {means[0]:+.1f} with {HEADS['base']}, by {means[1]:+.1f} with "
        f"{HEADS[ONE_HEAD]}"
    )
    helps = [judge(each, -1, noise) for each in (few, many)]
    both = helps[0] if helps[0] == helps[1] else OPEN
    head = ["heads", "BLEU, scaled", "not scaled", "perplexity, scaled", "not scaled"]
    table = Table(head, rows, "Multi30k, table 3's small scale")
    paired = of_shared_seeds(lines, [row for pair in WITHOUT.items() for row in pair])
    each = [differences(paired, plain, scaled, "bleu") for scaled, plain in WITHOUT.items()]
    finding = Finding(claims[1], place, helps_more(*each, noise), because)
    return [Finding(claims[0], place, both, because, [table]), _more_on_grammar(finding, known)]


def _more_on_grammar(finding: Finding, known: Known) -> Finding:
    rows = [keys + how for keys in (SMALL_KEYS, LARGE_KEYS) for how in ("", NOT_SCALED)]
    lines = of_shared_seeds(known.lines, rows)
    if not lines:
        return finding
    small, large = (
        differences(lines, keys + NOT_SCALED, keys, "bleu") for keys in (SMALL_KEYS, LARGE_KEYS)
    )
    numbers = (
        f"BLEU {statistics.fmean(small):+.1f} with one head of d_k 8, "
        f"{statistics.fmean(large):+.1f} with one of d_k 128"
    )
    return or_by_grammar(finding, helps_more(small, large), numbers, len(large))


def helps_more(few: Sequence[float], many: Sequence[float], noise: Sequence[float] = ()) -> str:
    """Judges whether scaling helps more for large keys; it must help there at all.

    Args:
      few: changes without scaling for small keys, a value for each seed.
      many: changes without scaling for large keys, for the same seeds.
      noise: values of one row over seeds, used if there is only one seed.
    """
    if not few:
        return OPEN
    more = [b - a for a, b in zip(few, many, strict=True)]
    # A difference of two differences has twice the variance, so 2 ** 0.5 times the deviation.
    wide = [value * 2**0.5 for value in noise]
    which = judge(more, -1, wide)
    return OPEN if which == HOLDS != judge(many, -1, noise) else which


def one_head(known: Known) -> list[Finding]:
    """Compares one head with the other rows (A) of table 3."""
    claim, place = "One head is worse than the best setting", "table 3 (A)"
    lines = known.table_3.lines
    rows = dict.fromkeys(x.row for x in lines if x.row == "base" or x.row.startswith("(A)"))
    scores = {row: mean_of(lines, row, "bleu") or 0.0 for row in rows}
    gaps = known.table_3.differences(ONE_HEAD, "bleu")
    if not gaps or len(scores) < 5:
        return [Finding(claim, place, NOT_RUN, "rows (A) of table 3 are missing")]
    best, gap = max(scores, key=lambda row: scores[row]), statistics.fmean(gaps)
    certain = is_certain(known.table_3, known.table_3, ONE_HEAD, "bleu")
    # A row below the base row is below the best; one above it is the best only if none is higher.
    which = OPEN if not certain or (gap > 0 and best != ONE_HEAD) else verdict(gap, -1, certain)
    others = ", ".join(f"{small_label(row)} {score:.1f}" for row, score in scores.items())
    because = f"{gap:+.1f} BLEU against the base row ({others}; the paper: -0.9)"
    finding = Finding(claim, place, which, because)
    # Here it is compared with one other setting, which need not be the best: it cannot refute.
    return [on_grammar(finding, known.lines, LARGE_KEYS, "bleu", -1, refutes=False)]


def smoothing(known: Known) -> list[Finding]:
    """Compares smoothing with none (table 3, D): it hurts perplexity and helps BLEU."""
    place, findings = "section 5.4, table 3 (D)", []
    for claim, metric, printed in (
        ("Label smoothing hurts perplexity", "perplexity", "4.67 and 4.92"),
        ("Label smoothing helps BLEU", "bleu", "25.3 and 25.8"),
    ):
        gaps = known.table_3.differences(NO_SMOOTHING, metric)
        if not gaps:
            findings.append(Finding(claim, place, NOT_RUN, f"{NO_SMOOTHING} of table 3 is missing"))
            continue
        certain = is_certain(known.table_3, known.table_3, NO_SMOOTHING, metric)
        without, with_it = (
            mean_of(known.table_3.lines, row, metric) for row in (NO_SMOOTHING, known.table_3.base)
        )
        because = f"{without:.2f} without it, {with_it:.2f} with 0.1 (the paper: {printed})"
        which = verdict(statistics.fmean(gaps), -1, certain)
        finding = Finding(claim, place, which, because)
        findings.append(on_grammar(finding, known.lines, UNSMOOTHED, metric, -1))
    return findings


def averaging(known: Known) -> list[Finding]:
    """Compares table 2's first row, which is averaged, with table 3's base row, which is not."""
    claim, place = "Averaging the last checkpoints helps", "section 6.1"
    lines = [line for line in known.table_3.lines if line.row == "base"]
    noise = known.table_3.of_base("bleu")
    lines += [one._replace(row="mean") for one in known.table_2.lines if one.row == "Transformer"]
    gaps = differences(lines, "mean", "base", "bleu")
    if not gaps:
        return [Finding(claim, place, NOT_RUN, "table 2 at the small scale is missing")]
    which = judge(gaps, 1, noise)
    because = (
        f"of table 3's base row the mean of the last {LAST} checkpoints has {_listed(gaps)} BLEU "
        "against the last one"
    )
    finding = Finding(claim, place, which, because)
    return [on_grammar(finding, known.lines, RSQRT + AVERAGED, "bleu", 1, base=RSQRT)]


def _listed(gaps: Sequence[float]) -> str:
    return ", ".join(f"{gap:+.2f}" for gap in gaps)


def warm_up(known: Known) -> list[Finding]:
    """Compares 200 steps of warm-up with none, at a constant learning rate."""
    claims = {
        "post": "Without warm-up, training of a post-norm model fails",
        "pre": "Without warm-up, training of a pre-norm model goes well",
    }
    frequencies, findings = known.evidence.get("frequencies"), []
    for norm, claim in claims.items():
        with_it, without = (
            mean_of(known.lines, f"{norm}-norm, {how}", "perplexity")
            for how in ("warm-up", "no warm-up")
        )
        if with_it is None or without is None or not frequencies:
            findings.append(Finding(claim, "section 5.3", NOT_RUN, "its runs are missing"))
            continue
        limit = LEARNT * frequencies["perplexity"]
        as_claimed = (without > limit) == (norm == "post")
        # If training fails with warm-up too, the runs show nothing about warm-up.
        which = OPEN if with_it > limit else HOLDS if as_claimed else FAILS
        because = (
            f"perplexity {without:.1f} without, {with_it:.1f} with 200 steps of warm-up (6 layers, "
            f"a constant rate of 1e-3, one seed); subwords' frequencies alone give "
            f"{frequencies['perplexity']:.0f}, and failing is above half of that"
        )
        findings.append(Finding(claim, "section 5.3", which, because))
    return findings
