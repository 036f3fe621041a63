"""Two directions of translation, rewarded where their attentions agree: error rates and BLEU.

    python -m experiments.agreement --seeds=0,1,2

The question: does a bonus for attentions that agree (Cohn et al. 2016, section 3.4) make the
attention a better alignment of words, without links, and what does it cost in BLEU?

The rows are the model of configs/demo.py in both directions on the built-in corpus, 1,000 steps of
1,000 target subwords: gamma (train.agreement_weight) 0, 0.1, 0.3 and 1. The bonus acts on
model.watched_layer, the first of two. Alignments are measured on 1,000 pairs of the test split, by
the mean of that layer's heads: the error rate against the gold links in each direction, in which
each target word is linked to one source word (0.06 is the least possible from English to German),
and that of the links that both directions have. BLEU is that of the test split, in each direction.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"Agreement lowers the error rate" holds for a gamma if the error rate, the mean of both directions,
is lower than with gamma 0, and does not if it is higher. "Agreement lowers the error rate of common
links" is the same about the links that both directions have. "Agreement costs no BLEU" holds if the
loss of BLEU, the mean of both directions, is below 1 point, and does not if it is above. Otherwise
nothing is decided.
"""

import statistics

from experiments.evidence import Evidence
from experiments.gold_alignment import PREDICTED, Pair, attention_links
from experiments.judging import Column, Rule, Value, at, more, page_of_runs
from experiments.short_demo import SHORT_DEMO, WATCHING
from experiments.translations import evaluated
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides

PAIRS = 1_000  # of the test split
WATCHED = 0  # the number of the watched layer, from 0
SMALL_LOSS = 1.0  # BLEU
BASE = "gamma 0"
ROWS: dict[str, Overrides] = {
    f"gamma {gamma:g}": {"train.agreement_weight": gamma} for gamma in (0.0, 0.1, 0.3, 1.0)
}
WAYS = {"forward": "en-de", "reverse": "de-en"}
RATE, COMMON = "error rate", "error rate of common links"


# Measurement ---------------------------------------------------------------------------------


def agreement_of(job: Job) -> Evidence:
    """Error rates of the watched layer in both directions and of common links; BLEU of both."""
    from transformer_jax.evaluation.alignment import link_scores
    from transformer_jax.text.built_in_corpus import built_in_pairs

    pairs = built_in_pairs("test", PAIRS)
    folders = dict(zip(WAYS, (job.folder, job.folder / "reverse"), strict=True))
    given = [Pair((one.src, one.tgt), (one.src_words, one.tgt_words)) for one in pairs]
    links = {
        way: attention_links(folder, given, way == "reverse")[PREDICTED][WATCHED]
        for way, folder in folders.items()
    }
    bleu = {way: evaluated(own).scores.bleu for way, own in folders.items()}
    gold = [set(pair.alignment) for pair in pairs]
    common = [a & b for a, b in zip(links["forward"], links["reverse"], strict=True)]
    return {
        RATE: {way: link_scores(links[way], gold).error_rate for way in WAYS},
        COMMON: link_scores(common, gold).error_rate,
        "bleu": bleu,
    }


# Verdicts ------------------------------------------------------------------------------------


def both_ways(name: str) -> Value:
    """The mean of both directions."""
    return lambda found: statistics.fmean(found[name][way] for way in WAYS)


RULES = [
    Rule("agreement lowers the error rate", more(both_ways(RATE)), -1, beside=(BASE,)),
    Rule("agreement lowers the error rate of common links", more(at(COMMON)), -1, beside=(BASE,)),
    Rule("agreement costs no BLEU", more(both_ways("bleu")), 1, -SMALL_LOSS, (BASE,)),
]
COLUMNS = [
    *(Column(f"BLEU, {name}", at("bleu", way), ".1f") for way, name in WAYS.items()),
    *(Column(f"{RATE}, watched layer, {x}", at(RATE, way), ".3f") for way, x in WAYS.items()),
    Column(COMMON, at(COMMON), ".3f"),
]


EXPERIMENT = Experiment(
    "agreement",
    ROWS,
    {"small": SHORT_DEMO},
    __doc__,
    findings=page_of_runs(agreement_of, RULES, COLUMNS, "BLEU and alignment error rates"),
    fixed=WATCHING,
)

if __name__ == "__main__":
    main(EXPERIMENT)
