"""Several processes as one run, by JAX's own runtime.

Each runs the same command; what one alone may do (write files, read standard input) process 0 does.
JAX is imported when needed: a command's help does without.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from transformer_jax.errors import ConfigError, UserError

HEARTBEAT_SECONDS = 20  # after which a silent process counts as gone; JAX's default is 100
ENDING_SECONDS = 300  # that one waits for the others at a good end; after a failure, none
JOINING_SECONDS = 300

T = TypeVar("T")

# What schedulers say of a job's processes: how many, or their names.
CLUSTERS = (
    "SLURM_STEP_NUM_TASKS",  # of one `srun`; SLURM_NTASKS stands in a batch script's own shell too
    "OMPI_COMM_WORLD_SIZE",
    "TPU_WORKER_HOSTNAMES",
    "MEGASCALE_NUM_SLICES",
)


def join(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    agree_on_stops: bool = False,
) -> None:
    """Makes this process one of several, before JAX's first use; alone, it does nothing.

    Args:
      coordinator: HOST:PORT on which process 0 listens. None: what SLURM, Open MPI or a TPU
        pod say in the environment; where they say nothing, this process is alone.
      num_processes: how many there are.
      process_id: which this one is, from 0.
      agree_on_stops: SIGTERM is left to JAX's service, which training/stopping.py asks.

    Raises:
      ConfigError: some of the three are missing or cannot be, or nobody answers.
    """
    given = (coordinator, num_processes, process_id)
    if all(value is None for value in given):
        if not any(_several(os.environ.get(name, "")) for name in CLUSTERS):
            return
    elif coordinator is None or num_processes is None or process_id is None:
        raise ConfigError(
            "--coordinator, --num_processes and --process_id belong together: where "
            "process 0 listens, how many processes there are, and which this one is."
        )
    elif not 0 <= process_id < num_processes or ":" not in coordinator:
        raise ConfigError(
            f"--coordinator={coordinator} --num_processes={num_processes} "
            f"--process_id={process_id}: the address is HOST:PORT, process ids are 0 to "
            "--num_processes - 1."
        )
    _filter_what_libraries_say()
    import jax

    jax.config.update("jax_enable_preemption_service", agree_on_stops)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=JOINING_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=ENDING_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the processes of this run do not find each other: {error} Start all of them, with "
            "--coordinator=HOST:PORT, --num_processes and --process_id."
        ) from error


def _several(value: str) -> bool:
    """Whether a scheduler's variable means more than one process."""
    return int(value) > 1 if value.isdecimal() else "," in value


AGAIN = "Start them all again: a run goes on from its last checkpoint."
LOST = f"transformer-jax: another process of this run is gone, and this one stops. {AGAIN}"
# Where a process misses another, JAX's client aborts it from C++, with a stack trace; its CPU
# collectives greet on standard output, which is for results.
FILTER = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)  # sent to the whole group: it ends with its input
held = []  # what may be the beginning of the end
for line in iter(sys.stdin.buffer.readline, b""):
    if b"Terminating process because the JAX distributed service" in line:
        held = [(sys.argv[1] + "\\n").encode()]
        break
    if b"[Gloo]" in line or b"peer ranks" in line:  # threads write over each other
        continue
    if held or b"coordination_service" in line or b"preemption_sync" in line:
        held.append(line)
    if not held or len(held) > 20:
        sys.stderr.buffer.writelines([*held, *([] if held else [line])])
        sys.stderr.flush()
        held = []
sys.stderr.buffer.writelines(held)
sys.stderr.flush()
sys.stdin.buffer.read()
"""


def _filter_what_libraries_say() -> None:
    """From now on standard error, and C++'s standard output with it, pass a small process.

    It shortens JAX's last words. Python's own standard output stays what it is.
    """
    command = [sys.executable, "-S", "-c", FILTER, LOST]
    passing = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert passing.stdin is not None
    os.dup2(passing.stdin.fileno(), sys.stderr.fileno())
    passing.stdin.close()
    sys.stdout.flush()
    results = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = os.fdopen(results, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def count() -> int:
    """How many processes make up this run."""
    jax = sys.modules.get("jax")
    return 1 if jax is None or not jax.distributed.is_initialized() else jax.process_count()


def index() -> int:
    """Which process this is, from 0."""
    return 0 if count() == 1 else sys.modules["jax"].process_index()


def is_first() -> bool:
    """Whether this process writes files and reports."""
    return index() == 0


def gather(value: Any) -> list[Any]:
    """The value of each process, in their order, on all of them; every process must call it.

    Args:
      value: what JSON can hold.
    """
    if count() == 1:
        return [value]
    import numpy as np
    from jax.experimental import multihost_utils

    mine = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.array(mine.size))
    padded = np.zeros(1 << int(lengths.max() - 1).bit_length(), np.uint8)  # few shapes to compile
    padded[: mine.size] = mine
    rows = multihost_utils.process_allgather(padded)
    texts = (bytes(row[:length]) for row, length in zip(rows, lengths, strict=True))
    return [json.loads(text) for text in texts]


def first_does(action: Callable[[], T]) -> T:
    """What `action` gives on process 0, where alone it is called; every process must call this.

    Raises:
      UserError: process 0 raised one.
    """
    if count() == 1:
        return action()
    value, wrong = None, None
    if is_first():
        try:
            value = action()
        except UserError as error:
            wrong = error
    value, message = gather([value, str(wrong) if wrong else None])[0]
    if message is not None:
        raise wrong or UserError(message)
    return value


def first_goes_ahead(action: Callable[[], T]) -> T:
    """Calls `action` on process 0, then on the others: what it keeps in the cache, they find."""
    if count() == 1 or is_first():
        try:
            return action()
        finally:
            gather(None)
    gather(None)
    return action()


def part() -> None:
    """Ends what `join` began, in good order: waits for all; from here on each is alone."""
    if count() > 1:
        sys.modules["jax"].distributed.shutdown()


def leave(status: int, error: BaseException | None = None) -> None:
    """Ends this process at once where there are others; alone, it does nothing.

    After a failure nobody may wait: JAX's shutdown has a barrier that the others never reach.

    Args:
      status: of the exit.
      error: what went wrong, where it was not yet said.
    """
    if count() == 1:
        return
    if error is not None:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        line = (
            f"transformer-jax: process {index()} of {count()} stops, as the run cannot go on "
            f"without all of them: {type(error).__name__}: {reason} {AGAIN}"
        )
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
