"""Do models that write all subwords at once save time, and what do they lose?

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.at_once --scale=small

Non-autoregressive models, mask-predict (Ghazvininejad et al. 2019) and CTC (Libovicky and Helcl
2018), beside models that write from left to right: the base of configs/multi30k_fast.py, and one
with 6 encoder layers and 1 decoder layer, which takes most of the speed-up away (Kasai et al.
2021). English to German, 1,500 updates, on the text and on the translations of the teacher of
experiments.distillation by a beam of 4, whose vocabulary all rows have. No row is tuned; CTC has no
label smoothing, which does not help it. A step of CTC takes 2.5 times the FLOPs of the base.

Each run translates test2016 in the ways of its kind: by greedy search and a beam of 4; by
mask-predict with 1, 4 and 10 iterations and 5 lengths; by CTC in one pass. BLEU, the share of words
that repeat the word before them (in the references: 0), and the sentences a second, one at a time
and 64 together, the fastest of 3 passes over the first 64 sentences on this machine.

The rules, written before the runs, are all about differences over seeds, by Student's t, p < 0.05.
A model with another row's name is trained on the text.
"Translations teach more": BLEU of the row taught by the teacher is higher than that of the row
taught by the text, with its best way to write. "Iterations help" (mask-predict): 10 iterations give
more BLEU than 1; if this does not hold, the experiment has failed. "As good": BLEU, taught by the
teacher, is at most 1 below that of the deep encoder, taught by the teacher, with greedy search.
"Faster": more sentences a second than that search, 64 together, and one at a time. A row holds
"as good" and "faster" for its fastest way to write.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.distillation import SMALL, rate, write_text
from experiments.evidence import Evidence, Found, of_jobs, of_seeds
from experiments.judging import Column, at, judged, means, side_by_side
from experiments.short_demo import captions_of_test
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides

DEEP = "deep encoder, one decoder layer"
MODELS: dict[str, Overrides] = {
    "left to right": {},
    DEEP: {"model.num_encoder_layers": 6, "model.num_decoder_layers": 1},
    "mask-predict": {"model.parallel": "mask_predict", "decode.method": "mask_predict"},
    "CTC": {"model.parallel": "ctc", "decode.method": "ctc", "train.label_smoothing": 0.0},
}
TAUGHT: Overrides = {"data.train": ("translated",)}
TAUGHT_BY = ", taught by the teacher"
ROWS = {
    row + suffix: {**own, **taught}
    for suffix, taught in (("", {}), (TAUGHT_BY, TAUGHT))
    for row, own in MODELS.items()
}
GREEDY, ONE, FOUR, TEN = "greedy", "1 iteration", "4 iterations", "10 iterations"
LEFT_TO_RIGHT: Mapping[str, Mapping[str, Any]] = {
    GREEDY: {"beam_size": 1},
    "beam 4": {"beam_size": 4},
}
WAYS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "left to right": LEFT_TO_RIGHT,
    DEEP: LEFT_TO_RIGHT,
    "mask-predict": {ONE: {"iterations": 1}, FOUR: {"iterations": 4}, TEN: {"iterations": 10}},
    "CTC": {"one pass": {}},
}
FASTEST = {kind: next(iter(ways)) for kind, ways in WAYS.items()}
BLEU, REPEATED, ALONE, TOGETHER = "BLEU", "repeated words", "one at a time", "64 together"
SENTENCES = 64  # that speeds are measured with
LOST = 1.0  # BLEU
CLAIMS = ("translations teach more", "iterations help", "as good", "faster, 64", "faster, 1")


def kind_of(row: str) -> str:
    """The model of a row."""
    return row.removesuffix(TAUGHT_BY)


def repeated(lines: Sequence[str]) -> float:
    """The share of words, in percent, that are the word before them."""
    words = [line.split() for line in lines]
    same = sum(a == b for line in words for a, b in zip(line, line[1:], strict=False))
    return 100 * same / max(sum(map(len, words)), 1)


def measured(job: Job) -> Evidence:
    """What every way to write of a run gives."""
    from transformer_jax.api import load

    sources, references = captions_of_test(job)
    found: Evidence = {}
    for way, changes in WAYS[kind_of(job.row)].items():
        run = load(job.folder, **changes)
        found[way] = {
            BLEU: run.evaluate(sources, references).bleu,
            REPEATED: repeated(run.translate(sources)),
            ALONE: rate(run, sources[:SENTENCES], 1),
            TOGETHER: rate(run, sources[:SENTENCES], SENTENCES),
        }
    return found


def best(found: Evidence) -> float:
    """BLEU by the best way to write."""
    return float(max(way[BLEU] for way in found.values()))


def verdicts_on(found: Found, kind: str) -> list[str]:
    """The verdicts on a model, in the order of CLAIMS; empty where a claim is not about it."""
    taught = kind + TAUGHT_BY
    better = [best(one) - best(other) for one, other in side_by_side(found, taught, kind)]
    cells = [judged(better, 0, 1), "", "", "", ""]
    if kind == "mask-predict":
        own = of_seeds(found, taught).values()
        cells[1] = judged([one[TEN][BLEU] - one[ONE][BLEU] for one in own], 0, 1)
    if kind != DEEP:
        both = side_by_side(found, taught, DEEP + TAUGHT_BY)
        for n, (value, limit) in enumerate(((BLEU, -LOST), (TOGETHER, 0), (ALONE, 0)), start=2):
            gaps = [one[FASTEST[kind]][value] - deep[GREEDY][value] for one, deep in both]
            cells[n] = judged(gaps, limit, 1)
    return cells


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and what was measured of each way to write."""
    found = of_jobs(folder, jobs, measured)
    parts: list[Part] = [
        Heading("Verdicts"),
        Table(["model", *CLAIMS], [[kind, *verdicts_on(found, kind)] for kind in MODELS]),
        Heading("BLEU, repeated words (%) and sentences a second"),
    ]
    cells = []
    for row in ROWS:
        for way in WAYS[kind_of(row)]:
            forms = ((BLEU, ".1f"), (REPEATED, ".2f"), (ALONE, ".0f"), (TOGETHER, ".0f"))
            columns = [Column(name, at(way, name), form) for name, form in forms]
            [[_, *numbers]] = means(columns, found, [row]).rows
            cells.append([row, way, *numbers])
    return [*parts, Table(["row", "written by", BLEU, REPEATED, ALONE, TOGETHER], cells)]


EXPERIMENT = Experiment(
    "at_once", ROWS, {"small": SMALL}, __doc__, findings=findings, prepare=write_text
)

if __name__ == "__main__":
    main(EXPERIMENT)
