"""Translates encoded sentences with one compiled search per bucket, whose rows are never idle.

When the search of a sentence ends, the next sentence takes over its row while the search of the
other rows continues. This happens on the device: a call gets a queue of sentences and returns the
sentences whose search has ended.

Dimension key
  B rows, one sentence each   F rows that sentences enter   Q sentences of a queue
  E sentences that may end in a call, B + Q   K beams   M source length
"""

import concurrent.futures
import dataclasses
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from transformer_jax.config.schema import DecodeConfig
from transformer_jax.decoding.penalties import empty_coverage
from transformer_jax.decoding.search import (
    Rules,
    SearchResult,
    SearchState,
    StepFn,
    advance,
    empty_search,
    enter,
    is_live,
    make_rules,
)
from transformer_jax.model.axes import BATCH, names_of, unboxed
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.records import Cache, Memory, Now, Params, SearchSizes, Stepped
from transformer_jax.parallel.mesh import batch_ways, placed, shardings
from transformer_jax.text.batches import Bucket, Packed, padded_sentences, translation_buckets

# New sentences enter when one row in this many is free. A larger number makes the encoder's batches
# small; a smaller number leaves rows idle.
ENTER_TOGETHER = 8
LANES = 2  # groups of rows: the host handles one while the device searches the other
NOBODY = -1  # sentence number of a row without a sentence


class Hypothesis(NamedTuple):
    """One translation of a sentence."""

    ids: np.ndarray  # int32 [length], EOS included
    score: float  # log probability over the length penalty
    log_prob: float  # nats, summed over the subwords


class SearchShape(NamedTuple):
    """Everything that the compilation of a search depends on, except the model."""

    rows: int
    together: int  # rows that sentences enter at once
    src_length: int
    beam_size: int
    n_best: int
    size: int  # subwords of the longest possible translation
    max_extra_length: int
    penalizes_coverage: bool
    penalty: str = "gnmt"
    banned: tuple[int, ...] = ()

    @property
    def queue(self) -> int:
        """Sentences in the queue of a call: about as many as there are rows."""
        return self.together * ENTER_TOGETHER


class Rows(NamedTuple):
    """Searches that have not ended, and the sentences that they belong to."""

    search: SearchState
    sentence_B: Array  # int32, the host's number of each row's sentence, or NOBODY


class Queue(NamedTuple):
    """Sentences that wait for a row; entries after the last one are ignored."""

    ids_QM: Array  # int32, each ending in EOS
    lengths_Q: Array  # int32, subwords, EOS included
    sentence_Q: Array  # int32, the host's numbers of the sentences; NOBODY: no sentence
    waiting: Array  # int32 scalar, number of sentences


class Ended(NamedTuple):
    """Sentences whose search has ended, in the order in which they ended."""

    sentence_E: Array  # int32
    results: SearchResult  # their results
    total: Array  # int32 scalar, number of sentences


class _Loop(NamedTuple):
    """What one call of `search_rows` carries from step to step."""

    rows: Rows
    ended: Ended
    taken: Array  # int32 scalar, sentences that have left the queue


def boxed_rows(model: EncoderDecoder, shape: SearchShape) -> Rows:
    """Rows without sentences; memory and cache are in boxes with the names of their axes."""
    sizes = SearchSizes(shape.rows, shape.beam_size, shape.size, shape.src_length)
    memory, cache = model.boxed_memory(sizes), model.boxed_cache(sizes)
    search = empty_search(
        unboxed(memory),
        unboxed(cache),
        shape.rows,
        beam_size=shape.beam_size,
        size=shape.size,
        n_best=shape.n_best,
    )._replace(memory=memory, cache=cache)
    if shape.penalizes_coverage:
        counted_BM = jnp.zeros((shape.rows, shape.src_length), bool)
        search = search._replace(coverage=empty_coverage(shape.beam_size, counted_BM))
    return Rows(search, jnp.full(shape.rows, NOBODY, jnp.int32))


def empty_rows(model: EncoderDecoder, shape: SearchShape) -> Rows:
    """Rows without sentences."""
    return unboxed(boxed_rows(model, shape))


def row_shardings(model: EncoderDecoder, shape: SearchShape, mesh: Mesh) -> Any:
    """The sharding of each array: divided by rows, and according to the names of its axes."""
    boxed = jax.eval_shape(partial(boxed_rows, model, shape))
    return shardings(unboxed(boxed), names_of(boxed, (BATCH,)), mesh)


def make_queue(shape: SearchShape, numbers: Sequence[int], sentences: Sequence[Any]) -> Queue:
    """A queue on the host.

    Args:
      shape: the shape of the search; at most `shape.queue` sentences can wait.
      numbers: numbers of the sentences that wait.
      sentences: all sentences, by number.
    """
    waiting = [sentences[number] for number in numbers]
    ids_QM, lengths_Q = padded_sentences(waiting, shape.queue, shape.src_length)
    sentence_Q = np.full(shape.queue, NOBODY, np.int32)
    sentence_Q[: len(numbers)] = numbers
    arrays: Any = (ids_QM, lengths_Q, sentence_Q, np.int32(len(numbers)))
    return Queue(*arrays)


@partial(jax.jit, static_argnames=("model", "mesh", "shape"), donate_argnames="rows")
def search_rows(
    model: EncoderDecoder,
    mesh: Mesh,
    shape: SearchShape,
    params: Params,
    prepared: Any,
    rows: Rows,
    queue: Queue,
    penalties: tuple[Array, Array],
    more: Array,
) -> tuple[Rows, Ended]:
    """Searches for all sentences of a queue; each shape is compiled once.

    Args:
      model: has `encode`, `remember` and `decode_step`.
      mesh: the mesh of the arrays; call this within `placed(mesh, model)`.
      shape: the shape of the search.
      params: the model's parameters.
      prepared: the result of `prepare_output`.
      rows: the rows of the last call; donated.
      queue: sentences, each with a limit of its own length + max_extra_length.
      penalties: strengths of the length and of the coverage penalty, float32 scalars.
      more: whether there will be another queue. If so, the call ends as soon as its sentences could
        enter, and the rows keep unfinished searches; if not, it ends when every search has ended.
    """
    alpha, beta = penalties
    rules, variables = make_rules(shape.size, alpha, shape.penalty, beta), {"params": params}
    rules = rules._replace(banned=shape.banned)

    def step(now: Now, memory: Memory, cache: Cache) -> Stepped:
        stepped: Any = model.apply(variables, now, memory, cache, prepared, method="decode_step")
        return stepped

    def has_room(loop: _Loop) -> Array:
        return (~is_live(loop.rows.search)).sum() >= shape.together

    def lets_in(loop: _Loop) -> Array:
        return (loop.taken < queue.waiting) & has_room(loop)

    def goes_on(loop: _Loop) -> Array:
        until_end = jnp.where(more, ~has_room(loop), is_live(loop.rows.search).any())
        return (loop.taken < queue.waiting) | until_end

    def go_on(loop: _Loop) -> _Loop:
        let_in = partial(_let_in, model, shape, params, queue)
        return _advanced(step, rules, jax.lax.while_loop(lets_in, let_in, loop))

    loop = _Loop(rows, _none_ended(shape, rows.search.pool), jnp.int32(0))
    loop = jax.lax.while_loop(goes_on, go_on, loop)
    loop = _put_aside(loop, jnp.arange(shape.rows))
    return jax.lax.with_sharding_constraint(
        loop.rows, row_shardings(model, shape, mesh)
    ), loop.ended


@partial(jax.jit, static_argnames="model")
def prepared_output(model: EncoderDecoder, params: Params) -> Any:
    """The array from which search makes logits, laid out once for all calls of `search_rows`."""
    return model.apply({"params": params}, method="prepare_output")


def _advanced(step: StepFn, rules: Rules, loop: _Loop) -> _Loop:
    search = advance(step, rules, loop.rows.search)
    return loop._replace(rows=loop.rows._replace(search=search))


def _let_in(
    model: EncoderDecoder, shape: SearchShape, params: Params, queue: Queue, loop: _Loop
) -> _Loop:
    """Moves the next sentences of the queue into rows whose search has ended."""
    (rows_F,) = jnp.nonzero(~is_live(loop.rows.search), size=shape.together, fill_value=shape.rows)
    loop = _put_aside(loop, rows_F)

    def next_ones(x: Array) -> Array:  # never cut: Q is a multiple of F
        return jax.lax.dynamic_slice_in_dim(x, loop.taken, shape.together)

    search, lengths_F = loop.rows.search, next_ones(queue.lengths_Q)
    memory = _remember(model, params, next_ones(queue.ids_QM), lengths_F)

    def write(kept_B: Array, new_F: Array) -> Array:
        return kept_B.at[rows_F].set(new_F, mode="drop")

    # Set to zero, so that nothing of the row's last sentence is left, not even a NaN.
    cache = jax.tree.map(lambda c: c.at[rows_F].set(0, mode="drop"), search.cache)
    search = search._replace(memory=jax.tree.map(write, search.memory, memory), cache=cache)
    limits_F = jnp.where(lengths_F > 0, lengths_F + shape.max_extra_length, 0)
    counted_FM = jnp.arange(shape.src_length) < lengths_F[:, None] - 1  # without EOS
    rows = Rows(
        enter(search, rows_F, limits_F, counted_FM),
        write(loop.rows.sentence_B, next_ones(queue.sentence_Q)),
    )
    return loop._replace(rows=rows, taken=loop.taken + shape.together)


def _remember(model: EncoderDecoder, params: Params, ids_FM: Array, lengths_F: Array) -> Memory:
    place_M = jnp.arange(ids_FM.shape[1])
    segments_FM = (place_M < lengths_F[:, None]).astype(jnp.int32)
    source = Packed(ids_FM, segments_FM, jnp.broadcast_to(place_M, ids_FM.shape))
    variables = {"params": params}
    encoded_FME = model.apply(variables, source, method="encode")
    memory: Any = model.apply(variables, encoded_FME, source, method="remember")
    return memory


def _none_ended(shape: SearchShape, pool: SearchResult) -> Ended:
    most = shape.rows + shape.queue
    results = SearchResult(*(jnp.zeros((most, *x.shape[1:]), x.dtype) for x in pool))
    return Ended(jnp.full(most, NOBODY, jnp.int32), results, jnp.int32(0))


def _put_aside(loop: _Loop, rows_F: Array) -> _Loop:
    """Stores the results of these rows' ended searches, and marks their rows as free."""
    (search, sentence_B), ended = loop.rows, loop.ended
    has_ended_B = ~is_live(search) & (sentence_B != NOBODY)
    has_ended_F = has_ended_B.at[rows_F].get(mode="fill", fill_value=False)
    place_F = ended.total + jnp.cumsum(has_ended_F) - 1
    place_F = jnp.where(has_ended_F, place_F, len(ended.sentence_E))  # past the end: dropped

    def write(kept_E: Array, x_B: Array) -> Array:
        return kept_E.at[place_F].set(x_B.at[rows_F].get(mode="clip"), mode="drop")

    ended = Ended(
        write(ended.sentence_E, sentence_B),
        jax.tree.map(write, ended.results, search.pool),
        ended.total + has_ended_F.sum(dtype=jnp.int32),
    )
    left_B = sentence_B.at[rows_F].set(
        jnp.where(has_ended_F, NOBODY, sentence_B.at[rows_F].get(mode="clip")), mode="drop"
    )
    return loop._replace(rows=Rows(search, left_B), ended=ended)


class Translator:
    """A model, its parameters, settings of search and the mesh that it runs on."""

    def __init__(
        self,
        model: EncoderDecoder,
        params: Params,
        decode: DecodeConfig,
        mesh: Mesh,
        n_best: int = 1,
        banned: tuple[int, ...] = (),
    ):
        config = dataclasses.replace(model.config, dtype=decode.dtype or model.config.dtype)
        self.model = model.clone(config=config, watch=decode.coverage_penalty > 0)
        self.params, self.decode = params, decode
        self.mesh, self.n_best, self.banned = mesh, n_best, banned
        with placed(mesh, self.model):
            self.prepared = prepared_output(self.model, params)
        self._idle: dict[SearchShape, list[Rows]] = {}  # rows to use again

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
            for number, hypotheses in self._search(bucket, sentences):
                results[number] = hypotheses
        return results

    def _search(
        self, bucket: Bucket, sentences: Sequence[np.ndarray]
    ) -> list[tuple[int, list[Hypothesis]]]:
        """Yields (sentence, its hypotheses) in the order in which searches end."""
        shape, waiting = self._shape(bucket), bucket.indices[::-1].tolist()
        idle, lock = self._idle.pop(shape, []), threading.Lock()
        wanted = min(LANES, -(-len(waiting) // bucket.rows))
        lanes = [idle.pop() if idle else self._empty_rows(shape) for _ in range(wanted)]
        if wanted > 1:  # an empty queue, so that one thread compiles
            lanes[0], _ = self._call(shape, lanes[0], make_queue(shape, [], sentences), False)

        def finish(rows: Rows) -> tuple[Rows, list[tuple[int, list[Hypothesis]]]]:
            found, inside, more = list[tuple[int, list[Hypothesis]]](), 0, True
            while more or inside:
                with lock:
                    numbers = [waiting.pop() for _ in range(min(shape.queue, len(waiting)))]
                    more = bool(waiting)
                rows, ended = self._call(shape, rows, make_queue(shape, numbers, sentences), more)
                sentence_E, pool, total = jax.device_get(ended)
                for place, number in enumerate(sentence_E[:total].tolist()):
                    found.append((number, _hypotheses(pool, place)))
                inside += len(numbers) - int(total)
            return rows, found

        # Several threads, because on a CPU the calls of one thread run in order.
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
            try:
                finished = list(pool.map(finish, lanes))
            except BaseException:
                waiting.clear()
                raise
        self._idle[shape] = [rows for rows, _ in finished] + idle
        return [one for _, found in finished for one in found]

    def _call(self, shape: SearchShape, rows: Rows, queue: Queue, more: bool) -> tuple[Rows, Ended]:
        """Starts a call on the device; the host does not wait for its end."""
        strengths = self.decode.length_penalty, self.decode.coverage_penalty
        penalties = tuple(map(np.float32, strengths))
        with placed(self.mesh, self.model):
            arguments: Any = (self.params, self.prepared, rows, queue, penalties, np.bool_(more))
            return search_rows(self.model, self.mesh, shape, *arguments)

    def _shape(self, bucket: Bucket) -> SearchShape:
        size = bucket.length + self.decode.max_extra_length
        size = min(size, self.model.longest() or size)
        ways = batch_ways(self.mesh)
        return SearchShape(
            rows=bucket.rows,
            together=ways * max(1, bucket.rows // (ENTER_TOGETHER * ways)),
            src_length=bucket.length,
            beam_size=self.decode.beam_size,
            n_best=self.n_best,
            size=size,
            max_extra_length=self.decode.max_extra_length,
            penalizes_coverage=self.decode.coverage_penalty > 0,
            penalty=self.decode.penalty,
            banned=self.banned,
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
