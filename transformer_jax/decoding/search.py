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
- An excluded subword keeps its probability but continues no hypothesis (exclusions.py); at the
  last position EOS follows even so.
- With several groups (diverse beam search, Vijayakumar et al. 2018), each group is a search with
  its own beams and pool. In a search step the groups choose one after the other. A continuation is
  ranked by its log probability minus the diversity times the number of hypotheses of earlier groups
  that have just chosen the same subword. Scores have no such term, and ends are not counted. A
  group whose search has ended chooses nothing more.
- A sentence's result does not depend on the rest of its batch. A limit of 0 marks an empty row,
  which takes no search step and has no result.

The decoder, the state and how sentences enter rows are in state.py; `advance` takes a search step.

Dimension key
  B batch   K beams   V vocabulary, padded   N n_best   T size, the longest hypothesis there is
  C continuations of one hypothesis, min(K + 1, V), or 1 if K = 1   A those of all, K C
  P pool and newcomers, N + K
  L lengths 0 .. T + 1
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.decoding.exclusions import NOTHING, Exclusions, without_excluded
from transformer_jax.decoding.penalties import coverage_penalty, covered, divisors, penalized
from transformer_jax.decoding.state import (
    IMPOSSIBLE,
    SearchResult,
    SearchState,
    StepFn,
    at_own_slot,
    finished_hypotheses,
    gather_slots,
    is_live,
    top_k,
    with_newest,
)
from transformer_jax.model.interfaces import Cache, Now
from transformer_jax.text.vocabulary import EOS


class Rules(NamedTuple):
    """How hypotheses are scored, and which are searched."""

    penalties_L: Array  # positive divisors of the summed log probability, by length
    largest_LL: Array  # [limit, length]: the largest penalty of the lengths from length to limit
    beta: float | Array  # strength of the coverage penalty
    exclusions: Exclusions = NOTHING  # what no hypothesis contains
    groups: int = 1  # each has K / groups beams and n_best / groups hypotheses in the pool
    diversity: float | Array = 0.0  # nats; see the head of this file


class Group(NamedTuple):
    """One group of beams in a search step."""

    logits_BKV: Array
    log_probs_BK: Array
    sequences_BKT: Array
    added_BK: Array | None  # beta times the coverage penalty, which is added to scores
    pool: SearchResult


class Chosen(NamedTuple):
    """The live hypotheses after a search step, and the pool."""

    ids_BK: Array
    parents_BK: Array
    log_probs_BK: Array
    pool: SearchResult


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
    now = at_own_slot(state.now)
    goes_on_B = is_live(state)
    stepped = step(now, state.memory, state.cache)
    coverage = covered(state.coverage, stepped.watched_BKM)
    added_BK = None if coverage is None else rules.beta * coverage_penalty(coverage)
    whole = Group(stepped.logits_BKV, state.log_probs_BK, state.sequences_BKT, added_BK, state.pool)
    found = list[Chosen]()
    penalty_BV = None
    for group in _divided(whole, rules.groups):
        found.append(_extended(group, state, rules, penalty_BV))
        if rules.groups > 1:
            penalty_BV = _diversity_penalty(
                penalty_BV, found[-1], rules.diversity, group.logits_BKV.shape
            )
    ids_BK, parents_BK, log_probs_BK, pool = _united(found)

    def follow(x_BK: Array) -> Array:  # a hypothesis inherits what its parent carries
        return gather_slots(x_BK, parents_BK)

    if coverage is not None:
        coverage = coverage._replace(sums_BKM=follow(coverage.sums_BKM))
    return state._replace(
        now=Now(
            position_B=now.position_B + goes_on_B,
            ids_BK=ids_BK,
            ancestors_BKT=follow(now.ancestors_BKT),
        ),
        log_probs_BK=log_probs_BK,
        sequences_BKT=with_newest(follow(state.sequences_BKT), now.position_B, ids_BK),
        cache=Cache(stepped.cache.written, jax.tree.map(follow, stepped.cache.carried)),
        coverage=coverage,
        pool=pool,
        steps=state.steps + 1,
    )


def _divided(whole: Group, groups: int) -> Iterator[Group]:
    """Yields the groups: each has an equal share of neighboring beams and entries of the pool."""
    for g in range(groups):

        def part(x: Array, g: int = g) -> Array:
            size = x.shape[1] // groups
            return x if groups == 1 else x[:, g * size : (g + 1) * size]

        yield jax.tree.map(part, whole)


def _united(found: Sequence[Chosen]) -> Chosen:
    """The choices of all groups side by side, with parents among all beams."""
    if len(found) == 1:
        return found[0]
    size = found[0].ids_BK.shape[1]
    found = [one._replace(parents_BK=one.parents_BK + g * size) for g, one in enumerate(found)]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *found)


def _diversity_penalty(
    before_BV: Array | None, chosen: Chosen, diversity: float | Array, shape: Sequence[int]
) -> Array:
    """Nats that the next group's continuations lose in the ranking, `[batch, vocabulary]`."""
    sum_BV = jnp.zeros((shape[0], shape[-1])) if before_BV is None else before_BV
    added_BK = jnp.where(chosen.log_probs_BK > -jnp.inf, diversity, 0.0)
    return sum_BV.at[jnp.arange(shape[0])[:, None], chosen.ids_BK].add(added_BK)


def _extended(group: Group, state: SearchState, rules: Rules, penalty_BV: Array | None) -> Chosen:
    """Extends the live hypotheses of one group."""
    batch, beams = group.log_probs_BK.shape
    position_B = state.now.position_B
    length_B = position_B + 1
    is_last_B = length_B == state.limits_B
    ids_BA, sums_BA, parents_A = _candidates(group, position_B, is_last_B, rules, penalty_BV)
    avoided_BA = None
    if penalty_BV is not None:
        avoided_BA = jnp.take_along_axis(penalty_BV, ids_BA, axis=1)
    best_BK, index_BK = _best(sums_BA, avoided_BA, beams)
    ended_BK = jnp.take_along_axis(ids_BA, index_BK, axis=1) == EOS
    ended_parents_BK = parents_A[index_BK]
    ended_BKT = gather_slots(group.sequences_BKT, ended_parents_BK)
    ended_BKT = with_newest(ended_BKT, position_B, jnp.full((batch, beams), EOS))
    log_probs_BK = jnp.where(ended_BK, best_BK, -jnp.inf)
    scores_BK = penalized(log_probs_BK, rules.penalties_L[length_B][:, None])
    if group.added_BK is not None:
        scores_BK += gather_slots(group.added_BK, ended_parents_BK)
    pool = _merge(group.pool, finished_hypotheses(log_probs_BK, scores_BK, length_B, ended_BKT))
    going_BA = jnp.where(ids_BA == EOS, -jnp.inf, sums_BA)
    log_probs_BK, index_BK = _best(going_BA, avoided_BA, beams)
    ids_BK = jnp.take_along_axis(ids_BA, index_BK, axis=1)
    parents_BK = parents_A[index_BK]
    bound_B = rules.largest_LL[state.limits_B, length_B + 1]
    open_B = _may_still_enter(log_probs_BK, bound_B, pool)
    log_probs_BK = jnp.where(open_B[:, None], log_probs_BK, -jnp.inf)
    return Chosen(ids_BK, parents_BK, log_probs_BK, pool)


def _best(x: Array, avoided: Array | None, k: int) -> tuple[Array, Array]:
    """The values of the k entries with the largest x - avoided, and their indices `[..., k]`."""
    if avoided is None:
        return top_k(x, k)
    _, index = top_k(x - avoided, k)
    return jnp.take_along_axis(x, index, axis=-1), index


def _candidates(
    group: Group, position_B: Array, last_B: Array, rules: Rules, penalty_BV: Array | None
) -> tuple[Array, Array, Array]:
    """The best continuations of the first hypothesis, then of the next, and so on.

    Returns:
      Subwords and summed log probabilities (-inf: none) `[batch, beams * continuations]`, and the
      beam slots of the hypotheses `[beams * continuations]`.
    """
    batch, beams, vocabulary = group.logits_BKV.shape
    logits_BKV = group.logits_BKV.astype(jnp.float32)
    # K + 1 continuations suffice: one of them ends the hypothesis, and at most K others are among
    # the K best. Logits have the order of log probabilities, so no full log-softmax is needed.
    allowed_BKV = without_excluded(rules.exclusions, logits_BKV, group.sequences_BKT, position_B)
    count = min(beams + (beams > 1), vocabulary)
    avoided_BKV = None if penalty_BV is None else penalty_BV[:, None]
    logits_BKC, ids_BKC = _best(allowed_BKV, avoided_BKV, count)
    first_is_highest = allowed_BKV is logits_BKV and penalty_BV is None
    highest_BK1 = logits_BKC[..., :1] if first_is_highest else logits_BKV.max(-1, keepdims=True)
    total_BK1 = highest_BK1 + jnp.log(jnp.exp(logits_BKV - highest_BK1).sum(-1, keepdims=True))
    end_BKC = jnp.where(jnp.arange(ids_BKC.shape[-1]) == 0, logits_BKV[..., EOS, None], -jnp.inf)
    last_B11 = last_B[:, None, None]
    logits_BKC = jnp.where(last_B11, end_BKC, logits_BKC)
    ids_BKC = jnp.where(last_B11, EOS, ids_BKC)
    # The gain is at most 0 after rounding too: logsumexp >= the largest.
    sums_BKC = group.log_probs_BK[..., None] + (logits_BKC - total_BK1)
    sums_BKC = jnp.where(sums_BKC > IMPOSSIBLE, sums_BKC, -jnp.inf)  # NaN too
    parents_A = jnp.repeat(jnp.arange(beams, dtype=jnp.int32), ids_BKC.shape[-1])
    return ids_BKC.reshape(batch, -1), sums_BKC.reshape(batch, -1), parents_A


def _merge(pool: SearchResult, newcomers: SearchResult) -> SearchResult:
    """The best of the pool and of the hypotheses that have just ended."""
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), pool, newcomers)
    # Of equal scores the first stays: free entries before newcomers that did not end, and older
    # entries before newer ones.
    _, order_BN = top_k(both.scores, pool.scores.shape[1])
    return jax.tree.map(lambda x_BP: gather_slots(x_BP, order_BN), both)


def _may_still_enter(live_BK: Array, largest_penalty_B: Array, pool: SearchResult) -> Array:
    """Whether the best score that a live hypothesis can reach beats the pool's last `[B]`."""
    return penalized(live_BK.max(axis=1), largest_penalty_B) > pool.scores[:, -1]
