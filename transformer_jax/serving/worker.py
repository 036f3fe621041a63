"""The one thread that uses the model; it answers all waiting requests together."""

import collections
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformer_jax.serving.asked import Asked, Refused

GATHER_SECONDS = 0.005  # time to wait for further requests that were sent at the same moment
LINES = 256  # lines that are searched together, if requests wait; one request may have more

log = logging.getLogger(__name__)

Answering = Callable[[Sequence[Asked]], Sequence[Any]]


class _Waiting(NamedTuple):
    asked: Asked
    answer: "concurrent.futures.Future[Any]"


class Worker:
    """A thread that gives groups of requests to `answer_all`, in the order of their arrival."""

    def __init__(self, answer_all: Answering, most: int) -> None:
        """Starts the thread. At most `most` requests wait or are being answered."""
        self.answer_all, self.most = answer_all, most
        self.groups = self.requests = 0  # answered so far
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._busy = 0
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> "concurrent.futures.Future[Any]":
        """The future answer. Raises Refused (503) if too many wait or after `stop`."""
        with self._changed:
            if self._stopping:
                raise Refused(503, "The server is stopping.")
            if len(self._waiting) + self._busy >= self.most:
                raise Refused(503, f"{self.most} requests wait already: try again soon.")
            waiting = _Waiting(asked, concurrent.futures.Future())
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.answer

    def stop(self) -> None:
        """Answers the waiting requests, then ends the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while group := self._next_group():
            self._answer(group)
            self.groups += 1
            self.requests += len(group)

    def _next_group(self) -> list[_Waiting]:
        """The requests that wait, up to LINES lines; empty after `stop` if none waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
        time.sleep(GATHER_SECONDS)
        group: list[_Waiting] = []
        lines = 0
        with self._changed:
            while self._waiting:
                lines += len(self._waiting[0].asked.lines)
                if group and lines > LINES:
                    break
                group.append(self._waiting.popleft())
            self._busy = len(group)
        return group

    def _answer(self, group: list[_Waiting]) -> None:
        current = [one for one in group if one.answer.set_running_or_notify_cancel()]
        answers = self._answers([one.asked for one in current])
        with self._changed:  # before the answers: who gets one may ask again at once
            self._busy = 0
        for one, answer in zip(current, answers, strict=True):
            if isinstance(answer, Refused):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)

    def _answers(self, asked: Sequence[Asked]) -> Sequence[Any]:
        """The answers; if a group fails, each request is tried alone, for the others' sake."""
        try:
            return self.answer_all(asked)
        except Exception:  # a bug or a device error; the server keeps running
            log.exception("a group of %d requests failed", len(asked))
        if len(asked) > 1:
            log.info("each of them is tried alone")
            return [answer for one in asked for answer in self._answers([one])]
        return [Refused(500, "The server could not answer this request; see its log.")]
