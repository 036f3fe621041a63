"""Does the sentence before help on real text? Debates, with the right, a random and no context.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.debates --scale=small

The question: a model that reads the sentence before a sentence often gains BLEU. Does it because it
uses that sentence, or because any second sentence keeps it from learning by heart (Kim et al. 2019;
Li et al. 2020)?

The text is the first 100,000 pairs of Europarl, English to Italian, in the order of the debates,
and its `documents-test`: one sitting of 1,669 sentences. The rows are models of 2 + 2 layers,
d_model 128, 1,500 updates of 2,500 target subwords: without context; with the sentence before, end
to end with it or as a second source (model.combination=flat); and, as the control, with a random
sentence in its place, in training and in the test. Rows with context are also tested with a random
sentence and with none. Beam 4.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"Context helps" holds for a row if its BLEU is higher than without context, and does not if it is
lower. "By what it says" holds if it is also higher than with the random sentence of the control,
and does not if it is lower. "It looks" holds if a random sentence in the test costs more than 0.5
BLEU, and does not if it costs less. The control must fail: a random sentence says nothing. With one
seed nothing is decided.
"""

import random
from collections.abc import Iterator, Sequence
from operator import methodcaller
from pathlib import Path

from experiments.evidence import Evidence
from experiments.judging import Column, Rule, at, more, page_of_runs
from experiments.several_sources import scored
from experiments.short_demo import data_file, on_text, updates, write_split
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.text.lines import TextLines

TEXT = Path("runs", "debates", "text")
SPLITS = {"train": ("train", 100_000), "valid": ("documents-valid", 1_000)}
SPLITS |= {"test": ("documents-test", 2_000)}
ALONE, JOINED, FLAT, CONTROL = "no context", "as one", "flat", "random, as one"
ROWS: dict[str, Overrides] = {
    ALONE: {},
    JOINED: {"data.context": 1},
    FLAT: {"data.context": 1, "model.sources": 2},
    CONTROL: {"data.src": "en,other"},
}
OWN, RANDOM, NONE = "own", "random", "none"
LEAST = 0.5  # BLEU
RULES = [
    Rule("context helps", more(at(OWN)), 1, beside=(ALONE,)),
    Rule("by what it says", more(at(OWN)), 1, 0, (CONTROL,), (JOINED, FLAT)),
    Rule("it looks", lambda own: own[OWN] - own[RANDOM], 1, LEAST, rows=(JOINED, FLAT)),
]
HEADS = {OWN: "as in training", RANDOM: "a random sentence", NONE: "none"}
COLUMNS = [Column(head, methodcaller("get", name), ".2f") for name, head in HEADS.items()]
TITLE = "BLEU, by the context in the test"


def write_text(folder: Path, data: Path) -> None:
    """Writes STEM.en, STEM.it, STEM.doc, and STEM.other: a random English line beside each."""
    for stem, (name, count) in SPLITS.items():
        texts = {suffix: TextLines(data / f"{name}.{suffix}.gz") for suffix in ("en", "it", "doc")}
        sides = {suffix: list(text[:count]) for suffix, text in texts.items()}
        write_split(folder, stem, {**sides, "other": shuffled(sides["en"], stem)})


def shuffled(lines: Sequence[str], stem: str) -> list[str]:
    """The lines of a split in a random order, always the same one."""
    others = list(lines)
    random.Random(stem).shuffle(others)
    return others


def prepare() -> None:
    """Writes the text."""
    write_text(TEXT, data_file("europarl-en-it"))


def ways(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The source lines of each test, with a tab before the context."""
    sentences = [line.partition("\t")[0] for line in lines]
    others = shuffled(sentences, "test")
    yield RANDOM, ["\t".join(both) for both in zip(sentences, others, strict=True)]
    yield NONE, [f"{sentence}\t" for sentence in sentences]


def measured(job: Job) -> Evidence:
    """BLEU as the row was trained, and with a random sentence and without one."""
    from transformer_jax.api import load

    bleu, sources, references = scored(job)
    found: Evidence = {OWN: bleu}
    run = load(job.folder)
    if run.config.data.context:
        for name, lines in ways(sources):
            found[name] = run.evaluate(lines, references).bleu
    return found


SMALL = on_text(
    TEXT,
    {
        "data.src": "en",
        "data.tgt": "it",
        "data.max_length": 160,
        "vocabulary.size": 8_000,
        "model.dropout": 0.1,
        **updates(1_500, every=500),
        "train.tokens_per_batch": 2_500,
        "train.row_length": 160,
        "train.peak_learning_rate": 4e-3,
        "train.warmup_steps": 200,
        "decode.max_length": 160,
    },
)
EXPERIMENT = Experiment(
    "debates",
    ROWS,
    {"small": SMALL},
    __doc__,
    findings=page_of_runs(measured, RULES, COLUMNS, TITLE),
    prepare=prepare,
)

if __name__ == "__main__":
    main(EXPERIMENT)
