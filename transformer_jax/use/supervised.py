"""Processes of `train` on this machine that are started again when one of them dies."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from transformer_jax.errors import ConfigError
from transformer_jax.parallel.clusters import read_variables
from transformer_jax.parallel.devices import own_part, visible_gpus
from transformer_jax.training.stopping import asking

POLL_SECONDS = 0.2
PATIENCE = 60.0  # seconds, after which processes that should end with another one are killed
LONGEST_PAUSE = 60.0  # seconds before a start; the first pause is 1 s, and each is twice the last
LASTING = (0, 2)  # statuses after which another start would end in the same way
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def supervise(arguments: Sequence[str], workdir: str, processes: int | None, restarts: int) -> None:
    """Runs `train` until it ends, and exits with its status.

    If a process dies, for example of SIGKILL or because another machine is lost, all processes are
    started again and continue from the last checkpoint. SIGTERM, SIGINT and the signals of a
    scheduler are passed on, and end the run as they end `train`.

    Args:
      arguments: the arguments of `train`.
      processes: how many to start here, which divide the GPUs equally; None: one, which the
        arguments or a launcher may make one of several.
      restarts: the run ends after this many deaths in a row without a new checkpoint; 0: after
        any death.

    Raises:
      ConfigError: the GPUs cannot be divided, a number is too small, or a launcher has started
        this process in a way that leaves no room for others.
      SystemExit: the run ended with another status than 0.
    """
    if restarts < 0:
        raise ConfigError(f"--restarts={restarts} is below 0.")
    if processes is not None and processes < 1:
        raise ConfigError(f"--num_processes={processes} is below 1.")
    if launched := read_variables(os.environ):
        if processes is not None:
            raise ConfigError(
                f"{launched.launcher} starts the processes of this run ({launched.variables}): "
                f"leave out --num_processes={processes}."
            )
        if launched.method:
            raise ConfigError("--restarts: a process of MPI cannot be started again by itself.")
    checkpoints = Path(workdir) / "checkpoints"
    group = _Group([*arguments, "--restarts=0"], processes)
    deaths = 0
    while True:
        before = _newest(checkpoints)
        status = group.run()
        if group.asked or status in LASTING:
            break
        step = _newest(checkpoints)
        deaths = 0 if step > before else deaths + 1
        died = f"transformer-jax: {group.death} at a checkpoint of step {step}"
        if deaths >= restarts:
            _print(f"{died}, {deaths} deaths without a newer one: the run ends.")
            break
        _print(f"{died}; starting again ({deaths} of {restarts} deaths without a newer one).")
        group.wait(min(LONGEST_PAUSE, 2.0 ** (deaths - 1)))
        if group.asked:
            status = -group.asked
            break
    if group.asked and status < 0:  # it may have died of something else just before
        status = -group.asked
    if status:
        sys.exit(status if status > 0 else 128 - status)


def _print(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _newest(checkpoints: Path) -> int:
    """The step of the newest checkpoint; 0: there is none."""
    names = list[str]()
    with contextlib.suppress(OSError):
        names = [path.name for path in checkpoints.iterdir()]
    return max((int(name) for name in names if name.isdecimal()), default=0)


class _Group:
    """The processes of one run on this machine."""

    def __init__(self, arguments: Sequence[str], processes: int | None) -> None:
        """Passes signals on from now on."""
        self.arguments, self.is_together = arguments, processes is not None
        self.size = size = processes or 1
        self.asked = 0  # the signal that asked to stop; 0: none
        self.death = ""  # which process died, and of what
        self._running: list[subprocess.Popen[bytes]] = []
        self._parts = [_visible(n, size) if size > 1 else {} for n in range(size)]
        for number in asking():
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        for process in self._running:
            process.send_signal(number)

    def run(self) -> int:
        """Starts all processes and waits for all; returns the status of the first that failed."""
        with socket.socket() as free:
            free.bind(("", 0))
            address = f"localhost:{free.getsockname()[1]}"
        self._running = []
        for number in range(self.size):
            flags = list[str]()
            if self.is_together:
                flags = [f"--coordinator={address}", f"--num_processes={self.size}"]
                flags.append(f"--process_id={number}")
            self._running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "transformer_jax", "train", *self.arguments, *flags],
                    env={**os.environ, **self._parts[number]},
                    start_new_session=True,  # Ctrl-C reaches it only through this process
                    preexec_fn=_end_with_parent,
                )
            )
        if self.asked:  # the signal came while they were started
            self._pass_on(self.asked, None)
        while True:
            statuses = [process.poll() for process in self._running]
            failed = [number for number, status in enumerate(statuses) if status]
            if failed or None not in statuses:
                break
            time.sleep(POLL_SECONDS)
        if not failed:
            return 0
        # One that was killed is the cause; those that miss it abort.
        number = min(failed, key=lambda n: (statuses[n] == -signal.SIGABRT, n))
        status = statuses[number] or 0
        of = f"process {number} of {self.size}" if self.size > 1 else "the process"
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        self.death = f"{of} ended with {name}"
        if status not in LASTING and not self.asked:  # the others cannot continue without it
            for process in self._running:
                process.kill()
        deadline = time.monotonic() + PATIENCE
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return status

    def wait(self, seconds: float) -> None:
        """Waits, or until a signal comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.asked:
            time.sleep(POLL_SECONDS)


def _visible(process: int, processes: int) -> dict[str, str]:
    """The environment in which a process sees its part of the GPUs."""
    gpus = visible_gpus()
    if not gpus:
        return {}
    part = (gpus[n] for n in own_part(process, processes))
    return {"CUDA_VISIBLE_DEVICES": ",".join(part)}


def _end_with_parent() -> None:
    """In a new process: it gets SIGTERM if this one is killed. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGTERM)
