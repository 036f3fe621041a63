"""What search and sampling share: the decoder that they call, the state of their rows, `top_k`.

The decoder is one function, `step(now, memory, cache) -> Stepped`:
- `now`: the newest subword of each hypothesis, its position, and for each earlier position the beam
  slot that held the hypothesis's subword. Empty beam slots are computed too, and ignored.
- `memory`: any pytree of arrays `[B, ...]`, made from the encoder's output. It never changes.
- `cache`: what the decoder keeps for the hypotheses. `cache.written` (keys and values by position)
  never moves: a hypothesis finds its own past through `now`. `cache.carried` (a recurrent state, a
  coverage) has leaves `[B, K, ...]`, which search reorders together with the hypotheses.

`Stepped`, the result, has
- `logits_BKV`: float32 logits of the next subword; entries of the vocabulary's padding are absent,
  or at most -1e9.
- `watched_BKM`: attention weights over the source, those of model.watched_layer, which a coverage
  penalty sums; None if the model has watch=False.
- `cache`: the cache for the next step.

Rows are independent and each has its own position. So a finished sentence can give its row to a new
one while others continue: call `empty_search`, then `start_sentences` and a step any number of
times. A step is `advance` in search.py or `draw` in sampling.py.

Dimension key
  B batch   K beams, or samples   V vocabulary   N n_best   T the longest hypothesis
  M source length   F rows that new sentences enter
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.decoding.penalties import Coverage
from transformer_jax.model.interfaces import Cache, Now, Stepped
from transformer_jax.text.vocabulary import BOS, PAD

CHUNK = 64  # entries of `top_k`; 32 to 128 are equally fast on a CPU
IMPOSSIBLE = -1e8  # below any real log probability, above that of the vocabulary's padding
SourceMemory = Any  # a pytree of arrays [B, ...]
StepFn = Callable[[Now, SourceMemory, Cache], Stepped]


class SearchResult(NamedTuple):
    """The best hypotheses of each sentence, best first."""

    ids: Array  # int32 [B, N, T]; EOS kept, PAD after it
    lengths: Array  # int32 [B, N], subwords, EOS included; 0: no such hypothesis was found
    log_probs: Array  # float32 [B, N], nats, summed over the subwords; -inf where length is 0
    scores: Array  # float32 [B, N], see `Hypothesis.score`; -inf where length is 0


class SearchState(NamedTuple):
    """The state of a search, one sentence per row."""

    now: Now
    log_probs_BK: Array  # float32, nats; -inf = no live hypothesis in this beam slot
    sequences_BKT: Array  # int32, subwords of the live hypotheses, without BOS
    memory: SourceMemory
    cache: Cache
    coverage: Coverage | None  # None: no coverage penalty
    sample_seed_B: Array | None  # uint32, of a sentence's samples; None: beam search
    limits_B: Array  # int32, subwords, EOS included
    pool: SearchResult  # hypotheses that have ended, the best first
    steps: Array  # int32 scalar, number of calls of the step function


def empty_search(
    memory: SourceMemory,
    cache: Cache,
    batch: int,
    *,
    beam_size: int,
    size: int,
    n_best: int = 1,
) -> SearchState:
    """Rows in which nothing is searched yet, without a coverage penalty and without sampling.

    Args:
      memory: of the rows' sentences, leaves `[batch, ...]`.
      cache: before the first position.
      batch: number of rows.
      beam_size: beams, or samples, of a row.
      size: subwords of the longest hypothesis that the arrays can hold, EOS included.
      n_best: hypotheses that are kept when they have ended.

    Raises:
      ValueError: an argument is invalid, or a leaf of memory or cache is not `[batch, ...]`.
    """
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best={n_best} is not in 1 .. beam_size={beam_size}.")
    if size < 1:
        raise ValueError(f"size={size} leaves no room for a subword; it must be at least 1.")
    for name, tree in (("memory", memory), ("cache", cache)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if leaf.shape[:1] != (batch,):
                raise ValueError(
                    f"{name}{jax.tree_util.keystr(path)} has shape {list(leaf.shape)}; expected "
                    f"[batch={batch}, ...]."
                )
    slots = (batch, beam_size)
    now = Now(
        position_B=jnp.zeros(batch, jnp.int32),
        ids_BK=jnp.full(slots, BOS, jnp.int32),
        ancestors_BKT=jnp.zeros((*slots, size), jnp.int32),
    )
    return SearchState(
        now=now,
        log_probs_BK=jnp.full(slots, -jnp.inf, jnp.float32),
        sequences_BKT=jnp.zeros((*slots, size), jnp.int32),
        memory=memory,
        cache=cache,
        coverage=None,
        sample_seed_B=None,
        limits_B=jnp.zeros(batch, jnp.int32),
        pool=_no_hypotheses(batch, n_best, size),
        steps=jnp.int32(0),
    )


def _no_hypotheses(batch: int, n_best: int, size: int) -> SearchResult:
    nothing_BN = jnp.full((batch, n_best), -jnp.inf, jnp.float32)
    return SearchResult(
        ids=jnp.full((batch, n_best, size), PAD, jnp.int32),
        lengths=jnp.zeros((batch, n_best), jnp.int32),
        log_probs=nothing_BN,
        scores=nothing_BN,
    )


def start_sentences(
    state: SearchState,
    rows_F: Array,
    limits_F: Array,
    counted_FM: Array | None = None,
    sample_seed_F: Array | None = None,
    groups: int = 1,
) -> SearchState:
    """Starts new sentences in these rows, with one live hypothesis a group, or K samples.

    The caller writes their memory and sets what the cache carries to zero.

    Args:
      state: the state; the rows' last sentences are discarded.
      rows_F: int32; a number that is no row is ignored.
      limits_F: limits in subwords, EOS included, int32; a limit above the size of the arrays counts
        as that size, and a limit of 0 leaves the row empty.
      counted_FM: True at the source positions that a coverage penalty counts; None: there is none.
      sample_seed_F: uint32, of a sentence's samples; None: beam search.
      groups: number of beam groups. Each group is searched separately.
    """
    batch, beams, size = state.sequences_BKT.shape
    empty = _no_hypotheses(1, state.pool.lengths.shape[1], size)
    rows_F = jnp.where(rows_F < 0, batch, rows_F)  # negative numbers would count from the end
    limits_F = jnp.clip(limits_F, 0, size)
    beams_per_group = beams // groups if state.sample_seed_B is None else 1
    is_first_K = jnp.arange(beams) % beams_per_group == 0
    alive_FK = is_first_K & (limits_F > 0)[:, None]
    # Ancestors need no reset: a position is read only after it was written.
    now = state.now._replace(
        position_B=state.now.position_B.at[rows_F].set(0),
        ids_BK=state.now.ids_BK.at[rows_F].set(BOS),
    )
    coverage = state.coverage
    if coverage is not None:
        assert counted_FM is not None
        coverage = Coverage(
            coverage.sums_BKM.at[rows_F].set(0.0),
            coverage.counted_BM.at[rows_F].set(counted_FM),
        )
    sample_seed_B = state.sample_seed_B
    if sample_seed_B is not None:
        assert sample_seed_F is not None
        sample_seed_B = sample_seed_B.at[rows_F].set(sample_seed_F)
    return state._replace(
        now=now,
        log_probs_BK=state.log_probs_BK.at[rows_F].set(jnp.where(alive_FK, 0.0, -jnp.inf)),
        coverage=coverage,
        sample_seed_B=sample_seed_B,
        limits_B=state.limits_B.at[rows_F].set(limits_F),
        pool=jax.tree.map(lambda kept, new: kept.at[rows_F].set(new[0]), state.pool, empty),
    )


def is_live(state: SearchState) -> Array:
    """True for rows whose search has not ended: booleans `[batch]`."""
    return (state.log_probs_BK > -jnp.inf).any(axis=1)


def gather_slots(x_BK: Array, slots_BS: Array) -> Array:
    """The entries of each row in these beam slots: `[batch, slots, ...]`."""
    return jax.vmap(lambda x_K, slots_S: x_K.at[slots_S].get(mode="promise_in_bounds"))(
        x_BK, slots_BS
    )


def at_own_slot(now: Now) -> Now:
    """`now` with the newest subword of each hypothesis in the hypothesis's own beam slot."""
    rows_B = jnp.arange(now.ids_BK.shape[0])
    slots_K = jnp.arange(now.ids_BK.shape[1])
    ancestors_BKT = now.ancestors_BKT.at[rows_B, :, now.position_B].set(slots_K)
    return now._replace(ancestors_BKT=ancestors_BKT)


def with_newest(sequences_BKT: Array, position_B: Array, ids_BK: Array) -> Array:
    """The sequences with these subwords at these positions."""
    here_B1T = jnp.arange(sequences_BKT.shape[2]) == position_B[:, None, None]
    return jnp.where(here_B1T, ids_BK[..., None], sequences_BKT)


def finished_hypotheses(
    log_probs_BK: Array, scores_BK: Array, length_B: Array, ids_BKT: Array
) -> SearchResult:
    """Hypotheses that end at these lengths, arrays `[B, K]`; -inf: none ends in this slot."""
    beyond_B1T = jnp.arange(ids_BKT.shape[2]) >= length_B[:, None, None]
    exists_BK = log_probs_BK > -jnp.inf
    return SearchResult(
        ids=jnp.where(beyond_B1T, PAD, ids_BKT),
        lengths=jnp.where(exists_BK, length_B[:, None], 0),
        log_probs=log_probs_BK,
        scores=jnp.where(exists_BK, scores_BK, -jnp.inf),
    )


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """The `k` largest entries along the last axis, largest first; the result is exact.

    Of equal entries, the one with the lowest index comes first. `lax.top_k` alone is slow on a CPU.
    A row's best k entries are in the k chunks with the largest maxima, and finding these chunks is
    a plain reduction: 3 to 6 times faster at 8,000 to 37,000 entries.

    Args:
      x: float32 `[..., width]` without NaN; the result of a row with NaN is arbitrary.
      k: 1 <= k <= width.

    Returns:
      Values and int32 indices `[..., k]`.
    """
    width = x.shape[-1]
    if width < 2 * k * CHUNK:
        return _top_k_plain(x, k)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -width % CHUNK)], constant_values=-jnp.inf)
    chunks = x.reshape(*x.shape[:-1], -1, CHUNK)
    _, best = _top_k_plain(chunks.max(-1), k)
    best = jnp.sort(best)  # so that equal entries keep their order
    within = jnp.take_along_axis(chunks, best[..., None], axis=-2).reshape(*x.shape[:-1], k * CHUNK)
    values, index = _top_k_plain(within, k)
    return values, jnp.take_along_axis(best, index // CHUNK, axis=-1) * CHUNK + index % CHUNK


def _top_k_plain(x: Array, k: int) -> tuple[Array, Array]:
    if k == 1:  # two reductions suffice
        largest = x.max(-1, keepdims=True)
        index = jnp.arange(x.shape[-1])
        return largest, jnp.where(x == largest, index, len(index) - 1).min(-1, keepdims=True)
    # lax.top_k ranks 0.0 above -0.0; everywhere else they are equal.
    values, index = lax.top_k(jnp.where(x == 0, 0.0, x), k)
    # Without barriers a caller's slice joins the slice in lax.top_k, which XLA for a CPU then no
    # longer recognizes. It would sort whole rows: 11 ms instead of 0.2 ms in a step with beam 4.
    # One barrier for both would crash XLA on a mesh.
    return lax.optimization_barrier(values), lax.optimization_barrier(index)
