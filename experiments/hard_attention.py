"""Attention to one source position: is it a better alignment of words, and a better translator?

    python -m experiments.hard_attention --seeds=0,1,2

The question: soft attention reads a mean of all source positions. Attention that reads one position
for each word is closer to an alignment of words, and is harder to train, since no gradient passes
through a choice. Does it align words better than soft attention, what does it cost in BLEU, and
does it give the translations of the test split a higher probability, as Shankar et al. (2018) find
for the exact sum over the positions?

The rows are the model of configs/demo.py on the built-in corpus, 1,000 steps of 1,000 target
subwords: soft attention; in all layers, straight-through choices with Gumbel noise
(model.cross_normalizer=gumbel); the sum over the five best positions of the watched layer, at the
output (model.output=marginal); and draws in the watched layer, which learns by REINFORCE
(train.hard_attention=reinforce; Xu et al. 2015). The watched layer is the first of two. `gumbel`
makes hard choices in search too. `reinforce` draws only in training; in search it uses the weights
themselves, like soft attention. On the test split (1,000 pairs): BLEU by beam search; the error
rate of the watched layer's mean weights against the gold links, in which each target word is linked
to one source word (0.06 is the least possible); and the negative log likelihood of the references
in nats per subword.

The rules, written before the runs; all are about differences over seeds between a row and soft
attention, by Student's t, p < 0.05. "It aligns words better" holds if the error rate is lower, and
does not if it is higher. "It costs no BLEU" holds if the loss is below 1 point, and does not if it
is above. "It makes the references likelier" holds if their nats per subword are lower, and does not
if they are higher. Otherwise nothing is decided.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.evidence import Evidence, Found, of_jobs
from experiments.judging import Column, Rule, at, judged, means, more
from experiments.short_demo import SHORT_DEMO, WATCHING
from experiments.translations import pairs_of_test
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.tables.results import read_results
from transformer_jax.tables.statistics import differences

PAIRS = 1_000  # the test split
LONGEST = 256  # subwords of a sentence
WATCHED = 0  # the number of the watched layer, from 0
SMALL_LOSS = 1.0  # BLEU
BASE = "soft"
ROWS: dict[str, Overrides] = {
    BASE: {},
    "gumbel": {"model.cross_normalizer": "gumbel"},
    "marginal": {"model.output": "marginal"},
    "reinforce": {"train.hard_attention": "reinforce"},
}
ERRORS, NATS = "error rate", "nats per subword"


def measured(job: Job) -> Evidence:
    """The error rate of the watched layer, and the negative log likelihood of the references."""
    from transformer_jax.api import load
    from transformer_jax.evaluation.alignment import alignment_error_rates

    loaded = load(str(job.folder), max_length=LONGEST).loaded
    pairs = pairs_of_test(PAIRS)
    params = loaded.translator.params
    lines = loaded.line_translator()
    errors = alignment_error_rates(loaded.model, params, loaded.vocabulary, pairs)
    scores = list(lines.score([pair.src for pair in pairs], [pair.tgt for pair in pairs]))
    nats = -sum(one.log_prob for one in scores)
    subwords = sum(one.length for one in scores)
    return {ERRORS: float(errors.mean_N[WATCHED]), NATS: nats / subwords}


ALIGNS = Rule("it aligns words better", more(at(ERRORS)), -1, beside=(BASE,))
LIKELIER = Rule("it makes the references likelier", more(at(NATS)), -1, beside=(BASE,))
COLUMNS = [
    Column(f"{NATS}, test", at(NATS), ".3f"),
    Column(f"{ERRORS}, watched layer", at(ERRORS), ".3f"),
]


def verdicts(found: Found, losses: Sequence[float], row: str) -> list[str]:
    """The verdicts on a row: error rate, BLEU and nats; `losses` are of BLEU, one for each seed."""
    aligns, likelier = (rule.verdict(found, row) for rule in (ALIGNS, LIKELIER))
    return [aligns, judged(losses, SMALL_LOSS, -1), likelier]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and what was measured of every row."""
    found = of_jobs(folder, jobs, measured)
    lines = read_results(folder)
    judgments = []
    for row in [row for row in ROWS if row != BASE]:
        losses = [-gap for gap in differences(lines, row, BASE, "bleu")]
        judgments.append([row, *verdicts(found, losses, row)])
    return [
        Heading("Verdicts"),
        Table(["row", ALIGNS.claim, "it costs no BLEU", LIKELIER.claim], judgments),
        Heading("BLEU, likelihood and alignment error rates"),
        means(COLUMNS, found, ROWS, lines),
    ]


EXPERIMENT = Experiment(
    "hard_attention", ROWS, {"small": SHORT_DEMO}, __doc__, findings=findings, fixed=WATCHING
)

if __name__ == "__main__":
    main(EXPERIMENT)
