"""The compiled part of translation: a batch of rows, one sentence in each.

When the searches of a few rows have ended, the next sentences take over these rows while the others
continue. This happens on the device: a call gets a queue of sentences and returns the results of
the sentences that have ended. A row draws samples instead if the shape has a `SamplingFilter`.

Dimension key
  B rows, one sentence each   F rows that sentences enter   Q sentences of a queue
  E sentences that may end in a call, B + Q   K beams, or samples   M source length
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from transformer_jax.decoding.exclusions import NOTHING, Exclusions
from transformer_jax.decoding.penalties import empty_coverage
from transformer_jax.decoding.sampling import Sampling, draw, sentence_seed
from transformer_jax.decoding.search import advance, make_rules
from transformer_jax.decoding.state import (
    SearchResult,
    SearchState,
    StepFn,
    empty_search,
    is_live,
    start_sentences,
)
from transformer_jax.model.attention.cached_attention import replaced
from transformer_jax.model.axes import BATCH, names_of, unboxed
from transformer_jax.model.ensemble import Predictor
from transformer_jax.model.interfaces import Cache, Memory, Now, Params, SearchSizes, Stepped
from transformer_jax.parallel.mesh import shardings
from transformer_jax.text.batches import one_a_row, padded_sentences
from transformer_jax.text.vocabulary import EOS

# Sentences enter when one row in this many is free. A larger number makes the encoder's batches
# small; a smaller number leaves rows idle.
ROWS_PER_ENTRY = 8
NOBODY = -1  # sentence number of a row without a sentence


class SamplingFilter(NamedTuple):
    """Which subwords samples are drawn from."""

    top_k: int | None  # the likeliest; None: all
    nucleus: bool  # whether only those of Strengths.top_p


class Strengths(NamedTuple):
    """Settings on which no compilation depends."""

    length_penalty: Any  # float32 scalar, as those that follow
    coverage_penalty: Any
    diversity: Any
    temperature: Any
    top_p: Any


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
    exclusions: Exclusions = NOTHING
    sampling: SamplingFilter | None = None  # None: beam search
    groups: int = 1  # groups of beams; beam_size and n_best are multiples of it
    features: int = 0  # numbers at each source position; 0: subwords

    @property
    def queue(self) -> int:
        """Sentences in the queue of a call: about as many as there are rows."""
        return self.together * ROWS_PER_ENTRY


class Rows(NamedTuple):
    """The search of each row, and the sentence that the row translates."""

    search: SearchState
    sentence_B: Array  # int32, the host's number of each row's sentence, or NOBODY


class Queue(NamedTuple):
    """Sentences that wait for a row; entries after the last one are ignored."""

    # int32 `[Q, M]`, subwords that end in EOS, or with model.features float32 `[Q, M, features]`
    sources_Q: Array
    lengths_Q: Array  # int32, subwords, EOS included
    sentence_Q: Array  # int32, the host's numbers of the sentences; NOBODY: no sentence
    sample_seed_Q: Array  # uint32, of a sentence's samples
    waiting: Array  # int32 scalar, number of sentences


class Ended(NamedTuple):
    """Results of sentences whose search has ended; in no particular order."""

    sentence_E: Array  # int32
    results: SearchResult  # arrays [E, ...]
    total: Array  # int32 scalar; only the first `total` entries are valid


class _Loop(NamedTuple):
    """What one call of `search_rows` carries from step to step."""

    rows: Rows
    ended: Ended
    taken: Array  # int32 scalar, sentences that have left the queue


def boxed_rows(model: Predictor, shape: SearchShape) -> Rows:
    """Rows without sentences; memory and cache are in boxes with the names of their axes."""
    sizes = SearchSizes(shape.rows, shape.beam_size, shape.size, shape.src_length)
    memory = model.boxed_memory(sizes)
    cache = model.boxed_cache(sizes)
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
    if shape.sampling is not None:
        search = search._replace(sample_seed_B=jnp.zeros(shape.rows, jnp.uint32))
    return Rows(search, jnp.full(shape.rows, NOBODY, jnp.int32))


def empty_rows(model: Predictor, shape: SearchShape) -> Rows:
    """Rows without sentences."""
    return unboxed(boxed_rows(model, shape))


def row_shardings(model: Predictor, shape: SearchShape, mesh: Mesh) -> Any:
    """The sharding of each array: divided by rows, and according to the names of its axes."""
    boxed = jax.eval_shape(partial(boxed_rows, model, shape))
    return shardings(unboxed(boxed), names_of(boxed, (BATCH,)), mesh)


def make_queue(
    shape: SearchShape, numbers: Sequence[int], sentences: Sequence[Any], seed: int = 0
) -> Queue:
    """A queue on the host.

    Args:
      shape: the shape of the search; at most `shape.queue` sentences can wait.
      numbers: numbers of the sentences that wait.
      sentences: all sentences, by number.
      seed: of samples.
    """
    waiting = [sentences[number] for number in numbers]
    sources_Q, lengths_Q = padded_sentences(waiting, shape.queue, shape.src_length, shape.features)
    sentence_Q = np.full(shape.queue, NOBODY, np.int32)
    sentence_Q[: len(numbers)] = numbers
    sample_seed_Q = np.zeros(shape.queue, np.uint32)
    if shape.sampling is not None:
        sample_seed_Q[: len(numbers)] = [sentence_seed(ids, seed) for ids in waiting]
    arrays: Any = (sources_Q, lengths_Q, sentence_Q, sample_seed_Q, np.int32(len(numbers)))
    return Queue(*arrays)


@partial(jax.jit, static_argnames=("model", "mesh", "shape"), donate_argnames="rows")
def search_rows(
    model: Predictor,
    mesh: Mesh,
    shape: SearchShape,
    params: Params,
    prepared: Any,
    rows: Rows,
    queue: Queue,
    strengths: Strengths,
    more: Array,
) -> tuple[Rows, Ended]:
    """Searches for all sentences of a queue; each shape is compiled once.

    Args:
      model: has `encode`, `remember` and `decode_step`.
      mesh: the mesh of the arrays; call this within `placed(mesh, model)`.
      shape: the shape of the search.
      params: the model's parameters.
      prepared: the result of `prepared_output`.
      rows: the rows of the last call; donated.
      queue: sentences; the limit of each is its length + max_extra_length.
      strengths: further settings.
      more: whether another queue follows. If so, the call ends once this queue is empty and enough
        rows are free for the next one, and unfinished searches stay in the rows. If not, it ends
        when every search has ended.

    Returns:
      The rows for the next call, and the sentences that have ended.
    """
    variables = {"params": params}

    def step(now: Now, memory: Memory, cache: Cache) -> Stepped:
        stepped: Any = model.apply(variables, now, memory, cache, prepared, method="decode_step")
        return stepped

    run_step = _step_function(shape, strengths, step)

    def has_room(loop: _Loop) -> Array:
        return (~is_live(loop.rows.search)).sum() >= shape.together

    def can_enter(loop: _Loop) -> Array:
        return (loop.taken < queue.waiting) & has_room(loop)

    def is_running(loop: _Loop) -> Array:
        until_end = jnp.where(more, ~has_room(loop), is_live(loop.rows.search).any())
        return (loop.taken < queue.waiting) | until_end

    def next_step(loop: _Loop) -> _Loop:
        enter = partial(_enter, model, shape, params, queue)
        loop = jax.lax.while_loop(can_enter, enter, loop)
        return loop._replace(rows=loop.rows._replace(search=run_step(loop.rows.search)))

    most = shape.rows + shape.queue  # sentences that can end in a call
    results = jax.tree.map(lambda x: jnp.zeros((most, *x.shape[1:]), x.dtype), rows.search.pool)
    none_ended = Ended(jnp.full(most, NOBODY, jnp.int32), results, jnp.int32(0))
    loop = _Loop(rows, none_ended, jnp.int32(0))
    loop = jax.lax.while_loop(is_running, next_step, loop)
    loop = _put_aside(loop, jnp.arange(shape.rows))
    layout = row_shardings(model, shape, mesh)
    return jax.lax.with_sharding_constraint(loop.rows, layout), loop.ended


@partial(jax.jit, static_argnames=("model", "weights"))
def prepared_output(model: Predictor, params: Params, weights: str | None = None) -> Any:
    """The array from which search makes logits, laid out once for all calls of `search_rows`.

    Args:
      weights: decode.weights, the type in which it is stored; None: that of the model's products.
    """
    prepared = model.apply({"params": params}, method="prepare_output")
    return jax.tree.map(lambda x: x.astype(weights), prepared) if weights else prepared


def _step_function(
    shape: SearchShape, strengths: Strengths, step: StepFn
) -> Callable[[SearchState], SearchState]:
    """The function that advances all rows by one subword: by beam search or by sampling."""
    alpha, beta = strengths.length_penalty, strengths.coverage_penalty
    rules = make_rules(shape.size, alpha, shape.penalty, beta)
    rules = rules._replace(exclusions=shape.exclusions)
    if shape.sampling is None:
        rules = rules._replace(groups=shape.groups, diversity=strengths.diversity)
        return partial(advance, step, rules)
    top_p = strengths.top_p if shape.sampling.nucleus else None
    sampling = Sampling(strengths.temperature, shape.sampling.top_k, top_p, rules)
    return partial(draw, step, sampling)


def _enter(
    model: Predictor, shape: SearchShape, params: Params, queue: Queue, loop: _Loop
) -> _Loop:
    """Moves the next sentences of the queue into rows whose search has ended."""
    (rows_F,) = jnp.nonzero(~is_live(loop.rows.search), size=shape.together, fill_value=shape.rows)
    loop = _put_aside(loop, rows_F)

    def next_ones(x: Array) -> Array:
        # dynamic_slice would shift a slice that crosses the end. Q is a multiple of F: none does.
        return jax.lax.dynamic_slice_in_dim(x, loop.taken, shape.together)

    search = loop.rows.search
    lengths_F = next_ones(queue.lengths_Q)
    sources_F = next_ones(queue.sources_Q)
    real_FM = jnp.arange(shape.src_length) < lengths_F[:, None]
    source = one_a_row(sources_F, real_FM.astype(jnp.int32), jnp, jax.lax.cummax)
    encoded = model.apply({"params": params}, source, method="encode")
    memory: Any = model.apply({"params": params}, encoded, source, method="remember")

    def write(kept_B: Array, new_F: Array) -> Array:
        return replaced(kept_B, rows_F, new_F)

    # Set to zero, so that nothing of the row's last sentence is left, not even a NaN.
    cache = jax.tree.map(lambda c: replaced(c, rows_F, 0), search.cache)
    search = search._replace(memory=jax.tree.map(write, search.memory, memory), cache=cache)
    limits_F = jnp.where(lengths_F > 0, lengths_F + shape.max_extra_length, 0)
    # Coverage does not count EOS.
    counted_FM = real_FM if shape.features else real_FM & (sources_F != EOS)
    rows = Rows(
        start_sentences(
            search, rows_F, limits_F, counted_FM, next_ones(queue.sample_seed_Q), shape.groups
        ),
        write(loop.rows.sentence_B, next_ones(queue.sentence_Q)),
    )
    return loop._replace(rows=rows, taken=loop.taken + shape.together)


def _put_aside(loop: _Loop, rows_F: Array) -> _Loop:
    """Stores the results of these rows' ended searches, and marks their rows as free."""
    (search, sentence_B), ended = loop.rows, loop.ended
    has_ended_B = ~is_live(search) & (sentence_B != NOBODY)
    has_ended_F = has_ended_B.at[rows_F].get(mode="fill", fill_value=False)
    index_F = ended.total + jnp.cumsum(has_ended_F) - 1
    index_F = jnp.where(has_ended_F, index_F, len(ended.sentence_E))  # past the end: dropped

    def write(kept_E: Array, x_B: Array) -> Array:
        return kept_E.at[index_F].set(x_B.at[rows_F].get(mode="clip"), mode="drop")

    ended = Ended(
        write(ended.sentence_E, sentence_B),
        jax.tree.map(write, ended.results, search.pool),
        ended.total + has_ended_F.sum(dtype=jnp.int32),
    )
    left_B = sentence_B.at[rows_F].set(
        jnp.where(has_ended_F, NOBODY, sentence_B.at[rows_F].get(mode="clip")), mode="drop"
    )
    return loop._replace(rows=Rows(search, left_B), ended=ended)
