"""Coverage: which words a translation drops, and which it writes too often.

    python -m experiments.coverage --seeds=0,1,2

The question: a model that knows what it has already translated should neither leave words out nor
translate them twice. Do a memory of past attention (Tu et al. 2016; Mi et al. 2016), a loss (See et
al. 2017) or a penalty in search (Wu et al. 2016) make a Transformer drop or double fewer words, and
what do they cost in BLEU?

The rows are the model of configs/demo.py on the built-in corpus, 1,000 steps of 1,000 target
subwords: without coverage; with model.attention_memory coverage, coverage_gru and
coverage_embedding in both layers; with train.coverage_weight 1, See's, on model.watched_layer; and
the model without coverage, searched with decode.coverage_penalty 0.2, Wu's. Nothing is tuned: each
row has one setting, that of its paper, and the preset's learning rate.

Words are counted in the translations of the test split (1,000 pairs), in lower case and without
punctuation marks. A source word is linked to words of the reference by the gold alignment. It is
dropped if none of them is in the translation, and doubled if one of them is more often in the
translation than in the reference. Both are shares of the source words that have links. Where a word
is in the sentence does not count, so a word that is dropped in one place and written in another is
kept. A wrong word, or a wrong form of the right one, counts as dropped, and as doubled if the
reference has it elsewhere, so both shares also count errors that coverage is not meant to prevent.
Two further columns, which no verdict uses, avoid this. They compare lengths: by how many words
translations are shorter, or longer, than their references.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"Drops fewer words" holds for a row if its share of dropped words is below that without coverage,
and does not if it is above; "doubles fewer words" is the same about doubled ones. "Costs no BLEU"
holds if the loss of BLEU is below 1 point, and does not if it is above. Otherwise nothing is
decided. With ten differences in words, 40 % of such tables have one that is due to chance.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from experiments.evidence import Evidence, of_jobs
from experiments.judging import Column, Rule, at, more, page
from experiments.short_demo import SHORT_DEMO
from experiments.translations import bleu, pairs_of_test, words_of
from transformer_jax.reporting.page import Part
from transformer_jax.tables.collect import hypotheses
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.text.built_in_corpus import AlignedPair

BASE, PENALTY = "no coverage", "coverage penalty in search"
MEMORIES = ("coverage", "coverage_gru", "coverage_embedding")
ROWS: dict[str, Overrides] = {
    BASE: {},
    **{f"memory {name}": {"model.attention_memory": name} for name in MEMORIES},
    "coverage loss": {"train.coverage_weight": 1.0},
}
BETA = 0.2  # of the penalty
SMALL_LOSS = 1.0  # BLEU
RULES = [
    Rule("drops fewer words", more(at("dropped")), -1, beside=(BASE,)),
    Rule("doubles fewer words", more(at("doubled")), -1, beside=(BASE,)),
    Rule("costs no BLEU", more(at("bleu")), 1, -SMALL_LOSS, (BASE,)),
]
COLUMNS = [
    Column("dropped, %", at("dropped"), ".2f"),
    Column("doubled, %", at("doubled"), ".2f"),
    Column("too few words, %", at("short"), ".2f"),
    Column("too many words, %", at("long"), ".2f"),
    Column("BLEU", at("bleu"), ".2f"),
]


# Measurement ---------------------------------------------------------------------------------


def faults(pair: AlignedPair, output: str) -> tuple[int, int, int]:
    """The numbers of source words that have links, that are dropped and that are doubled."""
    wanted, written = (Counter(words_of(line.lower())) for line in (pair.tgt, output))
    linked = defaultdict[int, set[str]](set)
    for i, j in pair.alignment:
        if (word := pair.tgt_words[j].lower()) in wanted:  # no punctuation mark
            linked[i].add(word)
    dropped = [own for own in linked.values() if not own & written.keys()]
    doubled = [own for own in linked.values() if any(written[w] > wanted[w] for w in own)]
    return len(linked), len(dropped), len(doubled)


def counted(outputs: Sequence[str], pairs: Sequence[AlignedPair]) -> Evidence:
    """Percentages of source words dropped and doubled, and of words missing or left over; BLEU."""
    found = [faults(pair, output) for pair, output in zip(pairs, outputs, strict=True)]
    linked, dropped, doubled = (sum(numbers) for numbers in zip(*found, strict=True))
    lengths = [len(words_of(pair.tgt)) for pair in pairs]
    more = [len(words_of(out)) - own for out, own in zip(outputs, lengths, strict=True)]
    return {
        "dropped": 100 * dropped / linked,
        "doubled": 100 * doubled / linked,
        "short": 100 * sum(-gap for gap in more if gap < 0) / sum(lengths),
        "long": 100 * sum(gap for gap in more if gap > 0) / sum(lengths),
        "bleu": bleu(outputs, [pair.tgt for pair in pairs]),
    }


def counts_of(job: Job) -> Evidence:
    """What is counted in a run's own translations."""
    outputs = hypotheses(job) or []
    return counted(outputs, pairs_of_test(len(outputs)))


def with_penalty(job: Job) -> Evidence:
    """What is counted if the same model is searched with the penalty."""
    from transformer_jax.api import load

    pairs = pairs_of_test(len(hypotheses(job) or []))
    run = load(job.folder, coverage_penalty=BETA)
    return counted(run.translate([pair.src for pair in pairs]), pairs)


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and what was counted for every row."""
    searched = [job._replace(row=PENALTY) for job in jobs if job.row == BASE]  # the same runs
    found = {**of_jobs(folder, jobs, counts_of), **of_jobs(folder, searched, with_penalty)}
    return page(RULES, COLUMNS, found, (*ROWS, PENALTY), "Words and BLEU")


EXPERIMENT = Experiment(
    "coverage", ROWS, {"small": SHORT_DEMO}, __doc__, findings=findings, fixed=("data",)
)

if __name__ == "__main__":
    main(EXPERIMENT)
