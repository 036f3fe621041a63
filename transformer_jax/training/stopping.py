"""Signals that ask a run to stop in good order."""

import os
import signal
import threading
from types import FrameType

from transformer_jax.parallel import processes

ASKING = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """While it is entered, SIGTERM or SIGINT is a request; a second one has its usual effect.

    Of several processes any may get it: JAX's own service, which heeds SIGTERM, then names a step
    on which all agree. Outside the main thread, which alone may set handlers, nothing is heeded.
    """

    def __init__(self) -> None:
        self.signal = 0  # the one that came
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        asking = ASKING if processes.count() == 1 else (signal.SIGINT,)
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in asking}
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
        self._restore()
        if processes.count() == 1:
            self.signal = number
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}
