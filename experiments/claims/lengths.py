"""Sinusoids may extrapolate to longer sentences than training had; learned positions do not.

The paper chose sinusoids for this reason (section 3.5); it does not measure it. The runs are those
of experiments.positions: models that were trained on short sentences of the built-in corpus
translate longer ones. A kind extrapolates if in every seed its BLEU on these is above 80 % of that
of a model trained on all lengths, and does not if it is below 50 % in every seed.
"""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.claims.judging import Claim, Finding, Known
from experiments.evidence import Evidence
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.translations import bleu
from transformer_jax.reporting.page import Table
from transformer_jax.tables.collect import hypotheses, references
from transformer_jax.tables.experiment import Job

SINUSOIDS = Claim("Sinusoids extrapolate to longer sentences than training had", "section 3.5")
LEARNED = Claim("Learned positions do not", "section 3.5")
EXTRAPOLATES, DOES_NOT = 0.8, 0.5

SHORT_SENTENCES = 12  # subwords a side, EOS included: 57 % of the corpus
LONG_SENTENCES_UNSEEN = {"data.max_length": SHORT_SENTENCES}
ALL_LENGTHS, SINUSOIDAL, LEARNED_TABLE = "all lengths", "sinusoidal", "learned"  # rows
LAST_LENGTHS = (12, 16, 20, 512)  # longest source of each bin: subwords, with EOS
BINS = ("1 to 12", "13 to 16", "17 to 20", "21 and more", "all above 12")
WITHIN, BEYOND = 0, -1  # of these bins

Lengths = Mapping[str, Mapping[int, Sequence[float]]]  # BLEU in each bin, by row and seed


def bleu_by_length(job: Job) -> Evidence:
    """BLEU of the test split in bins of the source's length in subwords."""
    from transformer_jax.use.loading import load_model

    sources, wanted = references(job)
    vocabulary = load_model(str(job.folder)).vocabulary
    lengths = [len(ids) + 1 for ids in vocabulary.encode_lines(sources)]
    bins = np.searchsorted(LAST_LENGTHS, lengths)
    members = [np.flatnonzero(bins == n) for n in range(len(LAST_LENGTHS))]
    outputs = hypotheses(job) or []
    return {
        "sentences": np.bincount(bins, minlength=len(LAST_LENGTHS)).tolist(),
        job.row: [
            bleu([outputs[i] for i in own], [wanted[i] for i in own])
            for own in (*members, np.flatnonzero(bins > 0))
        ],
    }


def by_row(found: Evidence) -> Lengths:
    """BLEU in each bin by row and seed, from answers by the label of their job."""
    lengths: dict[str, dict[int, Sequence[float]]] = {}
    for label, answer in found.items():
        row, _, seed = label.rpartition(", seed ")
        lengths.setdefault(row, {})[int(seed)] = answer[row]
    return lengths


def extrapolates(lengths: Lengths, row: str) -> str:
    """The verdict on "this row translates longer sentences than it was trained on"."""
    own = lengths.get(row, {})
    whole = lengths.get(ALL_LENGTHS, {})
    seeds = [seed for seed in own if seed in whole and whole[seed][BEYOND] > 0]
    shares = [own[seed][BEYOND] / whole[seed][BEYOND] for seed in seeds]
    if not shares:
        return NOT_RUN
    if min(shares) > EXTRAPOLATES:
        return HOLDS
    return FAILS if max(shares) < DOES_NOT else OPEN


def findings(known: Known) -> list[Finding]:
    """Judges both claims by the recorded runs of experiments.positions."""
    lengths = by_row(known.positions)
    opposite = {HOLDS: FAILS, FAILS: HOLDS}
    found = []
    for claim, row in ((SINUSOIDS, SINUSOIDAL), (LEARNED, LEARNED_TABLE)):
        which = extrapolates(lengths, row)
        if which == NOT_RUN:
            found.append(claim.is_not_run())
            continue
        because = (
            f"beyond {SHORT_SENTENCES} subwords BLEU {_mean(lengths, row, BEYOND)}, where training "
            f"on all lengths gives {_mean(lengths, ALL_LENGTHS, BEYOND)}: above "
            f"{EXTRAPOLATES:.0%} of that in every seed is extrapolation, below {DOES_NOT:.0%} in "
            f"every seed is none"
        )
        verdict = which if claim is SINUSOIDS else opposite.get(which, which)
        parts = [_table(lengths, known.positions)] if claim is SINUSOIDS else []
        found.append(claim.is_found(verdict, because, *parts))
    return found


def _mean(lengths: Lengths, row: str, which: int) -> str:
    return f"{statistics.fmean(bins[which] for bins in lengths[row].values()):.1f}"


def _table(lengths: Lengths, found: Evidence) -> Table:
    sentences = next(iter(found.values()))["sentences"]
    counts = [*sentences, sum(sentences[1:])]
    shown = [row for row in (ALL_LENGTHS, SINUSOIDAL, LEARNED_TABLE) if row in lengths]
    rows = [
        [name, str(counts[n]), *(_mean(lengths, row, n) for row in shown)]
        for n, name in enumerate(BINS)
    ]
    title = f"BLEU, mean over seeds; training had {SHORT_SENTENCES} subwords a side at most"
    return Table(["subwords of the source", "sentences", *shown], rows, title)
