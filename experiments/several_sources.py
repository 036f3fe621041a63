"""Two source sentences: which way to combine them profits, which breaks, and which never looked.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.several_sources --scale=short

The questions: does a model that reads a caption in German and in French translate it into English
better than one that reads one of them? Do the combinations of encoder-decoder attention (Libovicky
et al. 2018) add anything to reading both as one sentence (Dabre et al. 2017)? And what does each do
where a sentence is wrong or missing, which it never met in training?

The rows are the model of configs/multi30k_fast.py on Multi30k: German alone, French alone, both end
to end as one sentence (model.sources=1), and both with each model.combination. `serial` and
`hierarchical` have more matrices of attention, so their feed-forward networks are narrower (d_ff
384 instead of 512): all rows have the same number of parameters within 1 %. Beside them stand the
two single models together: of their 4 best translations each, the one with the highest mean of both
scores (log probability over length penalty). Beam 4, test2016. A sentence is wrong if it is that of
the next caption, and missing if it is empty.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"Two sentences help" holds for a row if its BLEU is higher than that of the better single model, and
does not if it is lower. "Better than end to end" is the same against that row. "It looks at both"
holds if the wrong French and the wrong German sentence each cost more than 1 BLEU, and does not if
one costs less. "It breaks without one" holds if the BLEU with one sentence missing, the mean over
which, is below half of the mean of the single models, and does not if it is above. With one seed
nothing is decided.
"""

import math
import statistics
from collections.abc import Sequence
from operator import methodcaller
from pathlib import Path

import jax

from experiments.evidence import Evidence, answers, of_jobs
from experiments.judging import Column, Rule, at, more, page
from experiments.short_demo import updates
from experiments.translations import bleu, evaluated
from transformer_jax.reporting.page import Part
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale

GERMAN, FRENCH, JOINED = "German alone", "French alone", "end to end"
TWO = {"data.src": "de,fr", "data.tgt": "en"}
NARROW = {"model.d_ff": 384}
COMBINED: dict[str, Overrides] = {
    "flat": {},
    "parallel": {},
    "serial": NARROW,
    "hierarchical": NARROW,
}
ROWS: dict[str, Overrides] = {
    GERMAN: {"data.src": "de", "data.tgt": "en"},
    FRENCH: {"data.src": "fr", "data.tgt": "en"},
    JOINED: TWO,
    **{
        name: {**TWO, "model.sources": 2, "model.combination": name, **more}
        for name, more in COMBINED.items()
    },
}
RIGHT, TOGETHER = "both right", "two models"
WAYS = {  # of the two sentences, German first
    RIGHT: lambda german, french: (german, french),
    "wrong French": lambda german, french: (german, [*french[1:], french[0]]),
    "wrong German": lambda german, french: ([*german[1:], german[0]], french),
    "no French": lambda german, french: (german, [""] * len(french)),
    "no German": lambda german, french: ([""] * len(german), french),
}
SMALL_LOSS, BROKEN, BEST = 1.0, 0.5, 4  # BLEU; a share; translations of each single model


# Measurement ---------------------------------------------------------------------------------


def scored(job: Job) -> tuple[float, list[str], list[str]]:
    """The run's BLEU on its test split, and the sources and references of the split."""
    own = evaluated(job.folder)
    return own.scores.bleu, [pair.src for pair in own.pairs], [pair.tgt for pair in own.pairs]


def by_way(job: Job) -> Evidence:
    """The number of parameters, and BLEU with both sentences, and with one wrong or missing."""
    from transformer_jax.api import load

    run = load(job.folder)
    sizes = [x.size for x in jax.tree.leaves(run.loaded.translator.params)]
    score, sources, references = scored(job)
    found: Evidence = {"parameters": sum(sizes), RIGHT: score}
    if "," not in run.config.data.src:
        return found
    german, french = zip(*(line.split("\t") for line in sources), strict=True)
    for name, way in WAYS.items():
        lines = ["\t".join(both) for both in zip(*way(german, french), strict=True)]
        found[name] = run.evaluate(lines, references).bleu
    return found


def together(*jobs: Job) -> Evidence:
    """BLEU of the translations that two models like best, of those that either finds."""
    from transformer_jax.api import load

    runs = [load(job.folder) for job in jobs]
    texts = [scored(job) for job in jobs]
    lists = [run.n_best(sources, BEST) for run, (_, sources, _) in zip(runs, texts, strict=True)]
    found = [
        list(dict.fromkeys(one.text for own in line for one in own))
        for line in zip(*lists, strict=True)
    ]
    owner = [number for number, line in enumerate(found) for _ in line]
    targets = [text for line in found for text in line]
    scores = [
        run.score([sources[i] for i in owner], targets)
        for run, (_, sources, _) in zip(runs, texts, strict=True)
    ]
    best: dict[int, tuple[float, str]] = {}
    for number, text, *own in zip(owner, targets, *scores, strict=True):
        total = sum(one.score for one in own)
        best[number] = max(best.get(number, (-math.inf, "")), (total, text))
    lines = [best[number][1] for number in range(len(found))]
    return {RIGHT: bleu(lines, texts[0][2])}


# Verdicts ------------------------------------------------------------------------------------


SINGLE, BOTH = (GERMAN, FRENCH), (JOINED, *COMBINED)
RULES = [
    Rule(
        "two sentences help",
        lambda own, *single: own[RIGHT] - max(one[RIGHT] for one in single),
        wanted=1,
        beside=SINGLE,
        rows=BOTH,
    ),
    Rule("better than end to end", more(at(RIGHT)), 1, 0, (JOINED,), BOTH),
    Rule(
        "it looks at both",
        lambda own: own[RIGHT] - max(own["wrong French"], own["wrong German"]),
        wanted=1,
        limit=SMALL_LOSS,
        rows=BOTH,
    ),
    Rule(
        "it breaks without one",
        lambda own, *single: (
            statistics.fmean((own["no French"], own["no German"]))
            / statistics.fmean(one[RIGHT] for one in single)
        ),
        wanted=-1,
        limit=BROKEN,
        beside=SINGLE,
        rows=BOTH,
    ),
]
COLUMNS = [
    Column("parameters", methodcaller("get", "parameters"), ",.0f"),
    *(Column(name, methodcaller("get", name), ".1f") for name in WAYS),
]
TITLE = "BLEU with both sentences, and with one wrong or missing"


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and what was measured of every row."""
    job_of = {(job.row, job.seed): job for job in jobs}
    german, french = ({job.seed for job in jobs if job.row == row} for row in SINGLE)
    names = {seed: f"{TOGETHER}, seed {seed}" for seed in sorted(german & french)}
    pairs = {name: [job_of[row, seed] for row in SINGLE] for seed, name in names.items()}
    kept = answers(folder, {name: (own, together) for name, own in pairs.items()})
    found = of_jobs(folder, jobs, by_way)
    of_two = {(TOGETHER, seed): kept[name] for seed, name in names.items() if name in kept}
    return page(RULES, COLUMNS, {**found, **of_two}, [*ROWS, TOGETHER], TITLE)


def scale_of(count: int, warmup: int, seeds: Sequence[int]) -> Scale:
    """A scale with this number of updates."""
    lengths = {"data.max_length": 128, "train.row_length": 128}
    keys = {**updates(count), "train.warmup_steps": warmup, **lengths}
    return Scale("configs/multi30k_fast.py", keys, seeds=tuple(seeds), compared=False)


EXPERIMENT = Experiment(
    name="several_sources",
    rows=ROWS,
    scales={"short": scale_of(500, 100, (0,)), "full": scale_of(3_000, 300, (0, 1, 2))},
    about=__doc__,
    findings=findings,
)

if __name__ == "__main__":
    main(EXPERIMENT)
