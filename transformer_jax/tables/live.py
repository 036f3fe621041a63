"""A live table of runs: which are at work, how far, and the time left."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.runs.metrics import FILE
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.launch import log_file

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)
REFRESH_SECONDS = 2.0
TAIL_BYTES = 4_096  # bytes read from the end of metrics.jsonl


class Progress(NamedTuple):
    """The progress of one run."""

    state: str  # "waiting", "running", "done" or why it failed
    step: int
    steps: int
    seconds_left: float | None  # seconds of training left; None: not known yet

    @property
    def is_over(self) -> bool:
        """Whether the run is done or has failed."""
        return self.state not in ("waiting", "running")


def last_record(job: Job) -> dict[str, Any]:
    """The last complete line of training metrics; empty if there is none yet."""
    try:
        with open(job.folder / FILE, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # a line cut off at its beginning or end
        if record.get("kind") == "train":
            return record
    return {}


def progress_of(job: Job, steps: int) -> Progress:
    """The progress of a job, read from its folder."""
    record = last_record(job)
    step, rate = record.get("step", 0), record.get("target_tokens_per_second")
    left = None
    if isinstance(rate, float) and rate > 0:
        left = (steps - step) * record["target_tokens_per_step"] / rate
    state = "running" if log_file(job).exists() else "waiting"
    return Progress(state, step, steps, left)


class LiveTable:
    """A table on standard error, shown while it is open; without a terminal, only log lines."""

    def __init__(self, jobs: Sequence[Job]):
        self.jobs = jobs
        self.steps = [job.config().train.steps for job in jobs]
        self._ended: dict[tuple[str, int], str] = {}
        self._begin = time.time()

    def ended(self, job: Job, reason: str) -> None:
        """Records that a job has ended; `reason` is "" if it succeeded."""
        self._ended[job.row, job.seed] = reason or "done"
        log.info("%s: %s (%d of %d)", job.label, reason or "done", len(self._ended), len(self.jobs))

    def progress(self) -> list[Progress]:
        """The progress of each job, in their order."""
        found = []
        for job, steps in zip(self.jobs, self.steps, strict=True):
            now, state = progress_of(job, steps), self._ended.get((job.row, job.seed))
            if state == "done":
                now = Progress(state, steps, steps, 0.0)
            found.append(now._replace(state=state) if state else now)
        return found

    def __enter__(self) -> LiveTable:
        from rich.console import Console
        from rich.live import Live

        console, rate = Console(stderr=True), 1 / REFRESH_SECONDS
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=rate)
        if console.is_terminal and self.jobs:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def render(self) -> Table:
        """The table with the current progress."""
        from rich.table import Table

        table = Table("row", "seed", "state", "step", "left")
        progress = self.progress()
        for job, now in zip(self.jobs, progress, strict=True):
            left = "" if now.seconds_left is None or now.is_over else _time(now.seconds_left)
            table.add_row(job.row, str(job.seed), now.state, f"{now.step:,}/{now.steps:,}", left)
        table.caption = f"{_time(time.time() - self._begin)} so far; {_all_left(progress)}"
        return table


def _all_left(progress: Sequence[Progress]) -> str:
    """Training time left if the runs follow one another; runs not begun count like the others."""
    known = [
        (now.seconds_left, now.steps - now.step)
        for now in progress
        if now.seconds_left is not None and now.steps > now.step and not now.is_over
    ]
    if not known:
        return "time left not known yet"
    a_step = sum(seconds for seconds, _ in known) / sum(steps for _, steps in known)
    left = sum((now.steps - now.step) * a_step for now in progress if not now.is_over)
    return f"about {_time(left)} of training left"


def _time(seconds: float) -> str:
    minutes, hours = int(seconds // 60) % 60, int(seconds // 3600)
    return f"{hours}:{minutes:02d}:{int(seconds) % 60:02d}"
