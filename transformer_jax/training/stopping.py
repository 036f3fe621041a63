"""Signals that ask a run to stop cleanly."""

import os
import signal
import threading
import time
from types import FrameType

from transformer_jax.parallel import processes

# SLURM announces the end of a job's time with the signal that --signal names, often SIGUSR1. A
# terminal that is closed sends SIGHUP, which nohup ignores.
ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
SAME = 2.0  # seconds in which a further signal is the same one: some schedulers signal twice


def asking() -> list[signal.Signals]:
    """ASKING, without SIGHUP if it is ignored, as under nohup."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [one for one in ASKING if not (one is signal.SIGHUP and is_ignored)]


class StopRequest:
    """A context in which a signal of `asking()` asks to stop; a later one has its usual effect.

    Any one of several processes may receive it; JAX's service then chooses a step at which all
    stop. Only the main thread can set handlers, so in other threads signals are not handled.
    """

    def __init__(self) -> None:
        self.signal = 0  # the signal received; 0: none
        self._first: float | None = None  # when the first signal came
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        # Of several processes, JAX's service handles SIGTERM; `_note` turns the others into it.
        is_alone = processes.count() == 1
        own = [number for number in asking() if is_alone or number is not signal.SIGTERM]
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in own}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def at_step(self, step: int) -> bool:
        """Whether to stop after this step; of several processes, all call it at every step."""
        if processes.count() == 1:
            return bool(self.signal)
        from jax.experimental import multihost_utils

        if multihost_utils.reached_preemption_sync_point(step):
            self.signal = signal.SIGTERM
        return bool(self.signal)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = time.monotonic()
            if processes.count() == 1:
                self.signal = number
            else:
                os.kill(os.getpid(), signal.SIGTERM)
        elif time.monotonic() - self._first > SAME:
            self._restore()
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}
