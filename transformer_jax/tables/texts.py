"""The texts of runs, by their SHA-256 sums: those of one table must be the same."""

import functools
from collections.abc import Sequence

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import RunError
from transformer_jax.files import read_utf8
from transformer_jax.runs.evaluations import text_digest
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import Line
from transformer_jax.text.corpora import open_corpus

# Texts of a run. The sums of the first two are in its corpus.sha256, those of the scored split in
# its evaluation.
TRAIN, VALID = "training split", "validation split"
SOURCES, REFERENCES = "sources", "references"


def trained_on(job: Job) -> dict[str, str]:
    """SHA-256 sums of the texts that a run was trained on; empty if its folder is gone."""
    path = RunFolder(job.folder).corpus_file
    sums = (read_utf8(path).split() or [""]) if path.is_file() else []
    return dict(zip((TRAIN, VALID), sums, strict=False))


def text_sums(data: DataConfig, split: str) -> dict[str, str]:
    """SHA-256 sums of the texts here: of training, of validation, and of both sides of `split`."""
    corpus = open_corpus(data)
    pairs = corpus.split(split)
    return {
        TRAIN: corpus.fingerprint("train"),
        VALID: corpus.fingerprint("valid"),
        SOURCES: text_digest(pair.src for pair in pairs),
        REFERENCES: text_digest(pair.tgt for pair in pairs),
    }


def check_texts(lines: Sequence[Line], jobs: Sequence[Job], missing: Sequence[Job]) -> None:
    """Checks that recorded runs had the text that missing ones will have.

    Rows may differ in their data: a run is compared with the missing ones of its own.

    Args:
      lines: the recorded runs.
      jobs: those of the whole table.
      missing: runs that are to be trained.

    Raises:
      RunError: a recorded run had other text.
    """

    sums = functools.cache(text_sums)
    recorded = {(line.row, line.seed): line for line in lines}
    to_read = {job.config().data for job in missing}
    for job in [job for job in jobs if (job.row, job.seed) in recorded]:
        data = job.config().data
        own = {**trained_on(job), **recorded[job.row, job.seed].text_sha256}
        for name, now in sums(data, job.scale.split).items() if own and data in to_read else ():
            if own.get(name, now) not in ("", now):
                raise RunError(
                    f"{job.label} was recorded with other text: the SHA-256 sum of its {name} is "
                    f"{own[name]:.12}, and that of data.path={data.path} is {now:.12}. Restore "
                    "that text, or give another folder with --out."
                )
