"""Evidence beside scores: answers to questions about trained runs, kept in a file."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.files import read_json, write_atomically
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import hypotheses

log = logging.getLogger(__name__)
Evidence = dict[str, Any]  # what JSON can hold
Found = Mapping[tuple[str, int], Evidence]  # by row and seed


class Probe(NamedTuple):
    """A question that the first seed's runs of `rows` answer; without rows, nothing is trained."""

    name: str  # of the answer in evidence.json
    ask: Callable[..., Evidence]  # takes the rows' jobs
    rows: tuple[str, ...] = ()


def gather(path: Path, probes: Sequence[Probe], jobs: Sequence[Job]) -> Evidence:
    """The recorded evidence, with what existing runs of the first seed can add to it."""
    first = {job.row: job for job in jobs if job.seed == jobs[0].seed}
    return answers(path, {one.name: ([first[row] for row in one.rows], one.ask) for one in probes})


def of_jobs(path: Path, jobs: Sequence[Job], ask: Callable[[Job], Evidence]) -> Found:
    """The recorded answers of these jobs to one question, as `answers` has them."""
    kept = answers(path, {job.label: ([job], ask) for job in jobs})
    return {(job.row, job.seed): kept[job.label] for job in jobs if job.label in kept}


def of_seeds(found: Found, row: str) -> dict[int, Evidence]:
    """What was found of a row, by seed."""
    return {seed: found[name, seed] for name, seed in sorted(found) if name == row}


def answers(
    path: Path, asked: Mapping[str, tuple[Sequence[Job], Callable[..., Evidence]]]
) -> Evidence:
    """The recorded answers, by the names of the questions; existing runs answer new questions.

    Args:
      path: the file of the answers; it may not exist yet.
      asked: by name, the jobs and the question, a function of these jobs.
    """
    kept: Evidence = read_json(path) if path.exists() else {}
    for name, (own, ask) in asked.items():
        configs = [job.digest() for job in own]
        if kept.get(name, {}).get("configs") == configs:
            continue
        kept.pop(name, None)  # it came from other runs
        if all(job.folder.exists() and hypotheses(job) is not None for job in own):
            log.info("evidence: %s", name)
            kept[name] = {"configs": configs, "found": ask(*own)}
        write_atomically(path, (json.dumps(kept, indent=1) + "\n").encode())
    return {name: entry["found"] for name, entry in kept.items()}
