"""Sinusoids may extrapolate to longer sentences than training had; learned positions do not.

The paper chose sinusoids for this reason (section 3.5); it does not measure it. Here models that
were trained on short sentences of the built-in corpus translate longer ones.
"""

import numpy as np

from experiments.claims.evidence import Evidence, Probe
from experiments.claims.judging import FAILS, HOLDS, OPEN, Claim, Finding, Known
from experiments.claims.reference import GRAMMAR, REFERENCE
from experiments.translations import bleu
from transformer_jax.reporting.page import Table
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import hypotheses, references

SINUSOIDS = Claim("Sinusoids extrapolate to longer sentences than training had", "section 3.5")
LEARNED = Claim("Learned positions do not", "section 3.5")
# Limits, relative to the BLEU of a model that saw such lengths.
EXTRAPOLATES, DOES_NOT = 0.8, 0.5

SHORT_SENTENCES = 12  # subwords a side, EOS included: 57 % of the corpus
LONG_SENTENCES_UNSEEN = {"data.max_length": SHORT_SENTENCES}
SHORT_SINUSOIDAL, SHORT_LEARNED = "short sentences, sinusoidal", "short sentences, learned"
ROWS = {
    SHORT_SINUSOIDAL: {**GRAMMAR, **LONG_SENTENCES_UNSEEN},
    SHORT_LEARNED: {**GRAMMAR, **LONG_SENTENCES_UNSEEN, "model.positions": "learned"},
}
LAST_LENGTHS = (12, 16, 20, 512)  # longest source of each bin: subwords, with EOS
BINS = ("1 to 12", "13 to 16", "17 to 20", "21 and more", "all above 12")


def bleu_by_length(*jobs: Job) -> Evidence:
    """BLEU of the test split in bins of the source's length in subwords, by row."""
    from transformer_jax.commands.loading import load_model

    sources, wanted = references(jobs[0])
    vocabulary = load_model(str(jobs[0].folder)).vocabulary
    lengths = [len(ids) + 1 for ids in vocabulary.encode_lines(sources)]
    bins = np.searchsorted(LAST_LENGTHS, lengths)
    found: Evidence = {"sentences": np.bincount(bins, minlength=len(LAST_LENGTHS)).tolist()}
    members = [*(np.flatnonzero(bins == n) for n in range(len(LAST_LENGTHS)))]
    for job in jobs:
        outputs = hypotheses(job) or []
        found[job.row] = [
            bleu([outputs[i] for i in own], [wanted[i] for i in own])
            for own in (*members, np.flatnonzero(bins > 0))
        ]
    return found


PROBE = Probe("lengths", bleu_by_length, (REFERENCE, SHORT_SINUSOIDAL, SHORT_LEARNED))


def findings(known: Known) -> list[Finding]:
    """Compares BLEU beyond the lengths of training with that of a model trained on all lengths."""
    found = known.evidence.get(PROBE.name)
    if not found:
        return [claim.is_not_run() for claim in (SINUSOIDS, LEARNED)]
    reference, sinusoidal, learned = (found[row][-1] for row in PROBE.rows)

    def judged(claim: Claim, bleu: float, wanted: bool, *parts: Table) -> Finding:
        far = bleu < DOES_NOT * reference
        near = bleu > EXTRAPOLATES * reference
        which = OPEN if not (far or near) else HOLDS if near == wanted else FAILS
        because = (
            f"beyond {SHORT_SENTENCES} subwords BLEU {bleu:.1f}, where training on all lengths "
            f"gives {reference:.1f}: above {EXTRAPOLATES:.0%} of that would be extrapolation, "
            f"below {DOES_NOT:.0%} none"
        )
        return claim.is_found(which, because, *parts)

    return [judged(SINUSOIDS, sinusoidal, True, _table(found)), judged(LEARNED, learned, False)]


def _table(found: Evidence) -> Table:
    head = ["subwords of the source", "sentences", *(row for row in found if row != "sentences")]
    counts = [*found["sentences"], sum(found["sentences"][1:])]
    rows = [
        [name, str(counts[n]), *(f"{found[row][n]:.1f}" for row in head[2:])]
        for n, name in enumerate(BINS)
    ]
    return Table(head, rows, f"BLEU; training had {SHORT_SENTENCES} subwords a side at most")
