"""One run in several processes, connected by JAX's distributed runtime.

Each process runs the same command. Only process 0 writes files and reads standard input. JAX is
imported only when it is needed, so that a command's help is fast.

JAX's libraries print two things that cannot be suppressed:
- On CPUs, the library for collectives, Gloo, prints one line that begins with "[Gloo]" for each
  group of devices to standard output, before any result.
- When another process is lost, JAX's client aborts this one from C++ (SIGABRT), with a message and
  a stack trace on standard error: see docs/survival.md.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from transformer_jax.errors import ConfigError, MissingProcess, UserError
from transformer_jax.parallel.clusters import FLAGS, Launched, read_variables
from transformer_jax.parallel.meeting import meet

HEARTBEAT_SECONDS = 20  # a process that is silent for so long counts as lost; JAX's default is 100
ENDING_SECONDS = 300  # wait for the others at a normal end; 0 after a failure
JOINING_SECONDS = 300  # wait for the others at the start

AGAIN = "Start all processes again: the run continues from its last checkpoint."

T = TypeVar("T")


def join(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    agree_on_stops: bool = False,
) -> None:
    """Makes this process one of several; call it before JAX's first use.

    For a single process it does nothing.

    Args:
      coordinator: HOST:PORT on which process 0 listens. None: a launcher's variables say it
        (clusters.py); without these, this is a single process.
      num_processes: how many there are.
      process_id: which this one is, from 0.
      agree_on_stops: JAX's service handles SIGTERM, and training/stopping.py asks the service.

    Raises:
      ConfigError: some of the three, or of a launcher's variables, are missing or invalid.
      MissingProcess: the other processes do not answer.
    """
    has_flags = (coordinator, num_processes, process_id) != (None, None, None)
    try:
        launched = read_variables(os.environ)
    except ConfigError:
        if not has_flags:
            raise
        launched = None
    if has_flags:
        if coordinator is None or num_processes is None or process_id is None:
            raise ConfigError(
                f"{FLAGS} belong together: where process 0 listens, how many processes there are, "
                "and which this one is."
            )
        if not 0 <= process_id < num_processes:
            raise ConfigError(
                f"--num_processes={num_processes} --process_id={process_id}: process ids are 0 to "
                "--num_processes - 1."
            )
    elif launched is None:
        return
    elif launched.address:
        coordinator = launched.address
        num_processes, process_id = launched.processes, launched.process
    if coordinator and num_processes and process_id is not None:
        _check_address(coordinator)
        meet(coordinator, num_processes, process_id, JOINING_SECONDS)
    _connect(coordinator, num_processes, process_id, launched, agree_on_stops)


def _connect(
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    launched: Launched | None,
    agree_on_stops: bool,
) -> None:
    import jax

    jax.config.update("jax_enable_preemption_service", agree_on_stops)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            launched and launched.devices,
            "deactivate" if coordinator else launched and launched.method,
            initialization_timeout=JOINING_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=ENDING_SECONDS,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        # A RuntimeError is of the network: the others may come later.
        kind = MissingProcess if isinstance(error, RuntimeError) else ConfigError
        raise kind(
            f"the processes of this run cannot find each other: {error} Start all of them with "
            "--coordinator=HOST:PORT, --num_processes and --process_id."
        ) from error
    if launched and not coordinator and launched.process is not None:
        found = jax.process_count()
        if found != launched.processes:
            raise ConfigError(
                f"{launched.variables} ({launched.launcher}), and JAX finds {found} processes. "
                f"With mpi4py: is it for this MPI? Else give {FLAGS}."
            )


def check_alone() -> None:
    """Raises ConfigError if this process is alone and JAX knows others, as on a TPU pod."""
    jax = sys.modules["jax"]
    if count() < jax.process_count():
        raise ConfigError(
            f"This is one of {jax.process_count()} processes of a TPU pod, and each would be a run "
            f"of its own: give {FLAGS}."
        )


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    is_port = port.isdecimal() and 0 < int(port[:9]) < 1 << 16
    if not host or "/" in host or not is_port:
        raise ConfigError(
            f"process 0 cannot listen at {address}: the address is HOST:PORT with a port of 1 to "
            "65535."
        )


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
    """The values of all processes, in the order of processes; all processes must call it.

    Args:
      value: any value that JSON supports.
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


def first_unlike(value: Any) -> int | None:
    """The first process whose value is not that of process 0, or None; all must call this."""
    first, *others = gather(value)
    return next((number for number, own in enumerate(others, start=1) if own != first), None)


def first_does(action: Callable[[], T]) -> T:
    """Calls `action` on process 0 only and returns its result on all; all must call this.

    Raises:
      UserError: `action` raised one.
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
    """Calls `action` on process 0 and then on the others, so that they find its cached results."""
    if count() == 1 or is_first():
        try:
            return action()
        finally:
            gather(None)
    gather(None)
    return action()


def part() -> None:
    """Undoes `join`: waits for all processes; afterwards each is a single process."""
    if count() > 1:
        sys.modules["jax"].distributed.shutdown()


def leave(status: int, error: BaseException | None = None) -> None:
    """Ends this process at once if it is one of several; a single process returns.

    After a failure no process may wait, since JAX's shutdown has a barrier that the others never
    reach.

    Args:
      status: the exit status.
      error: the failure, if it has not been reported yet. An error of JAX usually means a lost
        process and is reported in one line; any other error keeps its traceback.
    """
    if count() == 1:
        return
    if error is not None:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        with contextlib.suppress(OSError):
            if type(error).__name__ != "JaxRuntimeError":
                traceback.print_exception(error)
            print(
                f"transformer-jax: process {index()} of {count()} stops, as the run cannot "
                f"continue without all of them: {type(error).__name__}: {reason} {AGAIN}",
                file=sys.stderr,
            )
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
