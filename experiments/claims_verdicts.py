"""From recorded results and evidence to one verdict a claim."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.claims_evidence import (
    LAST_LENGTHS,
    NO_POSITIONS,
    REFERENCE,
    SHORT_LEARNED,
    SHORT_SINUSOIDAL,
)
from transformer_jax.bench.report import Output
from transformer_jax.bench.results import Line, read_results
from transformer_jax.bench.tables import PValues, difference, of_row, read_p_values
from transformer_jax.reporting.page import Heading, Part, Picture, Table
from transformer_jax.reporting.plots import BLUE, DOTS_PER_INCH, VERMILION, finish_axes

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "not decided", "not run"
P_LARGEST = 0.05  # of a difference of BLEU that counts
RECORDED = Path(__file__).parent.parent / "docs" / "results"
HOW = ("scaled", "not scaled")
ONE_HEAD, SCALED_8, SCALED_1 = "(A) 1 head, d_k 512", "base", "(A) 1 head, d_k 512"
SETTINGS = {
    "ideal": "Queries and keys of independent entries with variance 1; entropy in nats (at most "
    "ln 64 = 4.16), gradient: norm of the softmax's Jacobian",
    "block": "One head as it is initialised, d_model 512; gradient: norm of the queries' and keys' "
    "gradients over that of the values'",
}
FAILED = 1.5  # times the perplexity: training went wrong


class Known(NamedTuple):
    """All that verdicts are taken from."""

    folder: Path  # of the claims' results
    lines: Sequence[Line]
    evidence: dict[str, Any]
    table_3: Sequence[Line]
    p_values: PValues  # of table 3
    table_2: Sequence[Line]

    def noise(self, metric: str) -> float | None:
        """Deviation of table 3's base row over its seeds."""
        base = of_row(self.table_3, "base", metric)
        return base.deviation if base else None


class Finding(NamedTuple):
    """A claim and what became of it."""

    claim: str
    section: str  # of the paper
    verdict: str
    because: str
    parts: Sequence[Part] = ()  # the numbers, where a sentence does not hold them


def judge(folder: Path, lines: Sequence[Line], evidence: dict[str, Any]) -> list[Part]:
    """The verdicts as one table, and what lies behind each."""
    table_3 = Output(RECORDED / "table3_ablations" / "small")
    known = Known(
        folder,
        lines,
        evidence,
        read_results(table_3.results),
        read_p_values(table_3.significance),
        read_results(Output(RECORDED / "table2_bleu" / "small").results),
    )
    found = [finding for claim in CLAIMS for finding in claim(known)]
    rows = [[one.claim, one.section, one.verdict, one.because] for one in found]
    parts: list[Part] = [
        Heading("Verdicts"),
        Table(["claim", "in the paper", "verdict", "because"], rows),
    ]
    for one in found:
        if one.parts:
            parts += [Heading(one.claim), *one.parts]
    return parts


def verdict(gap: float | None, wanted: int, certain: bool) -> str:
    """Of a difference that the claim says is above (wanted 1) or below 0 (-1)."""
    if gap is None:
        return NOT_RUN
    return OPEN if not certain else HOLDS if gap * wanted > 0 else FAILS


def is_certain(known: Known, row: str, metric: str) -> bool:
    """Whether a row of table 3 differs from the base row by more than chance."""
    gap = difference(known.table_3, row, "base", metric)
    if gap is None:
        return False
    if gap.deviation is not None:
        beyond_seeds = abs(gap.mean) > gap.deviation
    else:  # one seed: the base row's own deviation stands for both, and a difference has two
        noise = known.noise(metric)
        beyond_seeds = noise is not None and abs(gap.mean) > 2 * noise
    p = [p for (name, _), p in known.p_values.items() if name == row]
    return beyond_seeds and (metric != "bleu" or bool(p) and statistics.median(p) < P_LARGEST)


# The claims -------------------------------------------------------------------------------------


def scaling(known: Known) -> list[Finding]:
    """Attention's scores are divided by sqrt(d_k)."""
    measured = known.evidence["scaling at the start"]
    tables: list[Part] = [_scaling_table(measured, setting) for setting in SETTINGS]
    tables.append(_scaling_plot(known, measured))
    small, large = min(measured, key=int), max(measured, key=int)

    def change(setting: str, what: str) -> list[float]:  # with scaling, without
        first, last = measured[small], measured[large]
        return [last[how][setting][what] / first[how][setting][what] for how in HOW]

    entropy, gradient, weights = (
        change(*of) for of in (("ideal", "entropy"), ("ideal", "gradient"), ("block", "gradient"))
    )
    span = f"from d_k {small} to {large}"
    return [
        Finding(
            "Without scaling, softmax saturates as d_k grows",
            "section 3.2.1",
            HOLDS if entropy[0] > 0.8 and entropy[1] < 0.2 else FAILS,
            f"{span} the entropy of its weights falls to {entropy[1]:.0%}, with scaling to "
            f"{entropy[0]:.0%}",
            tables,
        ),
        Finding(
            "Without scaling, softmax has extremely small gradients for large d_k",
            "section 3.2.1",
            HOLDS if gradient[0] > 0.8 and gradient[1] < 0.25 else FAILS,
            f"{span} the norm of its Jacobian falls to {gradient[1]:.0%}, with scaling to "
            f"{gradient[0]:.0%}; but the gradient of the projections of queries and keys does not "
            f"({weights[1]:.0%}): without scaling it has a factor of sqrt(d_k)",
        ),
        _scaling_in_training(known),
    ]


def _scaling_table(measured: dict[str, Any], setting: str) -> Table:
    cells = [(what, how) for what in ("entropy", "gradient") for how in HOW]
    rows = [
        [d_k, *(f"{one[how][setting][what]:.3f}" for what, how in cells)]
        for d_k, one in measured.items()
    ]
    return Table(["d_k", *(f"{what}, {how}" for what, how in cells)], rows, SETTINGS[setting])


def _scaling_plot(known: Known, measured: dict[str, Any]) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    sizes = [int(d_k) for d_k in measured]
    for axes, what in zip(figure.subplots(1, 2), ("entropy", "gradient"), strict=True):
        for how, colour in zip(HOW, (BLUE, VERMILION), strict=True):
            values = [measured[str(d_k)][how]["ideal"][what] for d_k in sizes]
            axes.plot(sizes, values, "o-", color=colour, markersize=4, label=how)
        axes.set_xscale("log", base=2)
        finish_axes(axes, "d_k", what)
    axes.legend(frameon=False)
    path = known.folder / "scaling.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return Picture(path, "Softmax over scores of entries with variance 1, with and without scaling")


def _scaling_in_training(known: Known) -> Finding:
    claim = "Scaling matters in training, more for large d_k"
    gaps, rows, of_base = [], [], known.noise("bleu")
    for scaled, plain, d_k in (
        (SCALED_8, "8 heads, not scaled", 16),
        (SCALED_1, "1 head, not scaled", 128),
    ):
        both = [line for line in known.table_3 if line.row == scaled]
        both += [line for line in known.lines if line.row == plain]
        gap = difference(both, plain, scaled, "bleu")
        cells = [(metric, row) for metric in ("bleu", "perplexity") for row in (scaled, plain)]
        means = [of_row(both, row, metric) for metric, row in cells]
        if gap is None:
            return Finding(claim, "section 3.2.1", NOT_RUN, "its rows, or table 3's, are missing")
        gaps.append(gap.mean)
        rows.append([str(d_k), *(f"{one.mean:.2f}" for one in means if one)])
    decided = of_base is not None and abs(gaps[1]) > 2 * of_base
    head = ["d_k", *(f"{metric}, {how}" for metric in ("BLEU", "perplexity") for how in HOW)]
    because = f"not scaling changes BLEU by {gaps[0]:+.1f} at d_k 16, by {gaps[1]:+.1f} at d_k 128"
    which = verdict(max(gaps[1], gaps[1] - gaps[0]), -1, decided)
    return Finding(claim, "section 3.2.1", which, because, [Table(head, rows, "Small Multi30k")])


def one_head(known: Known) -> list[Finding]:
    """Table 3, (A)."""
    rows = {line.row for line in known.table_3 if line.row == "base" or line.row.startswith("(A)")}
    scores = {row: of_row(known.table_3, row, "bleu") for row in rows}
    means = {row: score.mean for row, score in scores.items() if score}
    claim, section = "One head is worse than the best setting", "table 3 (A)"
    if ONE_HEAD not in means or len(means) < 5:
        return [Finding(claim, section, NOT_RUN, "rows (A) of table 3 are missing")]
    best = max(means, key=lambda row: means[row])
    gap = means[ONE_HEAD] - means[best]
    because = (
        f"{means[ONE_HEAD]:.1f} BLEU, {gap:+.1f} against the best of (A), {best} (the paper: -0.9)"
    )
    certain = is_certain(known, ONE_HEAD, "bleu")
    return [Finding(claim, section, verdict(gap, -1, certain), because)]


def lengths(known: Known) -> list[Finding]:
    """Sinusoids may extrapolate to lengths beyond training."""
    claims = (
        "Sinusoids extrapolate to longer sentences than training had",
        "Learned positions do not",
    )
    found, section = known.evidence.get("lengths"), "section 3.5"
    if not found:
        return [Finding(claim, section, NOT_RUN, "its runs are missing") for claim in claims]
    head = ["subwords of the source", "sentences", *(row for row in found if row != "sentences")]
    starts = [1, *(last + 1 for last in LAST_LENGTHS)]
    names = [f"{a} to {b}" for a, b in zip(starts, LAST_LENGTHS, strict=False)]
    names = [*names[:-1], f"{starts[-2]} and more", f"all above {LAST_LENGTHS[0]}"]
    counts = [*found["sentences"], sum(found["sentences"][1:])]
    rows = [
        [name, str(counts[n]), *(f"{found[row][n]:.1f}" for row in head[2:])]
        for n, name in enumerate(names)
    ]
    table = Table(head, rows, f"BLEU; training had {LAST_LENGTHS[0]} subwords a side at most")
    reference, sinusoidal, learned = (
        found[row][-1] for row in (REFERENCE, SHORT_SINUSOIDAL, SHORT_LEARNED)
    )
    numbers = (
        f"beyond {LAST_LENGTHS[0]} subwords BLEU {{:.1f}}, where training on all lengths gives "
        f"{reference:.1f}"
    )
    return [
        Finding(
            claims[0],
            section,
            HOLDS if sinusoidal > reference / 2 else FAILS,
            numbers.format(sinusoidal) + "; it would hold above half of that",
            [table],
        ),
        Finding(
            claims[1],
            section,
            HOLDS if learned < reference / 2 else FAILS,
            numbers.format(learned) + f"; sinusoids {sinusoidal:.1f}",
        ),
    ]


def word_order(known: Known) -> list[Finding]:
    """Without positions the encoder sees a bag of words."""
    claim, section = "Without positions, word order is lost", "section 3.5"
    found = known.evidence.get("word order")
    if not found:
        return [Finding(claim, section, NOT_RUN, "its runs are missing")]
    with_them, without = found[REFERENCE], found[NO_POSITIONS]
    head = ["model", "same translation of a shuffled source", "exact", "right words, wrong order"]
    rows = [
        [row, *(f"{found[row][key]:.1%}" for key in ("same", "exact", "order"))] for row in found
    ]
    because = (
        f"shuffled sources are translated as before in {without['same']:.0%} of cases (with "
        f"positions {with_them['same']:.0%}); {without['exact']:.0%} of translations are exact "
        f"({with_them['exact']:.0%}), {without['order']:.0%} have the right words in another order"
    )
    lost = without["same"] > 0.95 and without["exact"] < with_them["exact"]
    return [Finding(claim, section, HOLDS if lost else FAILS, because, [Table(head, rows)])]


def linear_shifts(known: Known) -> list[Finding]:
    """PE(pos + k) is a linear function of PE(pos)."""
    found = known.evidence["shifts of positions"]
    rows = [[k, f"{one['sinusoids']:.1e}", f"{one['random']:.2f}"] for k, one in found.items()]
    worst = max(one["sinusoids"] for one in found.values())
    head = ["k", "M PE(pos) from PE(pos + k)", "the best M for vectors at random"]
    return [
        Finding(
            "PE(pos + k) is a linear function of PE(pos)",
            "section 3.5",
            HOLDS if worst < 1e-6 else FAILS,
            f"the matrix, constructed of rotations, is right to {worst:.0e} for all of 1,000 "
            "positions (float32 tables)",
            [Table(head, rows, "Relative errors, d_model 512")],
        )
    ]


def smoothing(known: Known) -> list[Finding]:
    """Table 3, (D): compared with none, smoothing hurts perplexity and helps BLEU."""
    row, section = "(D) smoothing 0.0", "section 5.4, table 3 (D)"
    findings = []
    for claim, metric, wanted, printed in (
        ("Label smoothing hurts perplexity", "perplexity", -1, "4.67 for 4.92"),
        ("Label smoothing helps BLEU", "bleu", -1, "25.3 for 25.8"),
    ):
        values = [of_row(known.table_3, name, metric) for name in (row, "base")]
        gap = difference(known.table_3, row, "base", metric)
        if gap is None or not values[0] or not values[1]:
            findings.append(Finding(claim, section, NOT_RUN, f"{row} of table 3 is missing"))
            continue
        which = verdict(gap.mean, wanted, is_certain(known, row, metric))
        because = (
            f"{values[0].mean:.2f} without it, {values[1].mean:.2f} with 0.1, {gap.mean:+.2f} seed "
            f"by seed (the paper: {printed})"
        )
        findings.append(Finding(claim, section, which, because))
    return findings


def averaging(known: Known) -> list[Finding]:
    """The same runs with and without averaging: table 2's first row and table 3's base row."""
    claim, section = "Averaging the last checkpoints helps", "section 6.1"
    last = [line for line in known.table_3 if line.row == "base"]
    mean = [line._replace(row="mean") for line in known.table_2 if line.row == "Transformer"]
    gap = difference([*last, *mean], "mean", "base", "bleu")
    if gap is None:
        return [Finding(claim, section, NOT_RUN, "table 2 at the small scale is missing")]
    certain = gap.deviation is not None and abs(gap.mean) > gap.deviation
    return [
        Finding(
            claim,
            section,
            verdict(gap.mean, 1, certain),
            f"the mean of the last 5 checkpoints has {gap.mean:+.2f} BLEU"
            + (f" ± {gap.deviation:.2f}" if gap.deviation is not None else "")
            + f" against the last one ({gap.seeds} seeds of table 3's base row)",
        )
    ]


def alignments(known: Known) -> list[Finding]:
    """Encoder-decoder attention learns word alignment."""
    claim = "Encoder-decoder attention learns word alignment"
    section = "section 3.2.3, figures 3 to 5"
    found = known.evidence.get("alignment")
    if not found:
        return [Finding(claim, section, NOT_RUN, "its run is missing")]
    heads = found["heads"]
    head = ["layer", *(f"head {n}" for n in range(1, len(heads[0]) + 1)), "mean of the heads"]
    rows = [
        [str(n), *(f"{error:.3f}" for error in (*layer, found["mean"][n - 1]))]
        for n, layer in enumerate(heads, 1)
    ]
    about = (
        f"Alignment error rate over {found['pairs']} pairs of the test split; the diagonal has "
        f"{found['diagonal']:.3f}, and one link a target word cannot have less than "
        f"{found['least']:.3f}"
    )
    best, lowest = min(map(min, heads)), min(found["mean"])
    because = (
        f"error rate {best:.2f} of the best head and {lowest:.2f} of the best layer's mean, "
        f"{found['diagonal']:.2f} of a diagonal, {found['least']:.2f} at least"
    )
    which = HOLDS if min(best, lowest) < found["diagonal"] / 2 else FAILS
    return [Finding(claim, section, which, because, [Table(head, rows, about)])]


def warm_up(known: Known) -> list[Finding]:
    """A constant rate of 1e-3, 6 layers, with and without 200 steps of warm-up."""
    findings = []
    for norm, claim, should_fail in (
        ("post", "Without warm-up, training of a post-norm model fails", True),
        ("pre", "Without warm-up, training of a pre-norm model goes well", False),
    ):
        with_it, without = (
            of_row(known.lines, f"{norm}-norm, {how}", "perplexity")
            for how in ("warm-up", "no warm-up")
        )
        if not with_it or not without:
            findings.append(Finding(claim, "section 5.3", NOT_RUN, "its runs are missing"))
            continue
        failed = without.mean > FAILED * with_it.mean
        findings.append(
            Finding(
                claim,
                "section 5.3",
                HOLDS if failed == should_fail else FAILS,
                f"perplexity {without.mean:.2f} without, {with_it.mean:.2f} with 200 steps of "
                f"warm-up; failing is more than {FAILED} times as much",
            )
        )
    return findings


CLAIMS: list[Callable[[Known], list[Finding]]] = [
    *(scaling, one_head, lengths, word_order, linear_shifts, smoothing, averaging, alignments),
    warm_up,
]
