"""Beam search (Sutskever et al. 2014, section 3.2; Wu et al. 2016, section 7) over any decoder.

The decoder is one function, `step(now, memory, cache) -> Stepped`:
- `now`: the newest subword of each hypothesis, its position, and for each earlier position the beam
  slot that held the hypothesis's subword. Empty beam slots are computed too, and ignored.
- `memory`: any pytree of arrays `[B, ...]`, made from the encoder's output. It never changes.
- `cache`: what the decoder keeps for the hypotheses. `cache.written` (keys and values by position)
  never moves: a hypothesis finds its own past by `now`. `cache.carried` (a recurrent state, a
  coverage) has leaves `[B, K, ...]`, which search reorders together with the hypotheses.
- `logits_BKV`: float32 logits of the next subword; -1e9 or less for the vocabulary's padding.
- `watched_BKM`: attention weights over the source, which a coverage penalty sums.

Rules of the search
- A hypothesis is a sequence of subwords that ends in EOS. Its score is the sum of its log
  probabilities (log-softmax over the vocabulary, EOS included) over a length penalty, plus a
  coverage penalty if there is one; length counts subwords, EOS included.
- Each search step ranks the continuations of the live hypotheses by summed log probability. Those
  that end in EOS and are among the K best enter the finished pool, which keeps the n_best best by
  score. The K best that do not end are live in the next step, so a finished hypothesis leaves no
  beam slot empty. With K = 1 only the best continuation counts, which is greedy search. A beam of
  V^(length - 1) tries every hypothesis.
- Each sentence has its own limit. At the last position only EOS may follow, with the probability
  that the model assigns, so a reported score always equals that of forced decoding.
- The search of a sentence ends when no live hypothesis can still enter its pool: log probabilities
  only decrease, and the largest penalty within the limit bounds the scores. This early end never
  changes the result.
- Of equal candidates, the one whose hypothesis has the lower beam slot comes first, then the one
  with the lower id. Of equal scores in the pool, the shorter hypothesis comes first. A hypothesis
  whose logits are NaN is dropped.
- A banned subword keeps its probability but continues no hypothesis.
- A sentence's result does not depend on the rest of its batch. A limit of 0 marks an empty row,
  which takes no search step and has no result.

Rows are independent and each has its own position. So a finished sentence can give its row to a new
one while the search of others continues: call `empty_search`, then `enter` and `advance` any number
of times. `beam_search` does that for one batch.

Dimension key
  B batch   K beams   V vocabulary, padded   N n_best   T size, the longest hypothesis there is
  C continuations of one hypothesis, min(K + 1, V)   P pool and newcomers, N + K
  L lengths 0 .. T + 1   F rows that new sentences enter
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from transformer_jax.decoding.penalties import PENALTIES, Coverage, coverage_penalty, empty_coverage
from transformer_jax.decoding.top_k import top_k
from transformer_jax.model.records import Cache, Now, Stepped
from transformer_jax.text.vocabulary import BOS, EOS, PAD

Memory = Any  # a pytree of arrays [B, ...]
StepFn = Callable[[Now, Memory, Cache], Stepped]

IMPOSSIBLE = -1e8  # below any real log probability, above that of the vocabulary's padding
# Penalties are clipped, so that no alpha makes a score 0 / 0, or -inf, which means no hypothesis.
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class SearchResult(NamedTuple):
    """The best hypotheses of each sentence, best first."""

    ids: Array  # int32 [B, N, T]; EOS kept, PAD after it
    lengths: Array  # int32 [B, N], subwords, EOS included; 0: no such hypothesis was found
    log_probs: Array  # float32 [B, N], nats, summed over the subwords; -inf where length is 0
    scores: Array  # float32 [B, N], log_probs over the length penalty; -inf where length is 0


class SearchState(NamedTuple):
    """The state of a search, one sentence per row."""

    now: Now
    log_probs_BK: Array  # float32, nats; -inf = no live hypothesis in this beam slot
    sequences_BKT: Array  # int32, subwords of the live hypotheses, without BOS
    memory: Memory
    cache: Cache
    coverage: Coverage | None  # None: no coverage penalty
    limits_B: Array  # int32, subwords, EOS included
    pool: SearchResult
    steps: Array  # int32 scalar, number of calls of the step function


class Rules(NamedTuple):
    """How hypotheses are scored."""

    penalties_L: Array  # positive divisors of the summed log probability, by length
    largest_LL: Array  # [limit, length]: the largest penalty of the lengths from length to limit
    beta: float | Array  # strength of the coverage penalty
    banned: tuple[int, ...] = ()  # subwords that are never generated


def beam_search(
    step: StepFn,
    memory: Memory,
    cache: Cache,
    max_lengths: Array,
    *,
    beam_size: int,
    size: int,
    alpha: float | Array,
    n_best: int = 1,
    penalty: str = "gnmt",
    beta: float | Array = 0.0,
    counted: Array | None = None,
    banned: tuple[int, ...] = (),
) -> tuple[SearchResult, Array]:
    """The `n_best` best hypotheses of each sentence; call it under `jax.jit`.

    Args:
      step: the decoder; see the head of this file.
      memory: the memory of the source sentences, leaves `[batch, ...]`.
      cache: the cache before the first subword, leaves `[batch, ...]`.
      max_lengths: each sentence's limit in subwords, EOS included, int32 `[batch]`. 0 = an empty
        row; a limit above `size` counts as `size`.
      beam_size: K >= 1.
      size: length of the result's arrays. A compilation depends only on it, K and n_best.
      alpha: strength of the length penalty; 0 = the plain sum, below 0 favors short hypotheses.
      n_best: hypotheses per sentence, at most `beam_size`.
      penalty: a name in `PENALTIES`.
      beta: strength of the coverage penalty, at least 0.
      counted: True at the source positions that the coverage penalty counts `[batch, src_len]`;
        None: no coverage penalty.
      banned: ids that no hypothesis contains. EOS cannot be one of them.

    Returns:
      The hypotheses, and how many times `step` was called (int32 scalar).

    Raises:
      ValueError: an argument is invalid, or a leaf of memory or cache is not `[batch, ...]`.
    """
    batch = max_lengths.shape[0]
    rules = make_rules(size, alpha, penalty, beta)._replace(banned=banned)
    state = empty_search(memory, cache, batch, beam_size=beam_size, size=size, n_best=n_best)
    if counted is not None:
        state = state._replace(coverage=empty_coverage(beam_size, counted))
    state = enter(state, jnp.arange(batch), max_lengths, counted)
    state = lax.while_loop(
        lambda state: is_live(state).any(), lambda state: advance(step, rules, state), state
    )
    return state.pool, state.steps


def make_rules(
    size: int, alpha: float | Array, penalty: str = "gnmt", beta: float | Array = 0.0
) -> Rules:
    """The penalties of all lengths up to `size`, and the strength of the coverage penalty.

    Raises:
      ValueError: there is no such penalty.
    """
    if penalty not in PENALTIES:
        raise ValueError(f"penalty={penalty!r} is unknown; there are {', '.join(PENALTIES)}.")
    lengths_L = jnp.arange(size + 2)
    penalties_L = jnp.clip(PENALTIES[penalty](lengths_L, alpha), SMALLEST, LARGEST)
    within_LL = jnp.where(lengths_L <= lengths_L[:, None], penalties_L, 0.0)
    return Rules(penalties_L, lax.cummax(within_LL, axis=1, reverse=True), beta)


def empty_search(
    memory: Memory, cache: Cache, batch: int, *, beam_size: int, size: int, n_best: int = 1
) -> SearchState:
    """Rows in which nothing is searched yet, without a coverage penalty.

    Raises:
      ValueError: an argument is invalid, or a leaf of memory or cache is not `[batch, ...]`.
    """
    _check_arguments(memory, cache, batch, beam_size, size, n_best)
    places = (batch, beam_size)
    now = Now(
        position_B=jnp.zeros(batch, jnp.int32),
        ids_BK=jnp.full(places, BOS, jnp.int32),
        ancestors_BKT=jnp.zeros((*places, size), jnp.int32),
    )
    nothing_BN = jnp.full((batch, n_best), -jnp.inf, jnp.float32)
    pool = SearchResult(
        ids=jnp.full((batch, n_best, size), PAD, jnp.int32),
        lengths=jnp.zeros((batch, n_best), jnp.int32),
        log_probs=nothing_BN,
        scores=nothing_BN,
    )
    return SearchState(
        now=now,
        log_probs_BK=jnp.full(places, -jnp.inf, jnp.float32),
        sequences_BKT=jnp.zeros((*places, size), jnp.int32),
        memory=memory,
        cache=cache,
        coverage=None,
        limits_B=jnp.zeros(batch, jnp.int32),
        pool=pool,
        steps=jnp.int32(0),
    )


def enter(
    state: SearchState, rows_F: Array, limits_F: Array, counted_FM: Array | None = None
) -> SearchState:
    """Starts new sentences in these rows; each has one live hypothesis without subwords.

    The caller writes their memory and sets what the cache carries to zero.

    Args:
      state: the state; the rows' last sentences are discarded.
      rows_F: int32; a number that is no row is ignored.
      limits_F: limits in subwords, EOS included, int32; a limit above the size of the arrays counts
        as that size, and a limit of 0 leaves the row empty.
      counted_FM: True at the source positions that a coverage penalty counts; None: there is none.
    """
    batch, beams, size = state.sequences_BKT.shape
    rows_F = jnp.where(rows_F < 0, batch, rows_F)  # negative numbers would count from the end
    limits_F = jnp.clip(limits_F, 0, size)
    alive_FK = (jnp.arange(beams) == 0) & (limits_F > 0)[:, None]
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
            coverage.counted_BM.at[rows_F].set(counted_FM, mode="drop"),
        )
    empty = (PAD, 0, -jnp.inf, -jnp.inf)
    return state._replace(
        now=now,
        log_probs_BK=state.log_probs_BK.at[rows_F].set(jnp.where(alive_FK, 0.0, -jnp.inf)),
        coverage=coverage,
        limits_B=state.limits_B.at[rows_F].set(limits_F),
        pool=SearchResult(
            *(x.at[rows_F].set(none) for x, none in zip(state.pool, empty, strict=True))
        ),
    )


def is_live(state: SearchState) -> Array:
    """True for rows whose search has not ended: booleans `[batch]`."""
    return (state.log_probs_BK > -jnp.inf).any(axis=1)


def advance(step: StepFn, rules: Rules, state: SearchState) -> SearchState:
    """One search step: extends every live hypothesis by one subword."""
    batch, beams, _ = state.sequences_BKT.shape
    now, goes_on_B = _at_own_slot(state.now), is_live(state)
    length_B = now.position_B + 1
    stepped = step(now, state.memory, state.cache)
    coverage = _covered(state.coverage, stepped.watched_BKM)
    ids_BC, sums_BC, parents_C = _candidates(
        stepped.logits_BKV, state.log_probs_BK, length_B == state.limits_B, rules.banned
    )
    best_BK, index_BK = top_k(sums_BC, beams)
    ended_BK = jnp.take_along_axis(ids_BC, index_BK, axis=1) == EOS
    ended_parents_BK = parents_C[index_BK]
    ended_BKT = _extended(state, ended_parents_BK, jnp.full((batch, beams), EOS))
    log_probs_BK = jnp.where(ended_BK, best_BK, -jnp.inf)
    scores_BK = _penalized(log_probs_BK, rules.penalties_L[length_B][:, None])
    if coverage is not None:
        scores_BK += rules.beta * gather_rows(coverage_penalty(coverage), ended_parents_BK)
    pool = _merge(state.pool, log_probs_BK, scores_BK, length_B, ended_BKT)
    log_probs_BK, index_BK = top_k(jnp.where(ids_BC == EOS, -jnp.inf, sums_BC), beams)
    ids_BK, parents_BK = jnp.take_along_axis(ids_BC, index_BK, axis=1), parents_C[index_BK]
    bound_B = rules.largest_LL[state.limits_B, length_B + 1]
    open_B = _may_still_enter(log_probs_BK, bound_B, pool)

    def follow(x_BK: Array) -> Array:  # a hypothesis inherits what its parent carries
        return gather_rows(x_BK, parents_BK)

    if coverage is not None:
        coverage = coverage._replace(sums_BKM=follow(coverage.sums_BKM))
    return SearchState(
        now=Now(
            position_B=jnp.where(goes_on_B, length_B, now.position_B),
            ids_BK=ids_BK,
            ancestors_BKT=follow(now.ancestors_BKT),
        ),
        log_probs_BK=jnp.where(open_B[:, None], log_probs_BK, -jnp.inf),
        sequences_BKT=_extended(state, parents_BK, ids_BK),
        memory=state.memory,
        cache=Cache(stepped.cache.written, jax.tree.map(follow, stepped.cache.carried)),
        coverage=coverage,
        limits_B=state.limits_B,
        pool=pool,
        steps=state.steps + 1,
    )


def _covered(coverage: Coverage | None, watched_BKM: Array | None) -> Coverage | None:
    if coverage is None:
        return None
    if watched_BKM is None:
        raise ValueError("a coverage penalty needs the decoder's watched weights.")
    return coverage._replace(sums_BKM=coverage.sums_BKM + watched_BKM)


def gather_rows(x_BK: Array, places_BK: Array) -> Array:
    """The entries of each row at these places: `[batch, places, ...]`."""
    return jax.vmap(lambda x_K, places_K: x_K.at[places_K].get(mode="promise_in_bounds"))(
        x_BK, places_BK
    )


def _at_own_slot(now: Now) -> Now:
    """`now` with the newest subword of each hypothesis in the hypothesis's own beam slot."""
    rows_B = jnp.arange(now.ids_BK.shape[0])
    places_K = jnp.arange(now.ids_BK.shape[1])
    ancestors_BKT = now.ancestors_BKT.at[rows_B, :, now.position_B].set(places_K)
    return now._replace(ancestors_BKT=ancestors_BKT)


def _candidates(
    logits_BKV: Array, log_probs_BK: Array, last_B: Array, banned: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """The best continuations of the first hypothesis, then of the next, and so on.

    Returns:
      Subwords and summed log probabilities (-inf: none) `[batch, beams * continuations]`, and the
      beam slots of the hypotheses `[beams * continuations]`.
    """
    batch, beams, vocabulary = logits_BKV.shape
    logits_BKV = logits_BKV.astype(jnp.float32)
    # K + 1 continuations suffice: one of them ends the hypothesis, and at most K others are among
    # the K best. Logits have the order of log probabilities, so no full log-softmax is needed.
    allowed_BKV = logits_BKV.at[..., list(banned)].set(-jnp.inf) if banned else logits_BKV
    logits_BKC, ids_BKC = top_k(allowed_BKV, min(beams + (beams > 1), vocabulary))
    highest_BK1 = logits_BKV.max(-1, keepdims=True) if banned else logits_BKC[..., :1]
    total_BK1 = highest_BK1 + jnp.log(jnp.exp(logits_BKV - highest_BK1).sum(-1, keepdims=True))
    end_BKC = jnp.where(jnp.arange(ids_BKC.shape[-1]) == 0, logits_BKV[..., EOS, None], -jnp.inf)
    last_B11 = last_B[:, None, None]
    logits_BKC = jnp.where(last_B11, end_BKC, logits_BKC)
    ids_BKC = jnp.where(last_B11, EOS, ids_BKC)
    # The gain is at most 0 after rounding too: logsumexp >= the largest.
    sums_BKC = log_probs_BK[..., None] + (logits_BKC - total_BK1)
    sums_BKC = jnp.where(sums_BKC > IMPOSSIBLE, sums_BKC, -jnp.inf)  # NaN too
    parents_C = jnp.repeat(jnp.arange(beams, dtype=jnp.int32), ids_BKC.shape[-1])
    return ids_BKC.reshape(batch, -1), sums_BKC.reshape(batch, -1), parents_C


def _extended(state: SearchState, parents_BK: Array, ids_BK: Array) -> Array:
    """The parents' subwords and the new one: `[batch, beams, size]`."""
    position_BK1 = state.now.position_B[:, None, None]
    here_BKT = jnp.arange(state.sequences_BKT.shape[2]) == position_BK1
    return jnp.where(here_BKT, ids_BK[..., None], gather_rows(state.sequences_BKT, parents_BK))


def _penalized(log_probs: Array, penalties: Array) -> Array:
    return jnp.maximum(log_probs / penalties, -LARGEST)


def _merge(
    pool: SearchResult, log_probs_BK: Array, scores_BK: Array, length_B: Array, ids_BKT: Array
) -> SearchResult:
    """The best of the pool and of the newcomers of these lengths (log probability -inf: none)."""
    beyond_BKT = jnp.arange(ids_BKT.shape[2]) >= length_B[:, None, None]
    exists_BK = log_probs_BK > -jnp.inf
    ended = SearchResult(
        ids=jnp.where(beyond_BKT, PAD, ids_BKT),
        lengths=jnp.where(exists_BK, length_B[:, None], 0),
        log_probs=log_probs_BK,
        scores=jnp.where(exists_BK, scores_BK, -jnp.inf),
    )
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), pool, ended)
    # Of equal scores the first stays: free entries before newcomers that did not end, and older
    # entries before newer ones.
    _, order_BN = top_k(both.scores, pool.scores.shape[1])
    return jax.tree.map(lambda x_BP: gather_rows(x_BP, order_BN), both)


def _may_still_enter(live_BK: Array, largest_penalty_B: Array, pool: SearchResult) -> Array:
    """Whether the best score that a live hypothesis can reach beats the pool's last `[B]`."""
    return _penalized(live_BK.max(axis=1), largest_penalty_B) > pool.scores[:, -1]


def _check_arguments(
    memory: Memory, cache: Cache, batch: int, beam_size: int, size: int, n_best: int
) -> None:
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
