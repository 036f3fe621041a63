"""Runs jobs on this machine, whose devices they share, or through SLURM; prints commands."""

import logging
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import ConfigError
from transformer_jax.tables.experiment import Job

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
LOG = "log.txt"  # the log of a job, in its run's folder
SLURM = "slurm_"  # before submitit's parameters that only SLURM has
LISTS = ("setup", "teardown", "srun_args")  # parameters that are lists of shell words or commands
WORDS = 300  # longest reason of a failure, in characters

Launcher = Callable[[Sequence[Job], Callable[[Job, str], None]], None]


class Share(NamedTuple):
    """The devices of one process: GPUs by number, or CPU cores."""

    environment: Mapping[str, str]
    cores: frozenset[int]


def command_lines(job: Job) -> list[str]:
    """The job as plain shell commands."""
    start = ["python", "-m", "transformer_jax"]
    return [shlex.join([*start, *command]) for command in job.commands()]


def log_file(job: Job) -> Path:
    """The log of the job's commands."""
    return job.folder.with_name(f"{job.folder.name}.{LOG}")


def shares(count: int) -> list[Share]:
    """This machine's devices, divided among `count` processes.

    Raises:
      ConfigError: there are fewer devices than processes.
    """
    cores = sorted(os.sched_getaffinity(0))
    gpus = _gpus()
    devices = gpus or list(map(str, cores))
    if not 1 <= count <= len(devices):
        kind = "GPUs" if gpus else "CPU cores"
        raise ConfigError(f"--jobs={count} is not in 1..{len(devices)}: this machine's {kind}.")
    if gpus:
        parts = [",".join(gpus[n::count]) for n in range(count)]
        return [Share({"CUDA_VISIBLE_DEVICES": part}, frozenset(cores)) for part in parts]
    return [Share({}, frozenset(cores[n::count])) for n in range(count)]


def _gpus() -> list[str]:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(n) for n, line in enumerate(listed.splitlines()) if line.startswith("GPU")]


def run_commands(job: Job, share: Share | None = None, stop: threading.Event | None = None) -> str:
    """Runs a job's commands; returns "" on success, or the reason of the failure in one line.

    Args:
      job: the job; its run's folder is created.
      share: the devices to use; None: all that this process sees.
      stop: when it is set, the current command is interrupted and leaves a checkpoint.
    """
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **(share.environment if share else {})}
    with open(log_file(job), "ab") as output:
        for command in job.commands():
            process = subprocess.Popen(
                [sys.executable, "-m", "transformer_jax", *command],
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
                return f"`{command[0]}` ended with {process.returncode}: {_last_words(job)}"
    return ""


def _last_words(job: Job) -> str:
    lines = log_file(job).read_text(encoding="utf-8", errors="replace").splitlines()
    printed = [line.strip() for line in lines if line.strip()]
    return printed[-1][-WORDS:] if printed else "it printed nothing"


def run_here(jobs: Sequence[Job], done: Callable[[Job, str], None], processes: int = 1) -> None:
    """Runs jobs on this machine, `processes` at the same time.

    After each job it calls `done(job, reason)`, where the reason is "" on success; these calls
    never overlap.

    Raises:
      KeyboardInterrupt: raised again after the running jobs have written a checkpoint.
      Exception: a job could not be started or `done` failed, for example because the disk is full.
        No further job starts, and the running ones write a checkpoint.
    """
    waiting, stop, lock = list(jobs), threading.Event(), threading.Lock()
    errors: list[Exception] = []

    def work(share: Share) -> None:
        while waiting and not stop.is_set():
            with lock:
                job = waiting.pop(0) if waiting else None
            if job is None:
                return
            try:
                reason = run_commands(job, share, stop)
                with lock:
                    done(job, reason)
            except Exception as error:  # a thread that dies would leave its jobs undone silently
                errors.append(error)
                stop.set()

    workers = [threading.Thread(target=work, args=(share,)) for share in shares(processes)]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        log.warning("stopping: current runs write a checkpoint")
        stop.set()
        raise
    finally:
        for worker in workers:
            worker.join()
    if errors:
        raise errors[0]


def slurm_settings(text: str | None) -> dict[str, Any]:
    """The parameters of `--slurm=K=V,K=V` for submitit's AutoExecutor.

    Raises:
      ConfigError: submitit is not installed or does not know a name (the message suggests the
        nearest), or a value has the wrong type.
    """
    pairs = [one.partition("=") for one in (text or "").split(",") if one]
    if any(not equals for _, equals, _ in pairs):
        raise ConfigError(f"--slurm={text}: expected K=V,K=V.")
    return {name: _slurm_value(name, value) for name, _, value in pairs}


def _slurm_value(name: str, text: str) -> Any:
    submitit = _submitit()
    shared = submitit.AutoExecutor._typed_parameters()  # name -> type, for every kind of cluster
    own = submitit.SlurmExecutor._valid_parameters() - {"additional_parameters"}
    known = [*shared, *sorted(SLURM + word for word in own | shared.keys())]
    if name not in known:
        near = get_close_matches(name if SLURM + name not in known else SLURM + name, known, 1)
        fix = f"Did you mean {near[0]}?" if near else f"It knows {', '.join(known)}."
        raise ConfigError(f"--slurm: submitit knows no parameter {name!r}. {fix}")
    last = name.removeprefix(SLURM)
    if last in LISTS:
        return [text]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = shared.get(last, int if text.isdigit() else str)(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("not a number of anything")
        return value
    except ValueError:
        kind = shared[last].__name__
        raise ConfigError(f"--slurm={name}={text}: expected {kind}.") from None


def sbatch_script(folder: Path, settings: Mapping[str, Any]) -> str:
    """The script that submitit would give sbatch for each job; no SLURM is needed, nothing written.

    Args:
      folder: the folder of submitit's own files.
      settings: from `slurm_settings`.
    """
    submitit = _submitit()
    shared = submitit.AutoExecutor._typed_parameters()
    # SlurmExecutor refuses to be made where there is no srun, unless its affinity is positive.
    on_slurm = {"affinity": classmethod(lambda cls: 1)}
    executor = type("Preview", (submitit.SlurmExecutor,), on_slurm)(folder)
    plain = {name: value for name, value in settings.items() if name in shared}
    own = {name.removeprefix(SLURM): v for name, v in settings.items() if name not in shared}
    plain |= {name: own.pop(name) for name in [*own] if name in shared}  # slurm_timeout_min wins
    executor._internal_update_parameters(**{**executor._convert_parameters(plain), **own})
    script: str = executor._make_submission_file_text(executor._submitit_command_str, uid="")
    return script


def _submitit() -> Any:
    """The package. Raises ConfigError if it is not installed."""
    try:
        import submitit
    except ImportError:
        raise ConfigError("--launcher=slurm needs submitit: pip install -e '.[slurm]'.") from None
    return submitit


def run_with_submitit(
    jobs: Sequence[Job],
    done: Callable[[Job, str], None],
    folder: Path,
    settings: Mapping[str, Any],
    cluster: str = "slurm",
) -> None:
    """Submits every job and waits; if it is interrupted, the jobs stay in the queue.

    Args:
      jobs: the jobs; the nodes must be able to reach their folders.
      done: called when each job ends, as in `run_here`.
      folder: the folder of submitit's own files.
      settings: parameters of submitit's executor, such as {"gpus_per_node": 1}.
      cluster: "slurm", or submitit's "local" for a trial.

    Raises:
      ConfigError: submitit or SLURM is not installed.
    """
    submitit = _submitit()
    if cluster == "slurm" and not shutil.which("sbatch"):
        raise ConfigError(
            "--launcher=slurm: there is no sbatch here. --print shows what would be submitted."
        )
    executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    executor.update_parameters(**settings)
    submitted = {executor.submit(run_commands, job): job for job in jobs}
    for handle, job in submitted.items():
        log.info("%s: job %s", job.label, handle.job_id)
    while submitted:
        for handle in [handle for handle in submitted if handle.done()]:
            error = handle.exception()
            reason = str(error).strip().splitlines()[-1] if error else handle.result()
            done(submitted.pop(handle), reason)
        time.sleep(POLL_SECONDS)
