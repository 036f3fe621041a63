"""Translates encoded sentences with one compiled search per bucket; the host's part.

The device's part is rows.py. "Search" here includes drawing samples.
"""

import concurrent.futures
import contextlib
import logging
import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.config.decode import DecodeConfig
from transformer_jax.decoding.exclusions import Exclusions
from transformer_jax.decoding.generators import GENERATORS
from transformer_jax.decoding.rows import (
    NOBODY,
    ROWS_PER_ENTRY,
    Ended,
    Queue,
    Rows,
    SamplingFilter,
    SearchShape,
    Strengths,
    empty_rows,
    make_queue,
    prepared_output,
    row_shardings,
    search_rows,
)
from transformer_jax.model.ensemble import Predictor
from transformer_jax.model.interfaces import Params
from transformer_jax.model.parameters import narrowed
from transformer_jax.parallel.mesh import batch_ways, placed
from transformer_jax.text.batches import Bucket, translation_buckets

log = logging.getLogger(__name__)
SHOWN_EVERY = 10.0  # seconds between two lines of progress
LANES = 2  # sets of rows: the host prepares one while the device searches the other
FEW_SAMPLES = 8  # with n times as many samples of a sentence, a batch has 1 / n of its sentences


class Hypothesis(NamedTuple):
    """One translation of a sentence."""

    ids: np.ndarray  # int32 [length], EOS included
    score: float  # log probability over the length penalty, plus the coverage penalty
    log_prob: float  # nats, summed over the subwords


class Progress:
    """Logs how many sentences are translated, every SHOWN_EVERY seconds."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.shown = total, 0, time.monotonic()

    def note(self, more: int) -> None:
        """Counts sentences that have just been translated; callers take turns."""
        self.done += more
        if time.monotonic() - self.shown > SHOWN_EVERY:
            self.shown = time.monotonic()
            log.info("translated %d of %d lines", self.done, self.total)


class Translator:
    """A model, its parameters, settings of search and the mesh that it runs on."""

    def __init__(
        self,
        model: Predictor,
        params: Params,
        decode: DecodeConfig,
        mesh: Mesh,
        n_best: int = 1,
        banned: tuple[int, ...] = (),
    ):
        self.model = model.for_search(decode.dtype, decode.coverage_penalty > 0, decode.wait_k)
        self.params = narrowed(model, params, decode.weights) if decode.weights else params
        self.decode = decode
        self.mesh, self.n_best = mesh, n_best
        self.exclusions = Exclusions(banned, decode.min_length, decode.no_repeat)
        with placed(mesh, self.model):
            self.prepared = prepared_output(self.model, params, decode.weights)
        self._idle: dict[SearchShape, list[Rows]] = {}  # rows to use again
        # Programs whose devices wait for one another must start in the same order on each device.
        # Two lanes that start theirs at once could use two orders, and then wait forever.
        several = mesh.size > 1
        self._start_lock: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if several else contextlib.nullcontext()
        )

    @property
    def samples(self) -> int:
        """Samples drawn of each sentence; 0: beam search."""
        return GENERATORS[self.decode.method].samples(self.decode, self.n_best)

    @property
    def groups(self) -> int:
        """Groups of beams; 1 for samples."""
        return 1 if self.samples else self.decode.groups

    def _best(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """With several groups, the n_best best of all together; else what search returned."""
        if self.groups == 1:
            return hypotheses
        return sorted(hypotheses, key=lambda one: -one.score)[: self.n_best]

    def translate(self, sentences: Sequence[np.ndarray]) -> list[list[Hypothesis]]:
        """The n_best best translations of each sentence, best first; or its samples, as drawn.

        Args:
          sentences: subwords of each, EOS included, at most decode.max_length of them.
        """
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        tokens = self.decode.tokens_per_batch // LANES
        if self.samples:
            tokens //= math.ceil(self.samples / FEW_SAMPLES)
        longest = min(self.decode.max_length, self.model.longest() or self.decode.max_length)
        buckets = translation_buckets(lengths, max(1, tokens), longest, batch_ways(self.mesh))
        progress = Progress(len(sentences))
        for bucket in buckets:
            for number, hypotheses in self._search(bucket, sentences, progress):
                results[number] = self._best(hypotheses)
        return results

    def _search(
        self, bucket: Bucket, sentences: Sequence[np.ndarray], progress: Progress
    ) -> list[tuple[int, list[Hypothesis]]]:
        """(number of the sentence, its hypotheses) for each sentence of a bucket, in any order."""
        shape = self._shape(bucket)
        waiting = bucket.indices[::-1].tolist()
        idle = self._idle.pop(shape, [])
        lock = threading.Lock()
        wanted = min(LANES, -(-len(waiting) // bucket.rows))
        lanes = [idle.pop() if idle else self._empty_rows(shape) for _ in range(wanted)]
        if wanted > 1:  # search an empty queue first, so that only one thread compiles
            lanes[0], _ = self._call(shape, lanes[0], make_queue(shape, [], []), False)

        def finish(rows: Rows) -> tuple[Rows, list[tuple[int, list[Hypothesis]]]]:
            """Searches in these rows until no sentence waits and none is inside."""
            found = list[tuple[int, list[Hypothesis]]]()
            inside = done = 0
            more = True
            while more or inside:
                with lock:
                    progress.note(done)
                    numbers = [waiting.pop() for _ in range(min(shape.queue, len(waiting)))]
                    more = bool(waiting)
                queue = make_queue(shape, numbers, sentences, self.decode.seed)
                rows, ended = self._call(shape, rows, queue, more)
                sentence_E, pool, total = jax.device_get(ended)
                for index, number in enumerate(sentence_E[:total].tolist()):
                    found.append((number, _hypotheses(pool, index)))
                done = int(total)
                inside += len(numbers) - done
            return rows, found

        # Several threads, because on a CPU the calls of one thread run in order.
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as threads:
            try:
                finished = list(threads.map(finish, lanes))
            except BaseException:
                waiting.clear()
                raise
        self._idle[shape] = [rows for rows, _ in finished] + idle
        return [one for _, found in finished for one in found]

    def _call(self, shape: SearchShape, rows: Rows, queue: Queue, more: bool) -> tuple[Rows, Ended]:
        """Starts a call on the device; the host does not wait for its end."""
        values = (getattr(self.decode, name) for name in Strengths._fields)
        # Without top_p all subwords are in the nucleus.
        strengths = Strengths._make(np.float32(1.0 if x is None else x) for x in values)
        with self._start_lock, placed(self.mesh, self.model):
            arguments: Any = (self.params, self.prepared, rows, queue, strengths, np.bool_(more))
            return search_rows(self.model, self.mesh, shape, *arguments)

    def _shape(self, bucket: Bucket) -> SearchShape:
        size = bucket.length + self.decode.max_extra_length
        size = min(size, self.model.longest() or size)
        ways = batch_ways(self.mesh)
        return SearchShape(
            rows=bucket.rows,
            together=ways * max(1, bucket.rows // (ROWS_PER_ENTRY * ways)),
            src_length=bucket.length,
            features=self.model.members[0].config.features,
            beam_size=self.samples or self.decode.beam_size,
            n_best=self.samples or self.groups * -(-self.n_best // self.groups),
            size=size,
            max_extra_length=self.decode.max_extra_length,
            penalizes_coverage=self.decode.coverage_penalty > 0,
            penalty=self.decode.penalty,
            exclusions=self.exclusions,
            groups=self.groups,
            sampling=SamplingFilter(self.decode.top_k, self.decode.top_p is not None)
            if self.samples
            else None,
        )

    def _empty_rows(self, shape: SearchShape) -> Rows:
        """Empty rows; they are made on the host, which needs no compilation."""
        like = jax.eval_shape(partial(empty_rows, self.model, shape))
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
        nothing = np.full_like(zeros.search.log_probs_BK, -np.inf)
        rows = Rows(zeros.search._replace(log_probs_BK=nothing), zeros.sentence_B + NOBODY)
        return jax.device_put(rows, row_shardings(self.model, shape, self.mesh))


def _hypotheses(pool: Any, row: int) -> list[Hypothesis]:
    numbers = pool.lengths[row], pool.scores[row], pool.log_probs[row]
    return [
        Hypothesis(pool.ids[row, n, :length].copy(), float(score), float(log_prob))
        for n, (length, score, log_prob) in enumerate(zip(*numbers, strict=True))
        if length
    ]
