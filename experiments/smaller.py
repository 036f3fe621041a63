"""What makes a model smaller or faster, alone and together, and what it costs.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.smaller --scale=small

The rows are two runs of experiments.distillation: the teacher's model, and the student with one
cheap decoder layer, taught by the teacher's translations. Each is then made smaller after training:
weights in int8 on disk (`transformer-jax quantize`), the matrices of search in bfloat16
(decode.weights), without a quarter of its heads (`transformer-jax prune` by importance, and 300
further updates at a sixth of the rate), and that in int8. What is pruned is compared with the same
run after the same further updates. Greedy search of test2016: BLEU, the megabytes of the weights on
disk, and the sentences that are translated in a second, the median of 9 passes by turns.

The rules, written before the runs, are about differences over seeds, by Student's t, p < 0.05. "It
costs little" holds if BLEU is at most 0.5 lower than that of the same run before (of the
student: than that of the teacher's model), and does not if it is more than 0.5 lower. "It is
faster" holds if more sentences are translated in a second. Int8 on disk is the control: search
computes in float32 with it, so it must not be faster.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.distillation import LARGE, SMALL, SMALLER, write_text
from experiments.evidence import Evidence, Found, of_jobs, of_seeds
from experiments.judging import judged, mean_text, side_by_side
from experiments.short_demo import captions_of_test, updates
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides

STUDENT = "translations"  # the name that experiments.distillation has for it
ROWS: dict[str, Overrides] = {LARGE: {}, STUDENT: {**SMALLER, "data.train": ("translated",)}}
TRAINED, INT8, NARROW = "as trained", "int8 on disk", "bfloat16 in search"
FURTHER_ALONE = "300 further updates"
PRUNED, BOTH = "a quarter of the heads less", "a quarter of the heads less, int8"
WAYS = (TRAINED, INT8, NARROW, FURTHER_ALONE, PRUNED, BOTH)
BLEU, SIZE, RATE = "BLEU", "megabytes on disk", "sentences a second"
GONE, LITTLE, TIMED = 0.25, 0.5, 9
FURTHER: Overrides = {**updates(300), "train.warmup_steps": 30, "train.peak_learning_rate": 1e-3}
CLAIMS = ("it costs little", "it is faster")


def megabytes(folder: Path) -> float:
    """What the weights of a run's newest checkpoint take on disk."""
    folders = [one for one in (folder / "checkpoints").iterdir() if one.name.isdigit()]
    newest = max(folders, key=lambda one: int(one.name))
    files = [file for part in ("params", "int8") for file in (newest / part).rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def searched(job: Job, ways: Mapping[str, tuple[Path, Mapping[str, Any]]]) -> Evidence:
    """BLEU, size and speed of greedy search of runs with keys of search, timed by turns."""
    from transformer_jax.api import load

    sources, references = captions_of_test(job)
    runs = {way: load(folder, beam_size=1, **own) for way, (folder, own) in ways.items()}
    found: Evidence = {
        way: {BLEU: run.evaluate(sources, references).bleu, SIZE: megabytes(ways[way][0])}
        for way, run in runs.items()
    }
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(TIMED):
        for way, run in runs.items():
            began = time.perf_counter()
            run.translate(sources)
            seconds[way].append(time.perf_counter() - began)
    for way, own in seconds.items():
        found[way][RATE] = len(sources) / statistics.median(own)
    return found


def measured(job: Job) -> Evidence:
    """What a run and each smaller one that is made of it give."""
    from transformer_jax.api import load, train
    from transformer_jax.commands.prune import prune
    from transformer_jax.commands.quantize import quantize

    with tempfile.TemporaryDirectory() as scratch:
        names = ("int8", "cut", "further", "further_cut", "both")
        folders = {name: Path(scratch, name) for name in names}
        quantize(str(job.folder), str(folders["int8"]))
        prune(str(job.folder), str(folders["cut"]), heads=GONE)
        for origin, folder in ((job.folder, "further"), (folders["cut"], "further_cut")):
            model = load(origin).config.model
            own = {f"model.{key}": getattr(model, key) for key in ("num_heads", "d_k", "d_v")}
            own |= job.overrides | {"train.init_from": str(origin), "seed": job.seed}
            own.pop("vocabulary.path")  # that of the run from which it starts
            train(job.config_file, folders[folder], {**own, **FURTHER})
        quantize(str(folders["further_cut"]), str(folders["both"]))
        return searched(
            job,
            {
                TRAINED: (job.folder, {}),
                NARROW: (job.folder, {"weights": "bfloat16"}),
                INT8: (folders["int8"], {}),
                FURTHER_ALONE: (folders["further"], {}),
                PRUNED: (folders["further_cut"], {}),
                BOTH: (folders["both"], {}),
            },
        )


def verdicts_on(found: Found, row: str, way: str) -> list[str]:
    """The verdicts on a way to make a run smaller, in the order of CLAIMS."""
    base = LARGE if way == TRAINED else row
    before = FURTHER_ALONE if way in (PRUNED, BOTH) else TRAINED
    both = [(own[way], other[before]) for own, other in side_by_side(found, row, base)]
    lost = [whole[BLEU] - small[BLEU] for small, whole in both]
    faster = [small[RATE] / whole[RATE] for small, whole in both]
    return [judged(lost, LITTLE, -1), judged(faster, 1, 1)]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and BLEU, size and speed of everything."""
    found = of_jobs(folder, jobs, measured)
    names = [(row, way) for row in ROWS for way in WAYS]
    judgments = [
        [f"{row}: {way}", *verdicts_on(found, row, way)]
        for row, way in names
        if (row, way) != (LARGE, TRAINED)
    ]
    cells = []
    for row, way in names:
        own = [one[way] for one in of_seeds(found, row).values()]
        forms = ((BLEU, ".1f"), (SIZE, ".2f"), (RATE, ".0f"))
        cells.append([row, way, *(mean_text([one[x] for one in own], form) for x, form in forms)])
    return [
        Heading("Verdicts"),
        Table(["row and what was done", *CLAIMS], judgments),
        Heading("BLEU, size and speed"),
        Table(["row", "what was done", BLEU, SIZE, RATE], cells),
    ]


EXPERIMENT = Experiment(
    "smaller", ROWS, {"small": SMALL}, __doc__, findings=findings, prepare=write_text
)

if __name__ == "__main__":
    main(EXPERIMENT)
