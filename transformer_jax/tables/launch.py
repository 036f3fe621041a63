"""Runs jobs on this machine, whose devices they share, or through SLURM."""

import itertools
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import yaml

from transformer_jax.errors import ConfigError
from transformer_jax.tables.experiment import Job

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
GPU_MEMORY = 0.9  # share of a GPU that several runs use; CUDA itself needs the rest
LOG = "log.txt"  # ending of a job's log, which is beside its run's folder
# Parameters of submitit, with or without "slurm_"; more than 1 would start a run several times.
TASKS = ("nodes", "tasks_per_node", "ntasks_per_node")
# Parameters that submitit takes as lists; --slurm gives one item of each.
LISTS = ("slurm_setup", "slurm_teardown", "slurm_srun_args")
LONGEST_REASON = 300  # characters of the reason of a failure
LAST_LINES = 20  # lines of a log in which a command's own reason is looked for
PACKAGE = "transformer_jax"
Commands = Callable[[Job], list[list[str]]]  # a job's commands, each the arguments of `python -m`


class Share(NamedTuple):
    """The devices of one process: GPUs by number, or CPU cores."""

    environment: Mapping[str, str]
    cores: frozenset[int]


def commands_of(job: Job) -> list[list[str]]:
    """The job's commands in order, each as the arguments of `python -m`."""
    return [[PACKAGE, *command] for command in job.commands()]


def command_lines(job: Job) -> list[str]:
    """The job as plain shell commands."""
    return [shlex.join(["python", "-m", *command]) for command in commands_of(job)]


def log_file(job: Job) -> Path:
    """The log of the job's commands."""
    return job.folder.with_name(f"{job.folder.name}.{LOG}")


def shares(count: int) -> list[Share]:
    """This machine's devices, divided among `count` processes.

    With more processes than GPUs, several share a GPU and divide its memory.

    Raises:
      ConfigError: there are fewer devices than processes; of GPUs and cores, the larger number
        counts.
    """
    cores = sorted(os.sched_getaffinity(0))
    gpus = _gpus()
    most = max(len(gpus), len(cores))
    if not 1 <= count <= most:
        kind = "GPUs" if len(gpus) == most else "CPU cores"
        raise ConfigError(f"--jobs={count} is not in 1..{most}: this machine's {kind}.")
    if not gpus:
        return [Share({}, frozenset(cores[n::count])) for n in range(count)]
    each = -(-count // len(gpus))  # processes of a GPU
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{GPU_MEMORY / each:.3f}"} if each > 1 else {}
    parts = [",".join(gpus[n % len(gpus) :: count]) for n in range(count)]
    return [Share({"CUDA_VISIBLE_DEVICES": part, **memory}, frozenset(cores)) for part in parts]


def _gpus() -> list[str]:
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        # As CUDA reads it: the first number below 0 ends the list.
        names = (name.strip() for name in visible.split(","))
        return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    gpus = [line for line in listed.splitlines() if line.startswith("GPU")]  # not their MIG parts
    return [str(n) for n in range(len(gpus))]


def run_commands(
    job: Job,
    share: Share | None = None,
    stop: threading.Event | None = None,
    commands: Commands = commands_of,
) -> str:
    """Runs a job's commands; returns "" on success, or the reason of the failure in one line.

    Args:
      job: the job; its run's folder is created.
      share: the devices to use; None: all that this process sees.
      stop: when it is set, the current command is interrupted and leaves a checkpoint.
      commands: makes the commands of the job, each as the arguments of `python -m`.
    """
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **(share.environment if share else {})}
    with open(log_file(job), "ab") as output:
        for command in commands(job):
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches it only through `stop`
            )
            if share:
                os.sched_setaffinity(process.pid, share.cores)
            while process.poll() is None:
                if stop and stop.is_set():
                    process.send_signal(signal.SIGINT)
                    process.wait()
                    return "interrupted"
                time.sleep(POLL_SECONDS)
            if process.returncode:
                name = command[1] if command[0] == PACKAGE else command[0]
                return f"`{name}` ended with {process.returncode}: {_last_words(job)}"
    return ""


def _last_words(job: Job) -> str:
    return last_line(log_file(job).read_text(encoding="utf-8", errors="replace"))


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
      parameters: K=V,K=V of submitit's executor, such as "gpus_per_node=1"; values as in YAML.
      cluster: "slurm", or submitit's "local" for a trial.

    Raises:
      ConfigError: submitit or SLURM is not installed, or submitit refuses a parameter.
    """
    pairs = [one.partition("=") for one in (parameters or "").split(",") if one]
    if any(not equals for _, equals, _ in pairs):
        raise ConfigError(f"--slurm={parameters}: expected K=V,K=V.")
    for name, _, text in pairs:
        if name.removeprefix("slurm_") in TASKS and text != "1":
            raise ConfigError(
                f"--slurm={name}={text}: a run is one process, which uses all GPUs of its node. "
                f"Leave out {name}, and ask for gpus_per_node."
            )
    try:
        import submitit
    except ImportError:
        raise ConfigError("--launcher=slurm needs submitit: pip install submitit.") from None
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        values = {name: yaml.safe_load(text) for name, _, text in pairs}
        lists = {name: [values[name]] for name in LISTS if name in values}
        executor.update_parameters(**values | lists)
    except (RuntimeError, NameError, ValueError, AssertionError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"--launcher=slurm --slurm={parameters or ''}: {why}") from None
    submitted = {executor.submit(run_commands, job): job for job in jobs}
    for handle, job in submitted.items():
        log.info("%s: job %s", job.label, handle.job_id)
    while submitted:
        for handle in [handle for handle in submitted if handle.done()]:
            failure = handle.exception()
            reason = last_line(str(failure)) if failure else handle.result()
            done(submitted.pop(handle), reason)
        time.sleep(POLL_SECONDS)
