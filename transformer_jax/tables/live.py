"""A live table of runs: which are at work, how far, and the time left."""

import logging
import time
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.progress import MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from transformer_jax.errors import RunError
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.launch import log_file

log = logging.getLogger(__name__)
REFRESH_SECONDS = 2.0
SPEED_SECONDS = 3_600.0  # the time left follows from the steps of the last hour


def progress_of(job: Job, since: float = 0.0) -> tuple[str, int]:
    """The state of a job that has not ended, and its last step, read from its folder.

    It is at work if its log was written `since`.
    """
    try:
        steps = [m["step"] for m in read_metrics(job.folder) if m["kind"] == "train"]
    except RunError:  # nothing is written yet
        steps = []
    file = log_file(job)
    is_running = file.exists() and file.stat().st_mtime >= since
    return "running" if is_running else "waiting", max(steps, default=0)


class LiveTable(Progress):
    """A table on standard error, shown while it is open; without a terminal, only log lines.

    A line for each job, and a last one for all of them.
    """

    def __init__(self, jobs: Sequence[Job]):
        self._jobs: dict[TaskID, Job] = {}  # the job of each line
        self._ended: dict[str, str] = {}  # label -> why it failed, or "done"
        self._begun = time.time() - 1  # file systems round
        console = Console(stderr=True)
        super().__init__(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[state]}", markup=False),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            refresh_per_second=1 / REFRESH_SECONDS,
            speed_estimate_period=SPEED_SECONDS,
            disable=not (console.is_terminal and jobs),
        )
        steps = [job.config().train.steps for job in jobs]
        for job, total in zip(jobs, steps, strict=True):
            self._jobs[self.add_task(job.label, start=False, total=total, state="")] = job
        self._all = self.add_task("all", total=sum(steps), state="")

    def ended(self, job: Job, reason: str) -> None:
        """Records that a job has ended; `reason` is "" if it succeeded."""
        self._ended[job.label] = reason or "done"
        count = f"{len(self._ended)} of {len(self._jobs)}"
        self.update(self._all, state=count)
        log.info("%s: %s (%s)", job.label, reason or "done", count)

    def look(self) -> None:
        """Brings the lines up to date with the runs' folders."""
        for line, job in self._jobs.items():
            state, step = progress_of(job, self._begun)
            if state == "running" and self.tasks[line].start_time is None:
                self.start_task(line)  # its time is its own
            self.update(line, completed=step, state=self._ended.get(job.label, state))
        if self._jobs:
            self.update(self._all, completed=sum(line.completed for line in self.tasks[:-1]))

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is shown at each refresh."""
        self.look()
        return super().get_renderables()
