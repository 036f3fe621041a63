"""Beam search (Sutskever et al. 2014, section 3.2; Wu et al. 2016, section 7) over any decoder.

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

The decoder, the state and how sentences enter rows are in state.py. `beam_search` searches a batch.

Dimension key
  B batch   K beams   V vocabulary, padded   N n_best   T size, the longest hypothesis there is
  C continuations of one hypothesis, min(K + 1, V)   P pool and newcomers, N + K
  L lengths 0 .. T + 1
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.decoding.penalties import (
    coverage_penalty,
    covered,
    divisors,
    empty_coverage,
    penalized,
)
from transformer_jax.decoding.state import (
    IMPOSSIBLE,
    Memory,
    SearchResult,
    SearchState,
    StepFn,
    at_own_slot,
    empty_search,
    ended,
    enter,
    gather_rows,
    is_live,
    with_newest,
)
from transformer_jax.decoding.top_k import top_k
from transformer_jax.model.records import Cache, Now
from transformer_jax.text.vocabulary import EOS


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
    lengths_L = jnp.arange(size + 2)
    penalties_L = divisors(penalty, lengths_L, alpha)
    within_LL = jnp.where(lengths_L <= lengths_L[:, None], penalties_L, 0.0)
    return Rules(penalties_L, lax.cummax(within_LL, axis=1, reverse=True), beta)


def advance(step: StepFn, rules: Rules, state: SearchState) -> SearchState:
    """One search step: extends every live hypothesis by one subword."""
    batch, beams, _ = state.sequences_BKT.shape
    now, goes_on_B = at_own_slot(state.now), is_live(state)
    length_B = now.position_B + 1
    stepped = step(now, state.memory, state.cache)
    coverage = covered(state.coverage, stepped.watched_BKM)
    ids_BC, sums_BC, parents_C = _candidates(
        stepped.logits_BKV, state.log_probs_BK, length_B == state.limits_B, rules.banned
    )
    best_BK, index_BK = top_k(sums_BC, beams)
    ended_BK = jnp.take_along_axis(ids_BC, index_BK, axis=1) == EOS
    ended_parents_BK = parents_C[index_BK]
    ended_BKT = gather_rows(state.sequences_BKT, ended_parents_BK)
    ended_BKT = with_newest(ended_BKT, now.position_B, jnp.full((batch, beams), EOS))
    log_probs_BK = jnp.where(ended_BK, best_BK, -jnp.inf)
    scores_BK = penalized(log_probs_BK, rules.penalties_L[length_B][:, None])
    if coverage is not None:
        scores_BK += rules.beta * gather_rows(coverage_penalty(coverage), ended_parents_BK)
    pool = _merge(state.pool, ended(log_probs_BK, scores_BK, length_B, ended_BKT))
    log_probs_BK, index_BK = top_k(jnp.where(ids_BC == EOS, -jnp.inf, sums_BC), beams)
    ids_BK, parents_BK = jnp.take_along_axis(ids_BC, index_BK, axis=1), parents_C[index_BK]
    bound_B = rules.largest_LL[state.limits_B, length_B + 1]
    open_B = _may_still_enter(log_probs_BK, bound_B, pool)

    def follow(x_BK: Array) -> Array:  # a hypothesis inherits what its parent carries
        return gather_rows(x_BK, parents_BK)

    if coverage is not None:
        coverage = coverage._replace(sums_BKM=follow(coverage.sums_BKM))
    return state._replace(
        now=Now(
            position_B=jnp.where(goes_on_B, length_B, now.position_B),
            ids_BK=ids_BK,
            ancestors_BKT=follow(now.ancestors_BKT),
        ),
        log_probs_BK=jnp.where(open_B[:, None], log_probs_BK, -jnp.inf),
        sequences_BKT=with_newest(follow(state.sequences_BKT), now.position_B, ids_BK),
        cache=Cache(stepped.cache.written, jax.tree.map(follow, stepped.cache.carried)),
        coverage=coverage,
        pool=pool,
        steps=state.steps + 1,
    )


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


def _merge(pool: SearchResult, newcomers: SearchResult) -> SearchResult:
    """The best of the pool and of the hypotheses that have just ended."""
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), pool, newcomers)
    # Of equal scores the first stays: free entries before newcomers that did not end, and older
    # entries before newer ones.
    _, order_BN = top_k(both.scores, pool.scores.shape[1])
    return jax.tree.map(lambda x_BP: gather_rows(x_BP, order_BN), both)


def _may_still_enter(live_BK: Array, largest_penalty_B: Array, pool: SearchResult) -> Array:
    """Whether the best score that a live hypothesis can reach beats the pool's last `[B]`."""
    return penalized(live_BK.max(axis=1), largest_penalty_B) > pool.scores[:, -1]
