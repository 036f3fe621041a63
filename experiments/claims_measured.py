"""The claims that measurements and probes of trained runs decide."""

from typing import Any

from experiments.claims_evidence import (
    LAST_LENGTHS,
    NO_POSITIONS,
    REFERENCE,
    SHORT_LEARNED,
    SHORT_SINUSOIDAL,
)
from experiments.claims_judging import FAILS, HOLDS, NOT_RUN, OPEN, Finding, Known
from transformer_jax.reporting.page import Part, Picture, Table
from transformer_jax.reporting.plots import BLUE, DOTS_PER_INCH, VERMILION, finish_axes

HOW = ("scaled", "not scaled")
SETTINGS = {
    "ideal": "Queries and keys of independent entries with variance 1; entropy in nats (at most "
    "ln 64 = 4.16), gradient: norm of the softmax's Jacobian",
    "block": "One head as it is initialised, d_model 512, d_v 64; gradient: norm of the queries' "
    "and keys' projections' gradient along a random direction of the output",
}
AXES = {"entropy": "entropy (nats)", "gradient": "norm of the softmax's Jacobian"}
SATURATED, TINY = 0.2, 0.1  # limits of entropy and gradient, relative to those with scaling
# Limits, relative to the BLEU of a model that saw such lengths.
EXTRAPOLATES, DOES_NOT = 0.8, 0.5
PAPER_D_K = "64"


def scaling(known: Known) -> list[Finding]:
    """Attention's scores are divided by sqrt(d_k)."""
    measured, place = known.evidence["scaling at the start"], "section 3.2.1"
    tables: list[Part] = [_scaling_table(measured, setting) for setting in SETTINGS]
    tables.append(_scaling_plot(known, measured))
    largest = max(measured, key=int)

    def share(setting: str, what: str, d_k: str) -> float:
        scaled, plain = (measured[d_k][how][setting][what] for how in HOW)
        return plain / scaled

    entropy, gradient = (share("ideal", what, largest) for what in ("entropy", "gradient"))
    return [
        Finding(
            "Without scaling, softmax saturates at large d_k",
            place,
            HOLDS if entropy < SATURATED else FAILS,
            f"without scaling the entropy of its weights is {entropy:.0%} of that with scaling at "
            f"d_k {largest}, {share('ideal', 'entropy', PAPER_D_K):.0%} at {PAPER_D_K}",
            tables,
        ),
        Finding(
            "Without scaling, softmax has extremely small gradients at large d_k",
            place,
            HOLDS if gradient < TINY else FAILS,
            f"without scaling the norm of its Jacobian is {gradient:.0%} of that with scaling at "
            f"d_k {largest}, {share('ideal', 'gradient', PAPER_D_K):.0%} at {PAPER_D_K}; the "
            "gradient of queries' and keys' projections, which has a factor of sqrt(d_k) more, is "
            f"{share('block', 'gradient', largest):.0%} at {largest}; extremely small would be "
            f"below {TINY:.0%}",
        ),
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
        for how, color in zip(HOW, (BLUE, VERMILION), strict=True):
            values = [measured[str(d_k)][how]["ideal"][what] for d_k in sizes]
            axes.plot(sizes, values, "o-", color=color, markersize=4, label=how)
        axes.set_xscale("log", base=2)
        finish_axes(axes, "d_k", AXES[what])
    axes.legend(frameon=False)
    path = known.folder / "scaling.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return Picture(path, "Softmax over scores of entries with variance 1")


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


def lengths(known: Known) -> list[Finding]:
    """Sinusoids may extrapolate to lengths beyond training."""
    claims = (
        "Sinusoids extrapolate to longer sentences than training had",
        "Learned positions do not",
    )
    found, place = known.evidence.get("lengths"), "section 3.5"
    if not found:
        return [Finding(claim, place, NOT_RUN, "its runs are missing") for claim in claims]
    reference, sinusoidal, learned = (
        found[row][-1] for row in (REFERENCE, SHORT_SINUSOIDAL, SHORT_LEARNED)
    )
    findings = []
    for claim, bleu, wanted in zip(claims, (sinusoidal, learned), (True, False), strict=True):
        far, near = bleu < DOES_NOT * reference, bleu > EXTRAPOLATES * reference
        which = OPEN if not (far or near) else HOLDS if near == wanted else FAILS
        because = (
            f"beyond {LAST_LENGTHS[0]} subwords BLEU {bleu:.1f}, where training on all lengths "
            f"gives {reference:.1f}: above {EXTRAPOLATES:.0%} of that would be extrapolation, "
            f"below {DOES_NOT:.0%} none"
        )
        findings.append(Finding(claim, place, which, because))
    return [findings[0]._replace(parts=[_lengths_table(found)]), findings[1]]


def _lengths_table(found: dict[str, Any]) -> Table:
    head = ["subwords of the source", "sentences", *(row for row in found if row != "sentences")]
    starts = [1, *(last + 1 for last in LAST_LENGTHS)]
    names = [f"{a} to {b}" for a, b in zip(starts, LAST_LENGTHS, strict=False)]
    names = [*names[:-1], f"{starts[-2]} and more", f"all above {LAST_LENGTHS[0]}"]
    counts = [*found["sentences"], sum(found["sentences"][1:])]
    rows = [
        [name, str(counts[n]), *(f"{found[row][n]:.1f}" for row in head[2:])]
        for n, name in enumerate(names)
    ]
    return Table(head, rows, f"BLEU; training had {LAST_LENGTHS[0]} subwords a side at most")


def word_order(known: Known) -> list[Finding]:
    """Without positions the encoder sees a bag of words, whatever it learns."""
    claim, place = "Without positions, word order is lost", "section 3.5"
    found = known.evidence.get("word order")
    if not found:
        return [Finding(claim, place, NOT_RUN, "its runs are missing")]
    with_them, without = found[REFERENCE], found[NO_POSITIONS]
    head = ["model", "same translation of a shuffled source", "exact", "right words, wrong order"]
    rows = [
        [row, *(f"{found[row][key]:.1%}" for key in ("same", "exact", "order"))] for row in found
    ]
    because = (
        f"shuffled sources are translated as before in {without['same']:.0%} of cases (with "
        f"positions {with_them['same']:.0%}); {without['exact']:.0%} of translations are exact "
        f"({with_them['exact']:.0%})"
    )
    lost = without["same"] > 0.95 and without["exact"] < with_them["exact"] - 0.05
    return [Finding(claim, place, HOLDS if lost else FAILS, because, [Table(head, rows)])]


def alignments(known: Known) -> list[Finding]:
    """Encoder-decoder attention learns word alignment."""
    claim = "Encoder-decoder attention learns word alignment"
    place, found = "section 3.2.3, figures 3 to 5", known.evidence.get("alignment")
    if not found:
        return [Finding(claim, place, NOT_RUN, "its run is missing")]
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
        f"{found['diagonal']:.2f} of a diagonal, {found['least']:.2f} at least; it has learnt it "
        "below half of the diagonal's"
    )
    which = HOLDS if min(best, lowest) < found["diagonal"] / 2 else FAILS
    return [Finding(claim, place, which, because, [Table(head, rows, about)])]
