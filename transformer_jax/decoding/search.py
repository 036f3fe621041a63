"""Beam search (Sutskever et al. 2014, section 3.2; Wu et al. 2016, section 7) over any decoder.

The decoder is one function, `step(ids_BK, position, cache) -> (logits_BKV, cache)`:
- `ids_BK` int32: the newest subword of each hypothesis; BOS at position 0. An empty place of the
  beam is stepped too, and what comes out is ignored.
- `position`: int32 scalar, how many subwords each hypothesis has. Position 0 predicts the first.
- `cache`: any pytree whose leaves are `[B, K, ...]`, what a *hypothesis* remembers (keys and values
  of its subwords, a recurrent state). Search reorders it along K when the beam does. What belongs
  to the *sentence* (encoder output, its keys and values, masks) never moves: let `step` close over
  it, as `[B, ...]`.
- `logits_BKV` float32: of the next subword. Padding of the vocabulary is masked to -1e9 or less.

What is found
- A hypothesis is a sequence of subwords that ends in EOS. Its score is the sum of its log
  probabilities (log-softmax over the vocabulary, EOS included) over a length penalty; length counts
  subwords, EOS included.
- Each step takes the K best continuations, by summed log probability, of what is live. Those that
  end in EOS leave the beam for the finished pool, which keeps the n_best best by score; the others
  are live next. So beam 1 is greedy search, and a beam of V^(length - 1) tries everything.
- A sentence's limit is its own. At the last position only EOS may follow, with the probability the
  model gives it, so a reported score is always what forcing the same subwords gives.
- Search of a sentence ends when nothing live can still enter its pool: log probabilities only
  fall, and the largest penalty within its limit bounds the rest. That never changes the result.
- Equal candidates: the better-placed hypothesis first, then the lower id. Equal scores in the pool:
  the shorter first. A hypothesis whose logits are NaN is dropped.
- A sentence's result does not depend on the rest of its batch. A limit of 0 marks an empty row: it
  costs no step and finds nothing.

Dimension key
  B batch   K beams   V vocabulary, padded   N n_best   T size, the longest hypothesis there is
  C continuations of one hypothesis, min(K, V)   P pool and newcomers, N + K   L lengths 0 .. T + 1
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from transformer_jax.text.vocabulary import BOS, EOS, PAD

Cache = Any  # a pytree of arrays [B, K, ...]
StepFn = Callable[[Array, Array, Cache], tuple[Array, Cache]]

IMPOSSIBLE = -1e8  # no real log probability comes down here; the vocabulary's padding does
# Penalties are clipped, so that no alpha makes a score 0 / 0 or -inf, which stands for none.
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
CHUNK = 64  # of top_k; 32 to 128 measured alike on a CPU


def gnmt_penalty(lengths: Array, alpha: float | Array) -> Array:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14); 1 for alpha 0."""
    return ((5.0 + lengths) / 6.0) ** alpha


# (lengths in subwords, alpha) -> positive divisors of the summed log probability
Penalty = Callable[[Array, float | Array], Array]
PENALTIES: dict[str, Penalty] = {"gnmt": gnmt_penalty}


class SearchResult(NamedTuple):
    """The best hypotheses of each sentence, best first."""

    ids: Array  # int32 [B, N, T]; EOS kept, PAD after it
    lengths: Array  # int32 [B, N], subwords, EOS included; 0: nothing was found for this place
    log_probs: Array  # float32 [B, N], nats, summed over the subwords; -inf where length is 0
    scores: Array  # float32 [B, N], log_probs over the length penalty; -inf where length is 0
    steps: Array  # int32 scalar, calls of the step function


class _Limits(NamedTuple):
    """How long hypotheses may be, and what a length costs."""

    lengths_B: Array
    penalties_L: Array
    largest_BL: Array  # of this length and all longer ones within the limit; 0 beyond it


class _Pool(NamedTuple):
    """Finished hypotheses, best first."""

    scores_BN: Array  # -inf = free
    log_probs_BN: Array
    lengths_BN: Array
    places_BN: Array  # which of its step's K candidates the EOS was


class _State(NamedTuple):
    position: Array
    ids_BK: Array  # newest subwords
    log_probs_BK: Array  # of live hypotheses; -inf = nothing lives here
    cache: Cache
    ids_TBK: Array  # the candidates taken at each step, EOS and all,
    parents_TBK: Array  # and the place of the hypothesis each one continues
    pool: _Pool


def beam_search(
    step: StepFn,
    cache: Cache,
    max_lengths: Array,
    *,
    beam_size: int,
    size: int,
    alpha: float | Array,
    n_best: int = 1,
    penalty: str = "gnmt",
) -> SearchResult:
    """The `n_best` best hypotheses of each sentence; call it under `jax.jit`.

    Args:
      step: the decoder; see the head of this file.
      cache: its state before the first subword, leaves `[batch, beam_size, ...]`.
      max_lengths: each sentence's limit in subwords, EOS included, int32 `[batch]`. 0 = an empty
        row; a limit above `size` counts as `size`.
      beam_size: K >= 1.
      size: length of the result's arrays; with K and n_best, all that a compilation depends on.
      alpha: strength of the length penalty; 0 = the plain sum, below 0 favours short hypotheses.
      n_best: hypotheses a sentence, at most `beam_size`.
      penalty: a name in `PENALTIES`.

    Raises:
      ValueError: an argument cannot be, or a leaf of the cache is not `[batch, beam_size, ...]`.
    """
    _check_arguments(cache, max_lengths.shape[0], beam_size, size, n_best, penalty)
    limits = _make_limits(max_lengths, size, PENALTIES[penalty], alpha)
    # Nothing lives on beyond its limit; the count only makes that plain, and a mistake end.
    state = lax.while_loop(
        lambda state: (state.position < size) & (state.log_probs_BK > -jnp.inf).any(),
        lambda state: _advance(step, limits, state),
        _start(cache, limits, beam_size, size, n_best),
    )
    pool = state.pool
    return SearchResult(
        _read_back(state), pool.lengths_BN, pool.log_probs_BN, pool.scores_BN, steps=state.position
    )


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """The `k` largest along the last axis, largest first, of equals the lowest index first; exact.

    `lax.top_k` alone is slow on a CPU. A row's best k lie in the k chunks with the largest maxima,
    and finding those is a plain reduction: 3 to 6 times faster at 8,000 to 37,000 entries. For
    k = 1 two reductions do.

    Args:
      x: float32 `[..., width]` without NaN; where a row has NaN its result is arbitrary.
      k: 1 <= k <= width.

    Returns:
      Values and int32 indices `[..., k]`.
    """
    width = x.shape[-1]
    if k == 1:
        largest = x.max(-1, keepdims=True)
        index = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
        first = jnp.where(x == largest, index, width - 1).min(-1, keepdims=True)
        return largest, first
    if width < 2 * k * CHUNK:
        return _top_k_plain(x, k)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -width % CHUNK)], constant_values=-jnp.inf)
    chunks = x.reshape(*x.shape[:-1], -1, CHUNK)
    _, best = _top_k_plain(chunks.max(-1), k)
    best = jnp.sort(best)  # so that equals keep the order of their indices
    within = jnp.take_along_axis(chunks, best[..., None], axis=-2).reshape(*x.shape[:-1], k * CHUNK)
    values, index = _top_k_plain(within, k)
    return values, jnp.take_along_axis(best, index // CHUNK, axis=-1) * CHUNK + index % CHUNK


def _top_k_plain(x: Array, k: int) -> tuple[Array, Array]:
    # To lax.top_k 0.0 is more than -0.0; everywhere else they are equal.
    return lax.top_k(jnp.where(x == 0, 0.0, x), k)


def _check_arguments(
    cache: Cache, batch: int, beam_size: int, size: int, n_best: int, penalty: str
) -> None:
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best={n_best} is not in 1 .. beam_size={beam_size}.")
    if size < 1:
        raise ValueError(f"size={size} leaves no place for a subword; at least 1.")
    if penalty not in PENALTIES:
        raise ValueError(f"penalty={penalty!r} is unknown; there are {', '.join(PENALTIES)}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if leaf.shape[:2] != (batch, beam_size):
            raise ValueError(
                f"cache{jax.tree_util.keystr(path)} has shape {list(leaf.shape)}; expected [batch="
                f"{batch}, beam_size={beam_size}, ...]. What belongs to a sentence is no cache: "
                "let the step function close over it."
            )


def _make_limits(max_lengths: Array, size: int, penalty: Penalty, alpha: float | Array) -> _Limits:
    limits_B = jnp.clip(max_lengths, 0, size)
    lengths_L = jnp.arange(size + 2)
    penalties_L = jnp.clip(penalty(lengths_L, alpha), SMALLEST, LARGEST)
    penalties_BL = jnp.where(lengths_L <= limits_B[:, None], penalties_L, 0.0)
    return _Limits(limits_B, penalties_L, lax.cummax(penalties_BL, axis=1, reverse=True))


def _start(cache: Cache, limits: _Limits, beams: int, size: int, n_best: int) -> _State:
    """One live hypothesis a sentence, without subwords; an empty row has none."""
    batch = limits.lengths_B.shape[0]
    alive_BK = (jnp.arange(beams) == 0) & (limits.lengths_B > 0)[:, None]
    nothing_BN = jnp.full((batch, n_best), -jnp.inf, jnp.float32)
    none_BN = jnp.zeros((batch, n_best), jnp.int32)
    return _State(
        position=jnp.int32(0),
        ids_BK=jnp.full((batch, beams), BOS, jnp.int32),
        log_probs_BK=jnp.where(alive_BK, 0.0, -jnp.inf).astype(jnp.float32),
        cache=cache,
        ids_TBK=jnp.zeros((size, batch, beams), jnp.int32),
        parents_TBK=jnp.zeros((size, batch, beams), jnp.int32),
        pool=_Pool(nothing_BN, nothing_BN, lengths_BN=none_BN, places_BN=none_BN),
    )


def _advance(step: StepFn, limits: _Limits, state: _State) -> _State:
    """One more subword for every live hypothesis."""
    length = state.position + 1
    logits_BKV, cache = step(state.ids_BK, state.position, state.cache)
    ids_BKC, gains_BKC = _continuations(logits_BKV, limits.lengths_B == length)
    log_probs_BK, ids_BK, parents_BK = _best_candidates(state.log_probs_BK, ids_BKC, gains_BKC)
    ended_BK = ids_BK == EOS
    pool = _merge(state.pool, ended_BK, log_probs_BK, length, limits.penalties_L[length])
    live_BK = jnp.where(ended_BK, -jnp.inf, log_probs_BK)
    open_B = _may_still_enter(live_BK, limits.largest_BL[:, length + 1], pool)
    return _State(
        position=length,
        ids_BK=ids_BK,
        log_probs_BK=jnp.where(open_B[:, None], live_BK, -jnp.inf),
        cache=_reorder(cache, parents_BK),
        ids_TBK=state.ids_TBK.at[state.position].set(ids_BK),
        parents_TBK=state.parents_TBK.at[state.position].set(parents_BK),
        pool=pool,
    )


def _continuations(logits_BKV: Array, last_B: Array) -> tuple[Array, Array]:
    """Each hypothesis's best next subwords `[B, K, C]` and their log probabilities."""
    logits_BKV = logits_BKV.astype(jnp.float32)
    total_BK1 = jax.nn.logsumexp(logits_BKV, axis=-1, keepdims=True)
    # Of a beam's K best candidates at most K continue the same hypothesis. The order of logits is
    # that of log probabilities, so log-softmax over the vocabulary is never written out.
    logits_BKC, ids_BKC = top_k(logits_BKV, min(logits_BKV.shape[1:]))
    end_BKC = jnp.where(jnp.arange(ids_BKC.shape[-1]) == 0, logits_BKV[..., EOS, None], -jnp.inf)
    last_B11 = last_B[:, None, None]
    logits_BKC = jnp.where(last_B11, end_BKC, logits_BKC)
    ids_BKC = jnp.where(last_B11, EOS, ids_BKC)
    return ids_BKC, logits_BKC - total_BK1  # at most 0 after rounding too: logsumexp >= the largest


def _best_candidates(
    log_probs_BK: Array, ids_BKC: Array, gains_BKC: Array
) -> tuple[Array, Array, Array]:
    """The K best of a sentence's candidates: log probabilities (-inf: none), subwords, parents."""
    batch, beams, continuations = ids_BKC.shape
    sums_BKC = log_probs_BK[..., None] + gains_BKC
    sums_BKC = jnp.where(sums_BKC > IMPOSSIBLE, sums_BKC, -jnp.inf)  # NaN too
    best_BK, index_BK = top_k(sums_BKC.reshape(batch, -1), beams)
    ids_BK = jnp.take_along_axis(ids_BKC.reshape(batch, -1), index_BK, axis=1)
    return best_BK, ids_BK, index_BK // continuations


def _penalised(log_probs: Array, penalties: Array) -> Array:
    return jnp.maximum(log_probs / penalties, -LARGEST)


def _merge(
    pool: _Pool, ended_BK: Array, log_probs_BK: Array, length: Array, penalty: Array
) -> _Pool:
    """The best of the pool and of those that ended at `length`."""
    ended_BK &= log_probs_BK > -jnp.inf
    ended = _Pool(
        jnp.where(ended_BK, _penalised(log_probs_BK, penalty), -jnp.inf),
        log_probs_BK,
        jnp.full_like(ended_BK, length, jnp.int32),
        lax.broadcasted_iota(jnp.int32, ended_BK.shape, 1),
    )
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), pool, ended)
    # Of equals the first stays: free places before what has not ended, older before newer.
    _, order_BN = top_k(both.scores_BN, pool.scores_BN.shape[1])
    return jax.tree.map(lambda x_BP: jnp.take_along_axis(x_BP, order_BN, axis=1), both)


def _may_still_enter(live_BK: Array, largest_penalty_B: Array, pool: _Pool) -> Array:
    """Whether a live hypothesis could, at best, come before the pool's last `[B]`."""
    return _penalised(live_BK.max(axis=1), largest_penalty_B) > pool.scores_BN[:, -1]


def _reorder(cache: Cache, parents_BK: Array) -> Cache:
    """Every hypothesis takes over what its parent remembers."""
    if parents_BK.shape[1] == 1:
        return cache
    take = jax.vmap(lambda leaf_K, parents_K: leaf_K.at[parents_K].get(mode="promise_in_bounds"))
    return jax.tree.map(lambda leaf_BK: take(leaf_BK, parents_BK), cache)


def _read_back(state: _State) -> Array:
    """The pool's subwords `[B, N, T]`, followed from their ends through the parents."""
    lengths_BN = state.pool.lengths_BN

    def earlier(back: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        position = state.position - 1 - back
        places_BN, ids_TBN = carry
        inside_BN = position < lengths_BN
        ids_BN = jnp.take_along_axis(state.ids_TBK[position], places_BN, axis=1)
        parents_BN = jnp.take_along_axis(state.parents_TBK[position], places_BN, axis=1)
        return (
            jnp.where(inside_BN, parents_BN, places_BN),
            ids_TBN.at[position].set(jnp.where(inside_BN, ids_BN, PAD)),
        )

    ids_TBN = jnp.full((state.ids_TBK.shape[0], *lengths_BN.shape), PAD, jnp.int32)
    _, ids_TBN = lax.fori_loop(0, state.position, earlier, (state.pool.places_BN, ids_TBN))
    return ids_TBN.transpose(1, 2, 0)
