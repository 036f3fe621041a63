"""Distillation: what a small, fast model learns from a large one, beside what it learns from text.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.distillation --scale=small

The question: a student with one cheap decoder layer translates fast, and worse. How much of the
loss does a teacher give back, by its translations of the training text (Kim and Rush 2016,
sequence level), by what it predicts at each subword (word level), or by both? A teacher may know
its training text by heart; then its translations are the text. So there are also two teachers of
one half of the text each, which translate the half that they have not seen.

The teacher is the model of configs/multi30k_fast.py after 1,500 updates, from English to German.
The students have three encoder layers too, one SSRU layer (Kim et al. 2019), in both half of its
feed-forward network, and as many updates: on the text; on the teacher's translations (beam 4); on
those of the other halves' teachers; on the text with the teacher's predictions, and with three
times their weight; and on the other halves' translations with them. BLEU on test2016 by a beam of 4
and by greedy search, and the sentences that greedy search translates in a second, with the
teacher's.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"It helps" holds for a row if its BLEU is higher than that of the student on the text, and does not
if it is lower. "It makes the beam unnecessary" holds if greedy search costs at most half of what it
costs the student on the text, and does not if it costs more.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.evidence import Evidence
from experiments.judging import Column, Rule, at, more, page_of_runs
from experiments.short_demo import captions_of_test, updates, write_captions, write_split
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale
from transformer_jax.text.lines import TextLines

FOLDER = Path("runs", "distillation")
TEXT, TEACHER = FOLDER / "text", FOLDER / "teacher"
PAIRS = 29_000
HALVES = {"first": f"train[:{PAIRS // 2}]", "second": "rest"}  # the text of each half's teacher
KEYS: Overrides = {"data.path": str(TEXT), **updates(1_500)}
VOCABULARY = {"vocabulary.path": str(TEACHER / "vocabulary.model")}  # of all rows
SMALLER = {
    "model.decoder": "ssru",
    "model.num_encoder_layers": 3,
    "model.num_decoder_layers": 1,
    "model.d_ff": 256,
}
TAUGHT = {"train.teacher": str(TEACHER)}
LARGE, ALONE = "the teacher's model", "text"
ROWS: dict[str, Overrides] = {
    LARGE: {},
    ALONE: {},
    "translations": {"data.train": ("translated",)},
    "translations of unseen text": {"data.train": ("crossed",)},
    "predictions": TAUGHT,
    "predictions, 3 times": {**TAUGHT, "train.distillation_weight": 3.0},
    "both": {"data.train": ("crossed",), **TAUGHT},
}
ROWS = {row: own if row == LARGE else {**SMALLER, **own} for row, own in ROWS.items()}
BEAM, GREEDY, RATE = "beam 4", "greedy", "sentences a second"
HALF = 0.5
TIMED = 3  # passes over the sentences; the fastest one counts


def write_text() -> None:
    """Trains the teachers, and writes the texts of all rows."""
    from transformer_jax.api import load, train

    if (TEXT / "crossed.de").exists():
        return
    write_captions(TEXT)
    whole = {suffix: list(TextLines(TEXT / f"train.{suffix}")) for suffix in ("en", "de")}
    half = PAIRS // 2
    write_split(TEXT, "rest", {suffix: lines[half:] for suffix, lines in whole.items()})
    train("configs/multi30k_fast.py", TEACHER, KEYS)
    for name, text in HALVES.items():
        own = {**KEYS, **VOCABULARY, "data.train": (text,)}
        train("configs/multi30k_fast.py", FOLDER / name, own)
    english = whole["en"]
    write_split(TEXT, "translated", {"en": english, "de": load(TEACHER).translate(english)})
    crossed = [
        *load(FOLDER / "second").translate(english[:half]),
        *load(FOLDER / "first").translate(english[half:]),
    ]
    write_split(TEXT, "crossed", {"en": english, "de": crossed})


def searched(job: Job) -> Evidence:
    """BLEU by both searches, and how many sentences greedy search translates in a second."""
    from transformer_jax.api import load

    sources, references = captions_of_test(job)
    found: Evidence = {BEAM: load(job.folder, beam_size=4).evaluate(sources, references).bleu}
    greedy = load(job.folder, beam_size=1)
    found[GREEDY] = greedy.evaluate(sources, references).bleu
    return found | {RATE: rate(greedy, sources, len(sources))}


def rate(run: Any, sentences: Sequence[str], together: int) -> float:
    """How many sentences a run translates in a second, if it gets `together` at a time."""
    groups = [sentences[n : n + together] for n in range(0, len(sentences), together)]
    seconds = []
    for _ in range(TIMED + 1):
        began = time.perf_counter()
        for group in groups:
            run.translate(group)
        seconds.append(time.perf_counter() - began)
    return len(sentences) / min(seconds[1:])  # the first pass compiles


def lost(found: Evidence) -> float:
    """What greedy search costs, in BLEU."""
    return float(found[BEAM] - found[GREEDY])


STUDENTS = tuple(row for row in ROWS if row not in (LARGE, ALONE))
RULES = [
    Rule("it helps", more(at(BEAM)), 1, 0, (ALONE,), STUDENTS),
    Rule(
        "it makes the beam unnecessary",
        lambda own, base: lost(own) - HALF * lost(base),
        wanted=-1,
        beside=(ALONE,),
        rows=STUDENTS,
    ),
]
COLUMNS = [Column(x, at(x), form) for x, form in ((BEAM, ".1f"), (GREEDY, ".1f"), (RATE, ".0f"))]
TITLE = "BLEU by beam and greedy search, and greedy search's speed"
SMALL = Scale("configs/multi30k_fast.py", {**KEYS, **VOCABULARY}, seeds=(0, 1, 2), compared=False)
EXPERIMENT = Experiment(
    "distillation",
    ROWS,
    {"small": SMALL},
    __doc__,
    findings=page_of_runs(searched, RULES, COLUMNS, TITLE),
    prepare=write_text,
)

if __name__ == "__main__":
    main(EXPERIMENT)
