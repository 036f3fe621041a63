"""Attention as word alignment: what it shows by itself, what links teach it, and what it can hide.

    python -m experiments.alignment --seeds=0,1,2

The questions: which word do the weights at a target position belong to, the one that the position
predicts or the one that it has just read (Koehn & Knowles 2017)? How many pairs with links between
words are needed until the attention aligns words (Mi et al. 2016; Garg et al. 2019)? Does a model
that must not look at the right words still translate (Pruthi et al. 2020)?

The rows are the model of configs/demo.py on the built-in corpus, 1,000 steps of 1,000 target
subwords: without links, with the links of 1, 10 and 100 % of the 60,000 training pairs
(train.alignment_weight 0.5), and with all links avoided (train.avoidance_weight 1). The losses act
on model.watched_layer, the first of two. Alignments are measured on 1,000 pairs of the test split
by the mean of a layer's heads: the error rate against the gold links, in which each target word is
linked to one source word (0.06 is the least possible); the share of a subword's weight that is on
the subwords of linked words; and the entropy of the weights.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"The weights belong to the predicted word" holds if, without links and for the best layer of each,
the error rate is lower when the weights of position l are taken for word l than when they are taken
for word l - 1 or for word l + 1; it does not hold if one of these two is lower. "A share of the
links is enough" holds if the watched layer's error rate is less than 0.02 above that with all
links, and does not if it is more. "Links cost no BLEU" holds if the loss of BLEU with all links is
below 1 point, and does not if it is above. "Attention can be manipulated" holds if the weight on
linked subwords falls below a tenth of that without links in every seed, and the loss of BLEU is
below 1 point; it does not hold if the weight does not fall so far, or the loss is above 1 point.
Otherwise nothing is decided.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.evidence import Evidence, Found, of_jobs, of_seeds
from experiments.judging import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    Column,
    Rule,
    Value,
    at,
    claims,
    judge,
    judged,
    means,
    more,
    side_by_side,
)
from experiments.short_demo import SHORT_DEMO, WATCHING
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.tables.results import read_results
from transformer_jax.tables.statistics import differences

PAIRS = 1_000  # of the test split
LONGEST = 256  # subwords of a sentence
ENOUGH, SMALL_LOSS, HIDDEN = 0.02, 1.0, 0.1  # error rate; BLEU; share of the weight without links
WATCHED = 0  # the number of the watched layer, from 0
LINKED: Overrides = {"data.alignments": True, "train.alignment_weight": 0.5}
BASE, FULL, AVOIDED = "no links", "all links", "links avoided"
SHARES = {"1 % of the links": 600, "10 % of the links": 6_000}
ROWS: dict[str, Overrides] = {
    BASE: {},
    **{name: {**LINKED, "data.aligned_pairs": pairs} for name, pairs in SHARES.items()},
    FULL: LINKED,
    AVOIDED: {"data.alignments": True, "train.avoidance_weight": 1.0},
}
SHIFTS = {"the word before": -1, "the predicted word": 0, "the word after": 1}
RATES, MASS, ENTROPY = "error rates", "weight on linked subwords", "entropy"


# Measurement ---------------------------------------------------------------------------------


def alignment_of(job: Job) -> Evidence:
    """For each layer's mean: error rates by shift, weight on linked subwords, entropy in nats."""
    from transformer_jax.api import load
    from transformer_jax.evaluation.alignment import cross_weights, error_rate, links, shifted
    from transformer_jax.text.built_in_corpus import built_in_pairs
    from transformer_jax.text.words import subword_words

    pairs = built_in_pairs("test", PAIRS)
    run = load(job.folder, max_length=LONGEST)
    lines = run.loaded.line_translator()
    vocabulary = run.loaded.vocabulary
    src, tgt = lines.encode_pairs(pairs)
    found: dict[int, list[Any]] = {shift: [] for shift in SHIFTS.values()}
    masses, entropies = [], []
    weights = cross_weights(run.loaded.model, run.loaded.translator.params, src, tgt)
    for pair, src_ids, tgt_ids, own_NHLM in zip(pairs, src, tgt, weights, strict=True):
        src_words = subword_words(vocabulary.pieces(src_ids), pair.src_words)
        tgt_words = subword_words(vocabulary.target.pieces(tgt_ids), pair.tgt_words)
        mean_NLM = own_NHLM.mean(1)
        for shift in found:
            words = shifted(tgt_words, shift)
            found[shift].append(links(mean_NLM[:, None], src_words, words)[:, 0])
        is_linked = np.zeros((len(pair.tgt_words) + 1, len(pair.src_words) + 1), bool)
        for i, j in pair.alignment:
            is_linked[j, i] = True  # the last row and column, of no word, stay False
        linked_LM = is_linked[tgt_words[:, None], src_words[None]]
        counted_L = linked_LM.any(1)
        masses.append((mean_NLM * linked_LM).sum(-1)[:, counted_L])
        entropies.append(-(mean_NLM * np.log(np.maximum(mean_NLM, 1e-12))).sum(-1)[:, counted_L])
    gold = [pair.alignment for pair in pairs]
    return {
        RATES: {str(s): error_rate(own, gold).tolist() for s, own in found.items()},
        MASS: np.concatenate(masses, 1).mean(1).tolist(),
        ENTROPY: np.concatenate(entropies, 1).mean(1).tolist(),
    }


# Verdicts ------------------------------------------------------------------------------------


def best_error(shift: int) -> Value:
    """The lowest error rate of a layer."""
    return lambda found: min(found[RATES][str(shift)])


WATCHED_ERROR, WATCHED_MASS = at(RATES, "0", WATCHED), at(MASS, WATCHED)
SUFFICES = [
    Rule(f"{row} is enough", more(WATCHED_ERROR), -1, ENOUGH, (FULL,), (row,)) for row in SHARES
]
COLUMNS = [
    Column("error rate, watched layer", WATCHED_ERROR, ".3f"),
    *(Column(f"best layer, {name}", best_error(shift), ".3f") for name, shift in SHIFTS.items()),
    Column(MASS, WATCHED_MASS, ".3f"),
    Column("entropy, nats", at(ENTROPY, WATCHED), ".3f"),
]


def place_of_the_weights(found: Found) -> str:
    """The verdict on "the weights belong to the predicted word"."""
    own = of_seeds(found, BASE).values()
    if not own:
        return NOT_RUN
    verdicts = [
        judge([best_error(shift)(one) - best_error(0)(one) for one in own], 1)
        for shift in SHIFTS.values()
        if shift
    ]
    return FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS


def can_be_manipulated(found: Found, losses: Sequence[float]) -> str:
    """The verdict on "attention can be manipulated"."""
    both = side_by_side(found, AVOIDED, BASE)
    shares = [WATCHED_MASS(own) / WATCHED_MASS(base) for own, base in both]
    if not shares or not losses:
        return NOT_RUN
    if max(shares) < HIDDEN:
        return judged(losses, SMALL_LOSS, -1)
    return FAILS if len(shares) > 1 else OPEN


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and what the attention of every row shows."""
    found = of_jobs(folder, jobs, alignment_of)
    lines = read_results(folder)
    losses = {row: [-gap for gap in differences(lines, row, BASE, "bleu")] for row in ROWS}
    verdicts = [
        ["the weights belong to the predicted word", place_of_the_weights(found)],
        *claims(SUFFICES, found).rows,
        ["links cost no BLEU", judged(losses[FULL], SMALL_LOSS, -1)],
        ["attention can be manipulated", can_be_manipulated(found, losses[AVOIDED])],
    ]
    return [
        Heading("Verdicts"),
        Table(["claim", "verdict"], verdicts),
        Heading("Alignment error rates, and the watched layer's weights"),
        means(COLUMNS, found, ROWS, lines),
    ]


EXPERIMENT = Experiment(
    "alignment", ROWS, {"small": SHORT_DEMO}, __doc__, findings=findings, fixed=WATCHING
)

if __name__ == "__main__":
    main(EXPERIMENT)
