"""Copying: does a model spell names right that training never showed?

    python -m experiments.copying --seeds=0,1,2

The questions: does a model that may copy the source's subwords (See et al. 2017) write more
invented names right than one that has to spell them? Does it help to copy from the translation so
far (Merity et al. 2016)? And do names need subwords that both languages share?

The rows are the model of configs/demo.py on the built-in corpus, 1,000 steps of 1,000 target
subwords, with data.invented_names 50: a tenth of the sentences have names, and in half of these the
lexicon's eight names are replaced by invented ones of three syllables, such as Kemidan, drawn anew
for each sentence. No name of one split is in another. The rows are model.output softmax, copy and
history, and softmax with a vocabulary for each language (vocabulary.separate, so that source and
target embeddings differ too). Nothing is tuned: each row has the preset's learning rate. The
softmax is a fair baseline: its vocabulary has every letter, and bytes for the rest, so it can spell
any name, and training shows it thousands of invented ones to learn that from. It has to produce a
name subword by subword; copy can take the subwords from the source.

We score the sentences with names among the 1,000 pairs of the test split (recorded answers: among
4,000 pairs of an earlier version of this corpus): each as it is, with known names, and with
invented ones in their place. A name is right if the translation has it in the form that the
reference has (Peters for Peter's), wherever it is, and as often. The table also has BLEU and exact
translations. The BLEU in the table of all runs, further down, is on the whole test split.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"The softmax spells invented names" holds if it writes more than 90 % of them right, and does not if
fewer. "Copying writes more invented names right" holds if the share with copy is above that with
softmax, and does not if it is below; "history writes more" is the same about history, which has
nothing to repeat in most sentences and so is expected to stay open. "Shared subwords help to spell"
holds if the share with softmax and one vocabulary is above that with two, and does not if it is
below. "Copying costs no BLEU" holds if, with known names, the loss of BLEU against softmax is below
1 point, and does not if it is above. Otherwise nothing is decided.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

from experiments.evidence import Evidence, of_jobs
from experiments.judging import Column, Rule, at, claims, means, more
from experiments.short_demo import SHORT_DEMO
from experiments.translations import pairs_of_test, scores, share_written
from transformer_jax.reporting.page import Heading, Part
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.text.built_in_corpus import AlignedPair

SOFTMAX, COPY, HISTORY, SEPARATE = "softmax", "copy", "history", "softmax, two vocabularies"
TWO: Overrides = {"model.tie_embeddings": False, "model.tie_output": True}
ROWS: dict[str, Overrides] = {
    **{name: {"model.output": name} for name in (SOFTMAX, COPY, HISTORY)},
    SEPARATE: {"vocabulary.separate": True, **TWO},
}
INVENTED_PERCENT = 50  # of training sentences with names
PAIRS = 1_000  # of the test split; a tenth has names
SPELLED, SMALL_LOSS = 0.9, 1.0  # share of names; BLEU
KNOWN, INVENTED = "known names", "invented names"


# Measurement ---------------------------------------------------------------------------------


@functools.cache
def named_pairs(count: int) -> dict[str, list[AlignedPair]]:
    """The pairs with names among the first of the test split, with known and invented names."""
    both = zip(pairs_of_test(count), pairs_of_test(count, invented_names=100), strict=True)
    known, invented = zip(*((one, other) for one, other in both if one != other), strict=True)
    return {KNOWN: list(known), INVENTED: list(invented)}


def names_of(job: Job) -> Evidence:
    """For known and invented names: BLEU, exact translations, words, and the names themselves."""
    from transformer_jax.api import load

    run = load(job.folder)
    pairs = named_pairs(PAIRS)
    found = Evidence()
    for kind, other in ((KNOWN, INVENTED), (INVENTED, KNOWN)):
        outputs = run.translate([pair.src for pair in pairs[kind]])
        names = [
            [
                word
                for word, else_ in zip(one.tgt_words, two.tgt_words, strict=True)
                if word != else_
            ]
            for one, two in zip(pairs[kind], pairs[other], strict=True)
        ]
        found[kind] = scores(outputs, [pair.tgt for pair in pairs[kind]])
        found[kind]["names"] = share_written(outputs, names)
    return found


# Verdicts ------------------------------------------------------------------------------------


RIGHT = at(INVENTED, "names")  # the share of invented names that are right
FORMS = {"names": ("right", ".3f"), "bleu": ("BLEU", ".1f"), "exact": ("exact", ".2f")}
COLUMNS = [
    Column(f"{kind}, {label}", at(kind, name), form)
    for kind in (KNOWN, INVENTED)
    for name, (label, form) in FORMS.items()
]


RULES = [
    Rule("the softmax spells invented names", RIGHT, 1, SPELLED, rows=(SOFTMAX,)),
    Rule("copying writes more invented names right", more(RIGHT), 1, 0, (SOFTMAX,), (COPY,)),
    Rule("history writes more invented names right", more(RIGHT), 1, 0, (SOFTMAX,), (HISTORY,)),
    Rule("shared subwords help to spell", more(RIGHT), 1, 0, (SEPARATE,), (SOFTMAX,)),
    Rule("copying costs no BLEU", more(at(KNOWN, "bleu")), -1, SMALL_LOSS, (COPY,), (SOFTMAX,)),
]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and what was measured with known and with invented names."""
    found = of_jobs(folder, jobs, names_of)
    table = means(COLUMNS, found, ROWS)
    return [Heading("Verdicts"), claims(RULES, found), Heading("Sentences with names"), table]


NAMED = {**SHORT_DEMO.overrides, "data.invented_names": INVENTED_PERCENT}
EXPERIMENT = Experiment(
    name="copying",
    rows=ROWS,
    scales={"small": SHORT_DEMO._replace(overrides=NAMED)},
    about=__doc__,
    findings=findings,
    fixed=("data",),
)

if __name__ == "__main__":
    main(EXPERIMENT)
