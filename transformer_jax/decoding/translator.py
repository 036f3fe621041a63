"""Translation of encoded sentences: a compiled search a bucket, whose rows never stand idle.

A sentence whose search has ended leaves its row to the next one, while the other rows go on.

Dimension key
  B rows under way, one sentence each   F rows that sentences enter   K beams   M source length
"""

import concurrent.futures
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from transformer_jax.config import DecodeConfig
from transformer_jax.decoding.search import (
    Live,
    SearchResult,
    SearchState,
    advance,
    empty_search,
    enter,
    is_live,
    make_rules,
)
from transformer_jax.model.transformer import Cache, Memory, Transformer, empty_cache, empty_memory
from transformer_jax.text.batches import Bucket, padded_sentences, translation_buckets
from transformer_jax.training.sharding import batch_sharding, batch_ways, placed, row_shardings
from transformer_jax.training.state import Params

ENTER_TOGETHER = 8  # a part of the rows: with fewer the host interrupts, with more rows stand idle
LANES = (
    2  # groups of rows: while the host sees to one, and between its operations, the other goes on
)
NOBODY = -1  # in a row


class Hypothesis(NamedTuple):
    """One translation of a sentence."""

    ids: np.ndarray  # int32 [length], EOS included
    score: float  # log probability over the length penalty
    log_prob: float  # nats, summed over the subwords


class SearchShape(NamedTuple):
    """All that the compilation of a search depends on, beside the model."""

    rows: int
    src_length: int
    beam_size: int
    n_best: int
    size: int  # subwords of the longest translation there can be
    max_extra_length: int


class Remembered(NamedTuple):
    """What a search remembers of each row."""

    memory: Memory  # of the sentence
    decoder: Cache  # of its hypotheses


class Entering(NamedTuple):
    """Sentences and the rows that they enter."""

    ids_FM: Array  # int32, each ending in EOS
    lengths_F: Array  # int32, subwords, EOS included; 0: none
    rows_F: Array  # int32; a number that is no row: none


def empty_rows(model: Transformer, shape: SearchShape) -> SearchState:
    """Rows in which nothing is searched yet."""
    return empty_search(
        Remembered(
            empty_memory(model.config, shape.rows, shape.src_length),
            empty_cache(model.config, shape.rows, shape.beam_size, shape.size),
        ),
        shape.rows,
        beam_size=shape.beam_size,
        size=shape.size,
        n_best=shape.n_best,
    )


@partial(jax.jit, static_argnames=("model", "mesh", "shape"), donate_argnames="state")
def search_rows(
    model: Transformer,
    mesh: Mesh,
    shape: SearchShape,
    params: Params,
    state: SearchState,
    entering: Entering,
    alpha: Array,
    until: Array,
) -> tuple[SearchState, Array, SearchResult]:
    """Lets sentences in, then steps until so few rows are live; one program a shape.

    Args:
      model: gives `encode`, `start_decoding` and `decode_step`.
      mesh: where all of it lies; call within `placed(mesh, model.config)`.
      shape: of the search.
      params: the model's parameters.
      state: rows under way; donated.
      entering: a row's limit is its sentence's own length + max_extra_length.
      alpha: strength of the length penalty, float32 scalar.
      until: int32 scalar; with all rows or more, no step is taken.

    Returns:
      The rows, which of them are live `[rows]`, and what each has found.
    """
    lengths_F, rows_F = entering.lengths_F, entering.rows_F
    memory = _remember(model, params, entering.ids_FM, lengths_F)
    old = state.cache

    def write(kept_B: Array, new_F: Array) -> Array:
        return kept_B.at[rows_F].set(new_F, mode="drop")

    # Emptied, so that nothing of the row's last sentence is left, not even a NaN.
    decoder = jax.tree.map(lambda c: c.at[rows_F].set(0, mode="drop"), old.decoder)
    cache = Remembered(jax.tree.map(write, old.memory, memory), decoder)
    limits_F = jnp.where(lengths_F > 0, lengths_F + shape.max_extra_length, 0)
    state = enter(state._replace(cache=cache), rows_F, limits_F)
    rules, variables = make_rules(shape.size, alpha), {"params": params}
    output_VD: Any = model.apply(variables, method="output_embedding")

    def step(live: Live, cache: Remembered) -> tuple[Array, Remembered]:
        past = (live.position_B, live.ancestors_BKT)
        inputs = (live.ids_BK, *past, *cache, output_VD)
        stepped: Any = model.apply(variables, *inputs, method="decode_step")
        logits_BKV, decoder = stepped
        return logits_BKV, Remembered(cache.memory, decoder)

    state = jax.lax.while_loop(
        lambda state: is_live(state).sum() > until,
        lambda state: advance(step, rules, state),
        state,
    )
    state = jax.lax.with_sharding_constraint(state, row_shardings(mesh, state))
    return state, is_live(state), state.pool


def _remember(model: Transformer, params: Params, ids_FM: Array, lengths_F: Array) -> Memory:
    place_M = jnp.arange(ids_FM.shape[1])
    segments_FM = (place_M < lengths_F[:, None]).astype(jnp.int32)
    positions_FM = jnp.broadcast_to(place_M, ids_FM.shape)
    variables = {"params": params}
    encoded_FMD = model.apply(variables, ids_FM, segments_FM, positions_FM, method="encode")
    memory: Any = model.apply(variables, encoded_FMD, segments_FM, method="start_decoding")
    return memory


class Lane:
    """Rows under way, and the sentences in them."""

    def __init__(self, state: SearchState, rows: int):
        self.state = state
        self.sentence_of = np.full(rows, NOBODY)
        self.found: tuple[Array, SearchResult] | None = None  # on the device: live rows, results

    def is_busy(self) -> bool:
        """Whether a sentence is in it."""
        return bool((self.sentence_of != NOBODY).any())

    def enter(self, waiting: list[int], most: int) -> np.ndarray:
        """Free rows, at most so many, that the next sentences take: int64 [rows]."""
        rows = np.flatnonzero(self.sentence_of == NOBODY)[:most][: len(waiting)]
        self.sentence_of[rows] = [waiting.pop() for _ in rows]
        return rows

    def until(self, waiting: bool, together: int) -> int:
        """Live rows at which to stop stepping, for others to enter or as all is done."""
        rows = len(self.sentence_of)
        if not waiting:
            return 0
        return rows if (self.sentence_of == NOBODY).any() else rows - together  # first fill it

    def read(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Waits for the device; (sentence, its hypotheses) of each whose search has ended."""
        if self.found is None:
            return
        live, pool = jax.device_get(self.found)
        self.found = None
        for row in np.flatnonzero(~live & (self.sentence_of != NOBODY)):
            yield int(self.sentence_of[row]), _hypotheses(pool, int(row))
            self.sentence_of[row] = NOBODY


class Translator:
    """A model, its parameters, settings of search and the mesh that it runs on."""

    def __init__(
        self,
        model: Transformer,
        params: Params,
        decode: DecodeConfig,
        mesh: Mesh,
        n_best: int = 1,
    ):
        self.model, self.params, self.decode = model, params, decode
        self.mesh, self.n_best = mesh, n_best
        self._idle: dict[SearchShape, list[SearchState]] = {}  # rows for the next sentences

    def translate(self, sentences: Sequence[np.ndarray]) -> list[list[Hypothesis]]:
        """The n_best translations of each sentence, best first.

        Args:
          sentences: subwords of each, EOS included, at most decode.max_length of them.
        """
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        tokens = max(1, self.decode.tokens_per_batch // LANES)
        buckets = translation_buckets(
            lengths, tokens, self.decode.max_length, batch_ways(self.mesh)
        )
        for bucket in buckets:
            for index, hypotheses in self._search(bucket, sentences):
                results[index] = hypotheses
        return results

    def _search(
        self, bucket: Bucket, sentences: Sequence[np.ndarray]
    ) -> list[tuple[int, list[Hypothesis]]]:
        """(sentence, its hypotheses), in the order in which searches ended."""
        shape, waiting = self._shape(bucket), list(bucket.indices[::-1])
        idle = self._idle.pop(shape, [])
        wanted = min(LANES, -(-len(waiting) // bucket.rows))
        states = [idle.pop() if idle else self._empty_rows(shape) for _ in range(wanted)]
        lanes, lock = [Lane(state, bucket.rows) for state in states], threading.Lock()
        for lane in lanes:  # here, so that one of them compiles
            self._advance(lane, shape, waiting, sentences, lock)

        def finish(lane: Lane) -> list[tuple[int, list[Hypothesis]]]:
            found = list(lane.read())
            while waiting or lane.is_busy():
                self._advance(lane, shape, waiting, sentences, lock)
                found += lane.read()
            return found

        # Threads, as a CPU runs what one thread asks for in order.
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
            try:
                found = [one for part in pool.map(finish, lanes) for one in part]
            except BaseException:
                waiting.clear()
                raise
        self._idle[shape] = [lane.state for lane in lanes] + idle
        return found

    def _advance(
        self,
        lane: Lane,
        shape: SearchShape,
        waiting: list[int],
        sentences: Sequence[np.ndarray],
        lock: threading.Lock,
    ) -> None:
        """Lets sentences in and sets the lane going; the device works while the host goes on."""
        together = max(batch_ways(self.mesh), shape.rows // ENTER_TOGETHER)
        with lock:
            rows = lane.enter(waiting, together)
        rows_F = np.full(together, shape.rows, np.int32)
        rows_F[: len(rows)] = rows
        inside = [sentences[index] for index in lane.sentence_of[rows]]
        ids_FM, lengths_F = padded_sentences(inside, together, shape.src_length)
        entering = Entering(*jax.device_put((ids_FM, lengths_F, rows_F), batch_sharding(self.mesh)))
        alpha, until = self.decode.length_penalty, lane.until(bool(waiting), together)
        numbers = jnp.float32(alpha), jnp.int32(until)
        with placed(self.mesh, self.model.config):
            lane.state, *found = search_rows(
                self.model, self.mesh, shape, self.params, lane.state, entering, *numbers
            )
        lane.found = found[0], found[1]

    def _shape(self, bucket: Bucket) -> SearchShape:
        size = bucket.length + self.decode.max_extra_length
        if self.model.config.positions == "learned":
            size = min(size, self.model.config.max_positions)
        return SearchShape(
            rows=bucket.rows,
            src_length=bucket.length,
            beam_size=self.decode.beam_size,
            n_best=self.n_best,
            size=size,
            max_extra_length=self.decode.max_extra_length,
        )

    def _empty_rows(self, shape: SearchShape) -> SearchState:
        """Made on the host: that compiles nothing."""
        like = jax.eval_shape(partial(empty_rows, self.model, shape))
        state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
        nothing = np.full(like.log_probs_BK.shape, -np.inf, np.float32)
        return jax.device_put(state._replace(log_probs_BK=nothing), row_shardings(self.mesh, like))


def _hypotheses(pool: Any, row: int) -> list[Hypothesis]:
    return [
        Hypothesis(pool.ids[row, n, :length].copy(), float(score), float(log_prob))
        for n, (length, score, log_prob) in enumerate(
            zip(pool.lengths[row], pool.scores[row], pool.log_probs[row], strict=True)
        )
        if length
    ]
