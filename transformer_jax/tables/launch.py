"""Runs jobs on this machine, whose devices they share, or through SLURM."""

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import yaml

from transformer_jax.errors import ConfigError
from transformer_jax.parallel.devices import Share, shares
from transformer_jax.tables.experiment import Job

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
LOG = "log.txt"  # ending of a job's log, which is beside its run's folder
# Parameters that submitit takes as lists; --slurm gives one item of each.
LISTS = ("slurm_setup", "slurm_teardown", "slurm_srun_args")
MADE_WITH = ("slurm_max_num_timeout",)  # parameters that submitit wants before all others
LONGEST_REASON = 300  # characters of the reason of a failure
LAST_LINES = 20  # lines of a log in which a command's own reason is looked for
PACKAGE = "transformer_jax"
SHARED = ("train", "evaluate")  # commands of a job that all processes of its run call
ENDED_BY_SLURM = 600  # seconds until SLURM has ended a job that it asked to stop
Commands = Callable[[Job], list[list[str]]]  # a job's commands, each the arguments of `python -m`


def commands_of(job: Job) -> list[list[str]]:
    """The job's commands in order, each as the arguments of `python -m`."""
    return [[PACKAGE, *command] for command in job.commands()]


def command_lines(job: Job) -> list[str]:
    """The job as plain shell commands."""
    return [shlex.join(["python", "-m", *command]) for command in commands_of(job)]


def log_file(job: Job, process: int = 0) -> Path:
    """The log of the job's commands, as one of the run's processes calls them."""
    number = f"process-{process}." if process else ""
    return job.folder.with_name(f"{job.folder.name}.{number}{LOG}")


def run_commands(
    job: Job,
    share: Share | None = None,
    stop: threading.Event | None = None,
    commands: Commands = commands_of,
    process: int = 0,
) -> str:
    """Runs a job's commands; returns "" on success, or the reason of the failure in one line.

    Args:
      job: the job; its run's folder is created.
      share: the devices to use; None: all that this process sees.
      stop: when it is set, the current command is interrupted and leaves a checkpoint.
      commands: makes the commands of the job, each as the arguments of `python -m`.
      process: which process of the run this is; all but the first call only those of SHARED.
    """
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **(share.environment if share else {})}
    mine = [one for one in commands(job) if not process or one[1] in SHARED]
    with open(log_file(job, process), "ab") as output:
        for command in mine:
            running = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches it only through `stop`
            )
            if share:
                os.sched_setaffinity(running.pid, share.cores)
            while running.poll() is None:
                if stop and stop.is_set():
                    running.send_signal(signal.SIGINT)
                    running.wait()
                    return "interrupted"
                time.sleep(POLL_SECONDS)
            if running.returncode:
                name = command[1] if command[0] == PACKAGE else command[0]
                printed = log_file(job, process).read_text(encoding="utf-8", errors="replace")
                return f"`{name}` ended with {running.returncode}: {last_line(printed)}"
    return ""


def last_line(text: str) -> str:
    """The last line of what a process printed, cut to LONGEST_REASON.

    If one of the last lines is a command's own reason, that one: another process may have written
    its progress into the same file.
    """
    printed = text.strip().splitlines()
    reasons = [line for line in printed[-LAST_LINES:] if line.startswith("transformer-jax: ")]
    return (reasons or printed)[-1].strip()[-LONGEST_REASON:] if printed else "it printed nothing"


def run_here(
    jobs: Sequence[Job],
    done: Callable[[Job, str], None],
    processes: int = 1,
    commands: Commands = commands_of,
) -> None:
    """Runs jobs on this machine, `processes` at the same time; `commands` as in `run_commands`.

    After each job it calls `done(job, reason)`, where the reason is "" on success; these calls
    never overlap.

    Raises:
      KeyboardInterrupt: raised again after the running jobs have written a checkpoint.
      Exception: a job could not be started or `done` failed, for example because the disk is full.
        No further job starts, and the running ones write a checkpoint.
    """
    stop = threading.Event()
    free = SimpleQueue[Share]()
    for share in shares(processes):
        free.put(share)

    def work(job: Job) -> str:
        """Runs a job on a free share; the reason of its failure."""
        if stop.is_set():
            return "not started"
        share = free.get()
        try:
            return run_commands(job, share, stop, commands)
        except Exception:
            stop.set()
            raise
        finally:
            free.put(share)

    with ThreadPoolExecutor(processes) as pool:
        job_of = {pool.submit(work, job): job for job in jobs}
        try:
            for future in as_completed(job_of):
                done(job_of[future], future.result())
        except BaseException:
            log.warning("stopping: current runs write a checkpoint")
            stop.set()
            raise


class Submitted:
    """What submitit calls on a node, once for each process of a run.

    Before SLURM ends a job, at the end of its time or for a more urgent one, it sends a signal: the
    run writes a checkpoint. If it is submitit's signal, submitit then puts the job back into the
    queue, where it continues.
    """

    def __call__(self, job: Job) -> str:
        """Runs the job's commands; returns the reason of a failure."""
        import submitit

        preempt = signal.Signals[f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"]
        stop = threading.Event()
        received = list[int]()

        def note(number: int, frame: FrameType | None) -> None:
            received.append(number)
            stop.set()

        before = {number: signal.signal(number, note) for number in (preempt, signal.SIGTERM)}
        try:
            process = submitit.JobEnvironment().global_rank
            reason = run_commands(job, stop=stop, process=process)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if received:
            if preempt in received:
                os.kill(os.getpid(), preempt)  # submitit's own handler calls `checkpoint`
            time.sleep(ENDED_BY_SLURM)
        return reason

    def checkpoint(self, job: Job) -> Any:
        """What submitit calls in the next turn of a job: the same."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, job)


def run_with_submitit(
    jobs: Sequence[Job],
    done: Callable[[Job, str], None],
    folder: Path,
    parameters: str | None,
    cluster: str = "slurm",
) -> None:
    """Submits every job and waits; if it is interrupted, the jobs stay in the queue.

    Args:
      jobs: the jobs; the nodes must be able to reach their folders.
      done: called when each job ends, as in `run_here`.
      folder: the folder of submitit's own files; the script that sbatch gets is there too.
      parameters: K=V,K=V of submitit's executor, such as "nodes=2,gpus_per_node=4"; values as in
        YAML. The processes of a job, one a node or tasks_per_node, are one run.
      cluster: "slurm", or submitit's "local" for a trial.

    Raises:
      ConfigError: submitit or SLURM is not installed, or submitit refuses a parameter.
    """
    pairs = [one.partition("=") for one in (parameters or "").split(",") if one]
    if any(not equals for _, equals, _ in pairs):
        raise ConfigError(f"--slurm={parameters}: expected K=V,K=V.")
    try:
        import submitit
    except ImportError:
        raise ConfigError("--launcher=slurm needs submitit: pip install submitit.") from None
    try:
        values = {name: yaml.safe_load(text) for name, _, text in pairs}
        made_with = {name: values.pop(name) for name in MADE_WITH if name in values}
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster, **made_with)
        lists = {name: [values[name]] for name in LISTS if name in values}
        executor.update_parameters(**values | lists)
    except (RuntimeError, NameError, ValueError, AssertionError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"--launcher=slurm --slurm={parameters or ''}: {why}") from None
    submitted = {executor.submit(Submitted(), job): job for job in jobs}
    for handle, job in submitted.items():
        log.info("%s: job %s", job.label, handle.job_id)
    while submitted:
        for handle in [handle for handle in submitted if handle.done()]:
            failure = handle.exception()
            reasons = [last_line(str(failure))] if failure else handle.results()
            done(submitted.pop(handle), next(filter(None, reasons), ""))
        time.sleep(POLL_SECONDS)
