"""Evidence beside scores: answers to questions about trained runs, kept in results.jsonl."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import RunError
from transformer_jax.tables.collect import hypotheses
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import Answer, read_answers, write_answers

log = logging.getLogger(__name__)
Evidence = dict[str, Any]  # what JSON can hold
Found = Mapping[tuple[str, int], Evidence]  # by row and seed


def of_jobs(
    folder: Path, jobs: Sequence[Job], ask: Callable[[Job], Evidence], about: str = ""
) -> Found:
    """The recorded answers of these jobs to one question, as `answers` has them.

    Args:
      about: sets the question apart from another one to the same jobs.
    """
    kept = answers(folder, {job.label + about: ([job], ask) for job in jobs})
    names = {(job.row, job.seed): job.label + about for job in jobs}
    return {key: kept[name] for key, name in names.items() if name in kept}


def of_seeds(found: Found, row: str) -> dict[int, Evidence]:
    """What was found of a row, by seed."""
    return {seed: found[name, seed] for name, seed in sorted(found) if name == row}


def answers(
    folder: Path, asked: Mapping[str, tuple[Sequence[Job], Callable[..., Evidence]]]
) -> Evidence:
    """The recorded answers, by the names of the questions; existing runs answer new questions.

    Args:
      folder: that of the table's results.
      asked: by name, the jobs and the question, a function of these jobs.

    Raises:
      RunError: an answer came from other runs, and those of now are not there to be asked.
    """
    kept = read_answers(folder)
    for name, (own, ask) in asked.items():
        configs = [job.digest() for job in own]
        if name in kept and kept[name].configs == configs:
            continue
        if all(job.folder.exists() and hypotheses(job) is not None for job in own):
            log.info("evidence: %s", name)
            kept[name] = Answer(name, configs, ask(*own))
            write_answers(folder, kept.values())
        elif name in kept:
            raise RunError(
                f"the answer {name!r} was recorded of runs with another config than the experiment "
                "has now. Remove that line of results.jsonl, or give another folder with --out."
            )
    return {name: one.found for name, one in kept.items()}
