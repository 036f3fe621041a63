"""Which explanation of attention finds the right words, and still does where attention lies?

    python -m experiments.explanations --scale=small

The question: attention weights are read as an explanation, but a model can be trained so that they
avoid the right words and translates as before (Pruthi et al. 2020). A method that says which source
words a translated word comes from is faithful if that does not deceive it.

The rows are two of experiments.alignment: the model of configs/demo.py on the built-in corpus,
1,000 steps of 1,000 target subwords, without links, and with the right words avoided by the weights
of the watched layer, the first of two. The methods are those of `attention --explain` but `flow`,
which is too slow, beside the weights of the watched layer and those of the last one. Each gives a
map from target to source subwords of 500 pairs of the test split; each target word is linked to one
source word, and the links are compared with the gold links (0.06 is the least error possible).

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"Better than weights" holds for a method if, without links, its error rate is below that of the
better layer's weights, and does not if it is above. "It bears a lie" holds if its error rate is
less than 0.1 higher where the right words are avoided, and does not if it is more than that: the
watched layer's weights are the control that must fail. "It is about the predicted word" holds if
its error rate is lower when position l is taken for word l than for word l - 1, and does not if it
is higher. "Made-up words have less of the source" holds if the share of the source by alti is lower
where each line has the next line's source, from which no model would write it, and does not if it
is higher.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.alignment import AVOIDED, BASE, LONGEST
from experiments.alignment import ROWS as ALIGNED
from experiments.evidence import Evidence, Found, of_jobs, of_seeds
from experiments.judging import Column, at, judged, means, side_by_side
from experiments.short_demo import SHORT_DEMO, WATCHING
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job

PAIRS = 500  # of the test split
WATCHED, LAST = "weights, watched layer", "weights, last layer"
METHODS = ("rollout", "norms", "alti", "gradient", "leave_one_out")
WAYS = (WATCHED, LAST, *METHODS)
READ, PREDICTED, SHARE = "the word before", "the predicted word", "share of the source"
RIGHT, MADE_UP = "right source", "the next line's source"
LITTLE = 0.1  # error rate
CLAIMS = ("better than weights", "it bears a lie", "it is about the predicted word")
LESS = "made-up words have less of the source"


# Measurement ---------------------------------------------------------------------------------


def explained_by(job: Job) -> Evidence:
    """Error rates of each way, for the predicted word and the one before; shares of the source."""
    from transformer_jax.api import load
    from transformer_jax.evaluation.alignment import align_words, cross_weights, error_rate
    from transformer_jax.text.built_in_corpus import built_in_pairs

    pairs = built_in_pairs("test", PAIRS)
    loaded = load(job.folder, max_length=LONGEST).loaded
    model = loaded.model, loaded.translator.params
    src, tgt = loaded.line_translator().encode_pairs(pairs)
    words = [(pair.src_words, pair.tgt_words) for pair in pairs]
    given = *model, loaded.vocabulary, src, tgt, words
    gold = [pair.alignment for pair in pairs]
    found: Evidence = {}
    for way in WAYS:
        explain, layer = way if way in METHODS else None, -1 if way == LAST else 0
        found[way] = {}
        for name, shift in ((READ, -1), (PREDICTED, 0)):
            aligned = align_words(*given, explain=explain, shift=shift)
            found[way][name] = float(error_rate([one.mean_NJ[layer] for one in aligned], gold))
    sources = {RIGHT: src, MADE_UP: [*src[1:], src[0]]}
    found[SHARE] = {
        name: statistics.fmean(
            float(map_LM[:-1].sum(-1).mean())
            for [[map_LM]] in cross_weights(*model, own, tgt, explain="alti")
        )
        for name, own in sources.items()
    }
    return found


# Verdicts ------------------------------------------------------------------------------------


def verdicts_on(found: Found, way: str) -> list[str]:
    """The verdicts on a way to explain, in the order of CLAIMS."""
    base, both = of_seeds(found, BASE).values(), side_by_side(found, BASE, AVOIDED)

    def error(own: Evidence, way: str, word: str = PREDICTED) -> float:
        return float(own[way][word])

    better = [error(own, way) - min(error(own, x) for x in WAYS[:2]) for own in base]
    lies = [error(avoided, way) - error(own, way) for own, avoided in both]
    places = [error(own, way, READ) - error(own, way) for own in base]
    return [
        judged(better, 0, -1) if way in METHODS else "",
        judged(lies, LITTLE, -1),
        judged(places, 0, 1),
    ]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, error rates, and shares of the source."""
    found = of_jobs(folder, jobs, explained_by)
    shares = [own[SHARE] for own in found.values()]
    less = judged((own[MADE_UP] - own[RIGHT] for own in shares), 0, -1)
    errors = [["method", *(f"{row}, {word}" for row in ROWS for word in (PREDICTED, READ))]]
    for way in WAYS:
        columns = [Column(word, at(way, word), ".3f") for word in (PREDICTED, READ)]
        cells = (cell for _, *own in means(columns, found, ROWS).rows for cell in own)
        errors.append([way, *cells])
    return [
        Heading("Verdicts"),
        Table(["method", *CLAIMS], [[way, *verdicts_on(found, way)] for way in WAYS]),
        Table(["claim", "verdict"], [[LESS, less]]),
        Heading("Error rates"),
        Table(errors[0], errors[1:]),
        Heading("Share of the source, by alti"),
        means([Column(x, at(SHARE, x), ".3f") for x in (RIGHT, MADE_UP)], found, ROWS),
    ]


ROWS = {row: ALIGNED[row] for row in (BASE, AVOIDED)}
EXPERIMENT = Experiment(
    "explanations", ROWS, {"small": SHORT_DEMO}, __doc__, findings=findings, fixed=WATCHING
)

if __name__ == "__main__":
    main(EXPERIMENT)
