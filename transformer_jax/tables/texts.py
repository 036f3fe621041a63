"""The texts of runs, by their SHA-256 sums: those of one table must be the same."""

import functools
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import RunError, UserError
from transformer_jax.files import read_utf8
from transformer_jax.runs.evaluations import text_digest
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import Line
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.features import FeatureReader, contents
from transformer_jax.text.vocabulary import load_vocabulary

# Texts of a run. The sums of the first two are in its corpus.sha256, those of the scored split in
# its evaluation.
TRAIN, VALID, VOCABULARY = "training split", "validation split", "vocabulary"
SOURCES, REFERENCES = "sources", "references"


def trained_on(job: Job) -> dict[str, str]:
    """SHA-256 sums of a run's texts and of its vocabulary; empty if its folder is gone."""
    run = RunFolder(job.folder)
    sums = (read_utf8(run.corpus_file).split() or [""]) if run.corpus_file.is_file() else []
    found = dict(zip((TRAIN, VALID), sums, strict=False))
    if run.vocabulary_file.is_file():
        found[VOCABULARY] = load_vocabulary(run.vocabulary_file).digest
    return found


def text_sums(data: DataConfig, split: str) -> dict[str, str]:
    """SHA-256 sums of the texts here: of training, of validation, and of both sides of `split`."""
    corpus = open_corpus(data)
    pairs = corpus.split(split)
    reader = FeatureReader(data, data.path) if data.src_kind != "text" else None
    return {
        TRAIN: corpus.fingerprint("train"),
        VALID: corpus.fingerprint("valid"),
        SOURCES: text_digest(contents([pair.src for pair in pairs], reader)),
        REFERENCES: text_digest(pair.tgt for pair in pairs),
    }


def check_texts(lines: Sequence[Line], jobs: Sequence[Job], missing: Sequence[Job]) -> None:
    """Checks that recorded runs had the text, and the vocabulary, that their configs name now.

    Text that is gone does not matter, unless a run is to be trained on it.

    Args:
      lines: the recorded runs.
      jobs: those of the whole table.
      missing: runs that are to be trained.

    Raises:
      UserError: a recorded run had another one, or a missing one has none.
    """

    @functools.cache
    def sums(data: DataConfig, split: str) -> dict[str, str]:
        """`text_sums`; of text that is gone and not needed, none."""
        try:
            return text_sums(data, split)
        except UserError:
            if data in to_read:
                raise
            return {}

    to_read = {job.config().data for job in missing}
    recorded = {(line.row, line.seed): line for line in lines}
    for job in [job for job in jobs if (job.row, job.seed) in recorded]:
        data, path = job.config().data, job.config().vocabulary.path
        own = {**trained_on(job), **recorded[job.row, job.seed].text_sha256}
        here = {
            name: (now, f"data.path={data.path}")
            for name, now in sums(data, job.scale.split).items()
        }
        if path and Path(path).exists():
            here[VOCABULARY] = load_vocabulary(path).digest, f"vocabulary.path={path}"
        for name, (now, source) in here.items() if own else ():
            if own.get(name, now) not in ("", now):
                what = "another vocabulary" if name == VOCABULARY else "other text"
                raise RunError(
                    f"{job.label} was recorded with {what}: the SHA-256 sum of its {name} is "
                    f"{own[name]:.12}, and that of {source} is {now:.12}. Restore it, or give "
                    "another folder with --out."
                )
