"""A toy decoder, and functions that compare search over it with reference_search.py."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.decoding import reference_search as reference
from transformer_jax.decoding.exclusions import NOTHING, Exclusions
from transformer_jax.decoding.penalties import empty_coverage
from transformer_jax.decoding.search import advance, make_rules
from transformer_jax.decoding.state import empty_search, is_live, start_sentences
from transformer_jax.model.interfaces import Cache, Stepped
from transformer_jax.text.vocabulary import BOS, EOS, PAD

BATCH, SIZE, VOCABULARY, PADDED = 5, 9, 11, 13
BUCKETS = 97  # of HashModel
WORDS = 4  # of a source
AFTER_BOS = BOS + 1  # the rolling hash before the first subword


class HashModel:
    """Logits looked up by two hashes of the whole history, and attention by one of them.

    The one is carried by a hypothesis, and search has to reorder it; the other is computed anew
    from a cache that nothing moves, by the ancestors.
    """

    def __init__(self, seed, batch=BATCH, vocabulary=VOCABULARY, padded=PADDED, eos_logit=0.0):
        draw = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self.logits = np.full((batch, 2, BUCKETS, padded), -1e9, np.float32)
        self.logits[..., :vocabulary] = draw.normal(0, 1.5, (batch, 2, BUCKETS, vocabulary))
        self.logits[..., EOS] += eos_logit
        self.weights = draw.dirichlet([0.3] * WORDS, (batch, BUCKETS)).astype(np.float32)
        # The last positions are the source's EOS, or padding.
        self.counted = np.arange(WORDS) < draw.integers(2, WORDS, batch)[:, None]

    @property
    def table(self):
        """The memory of the source sentences, one row each."""
        return {"logits": self.logits, "weights": self.weights}

    @staticmethod
    def rolled(ids):
        return functools.reduce(lambda code, i: (code * 31 + i + 1) % BUCKETS, [BOS, *ids], 0)

    def next_logits(self, sentence, ids):
        table = self.logits[sentence, :, :, : self.vocabulary].astype(np.float64)
        summed = sum((2 * n + 3) * (i + 1) for n, i in enumerate([BOS, *ids])) % BUCKETS
        return table[0, self.rolled(ids)] + table[1, summed]

    def penalty(self, sentence, ids):
        """sum_j log(min(sum_i p_ij, 1)) of a hypothesis, in plain loops (Wu et al. 2016)."""
        total = 0.0
        for j in np.flatnonzero(self.counted[sentence]):
            chosen_at = [self.rolled(ids[:i]) for i in range(len(ids))]
            attention = sum(float(self.weights[sentence, code, j]) for code in chosen_at)
            total += np.log(min(max(attention, 1e-6), 1.0))
        return total

    @staticmethod
    def cache(batch, beams, size):
        return Cache(
            written=(jnp.full((batch, size, beams), 10**6, jnp.int32),),
            carried={"code": jnp.zeros((batch, beams), jnp.int32)},
        )

    @staticmethod
    def step(now, memory, cache):
        code = (cache.carried["code"] * 31 + now.ids_BK + 1) % BUCKETS
        rows_B = jnp.arange(now.ids_BK.shape[0])
        history = cache.written[0].at[rows_B, now.position_B].set(now.ids_BK + 1)
        own_BKT = jnp.take_along_axis(history.swapaxes(1, 2), now.ancestors_BKT, axis=1)
        places_T = jnp.arange(own_BKT.shape[2])
        past_B1T = places_T <= now.position_B[:, None, None]
        summed = (jnp.where(past_B1T, own_BKT, 0) * (2 * places_T + 3)).sum(-1) % BUCKETS
        table, rows_B1 = memory["logits"], rows_B[:, None]
        logits = jnp.maximum(table[rows_B1, 0, code] + table[rows_B1, 1, summed], -1e9)
        weights = memory["weights"][rows_B1, code]
        return Stepped(logits, Cache((history,), {"code": code}), weights)


def beam_search(
    step,
    memory,
    cache,
    max_lengths,
    *,
    beam_size,
    size,
    alpha,
    n_best=1,
    penalty="gnmt",
    beta=0.0,
    counted=None,
    exclusions=NOTHING,
    groups=1,
    diversity=0.0,
):
    """The `n_best` best hypotheses of each sentence, and how many times `step` was called."""
    batch = max_lengths.shape[0]
    rules = make_rules(size, alpha, penalty, beta)
    rules = rules._replace(exclusions=exclusions, groups=groups, diversity=diversity)
    state = empty_search(memory, cache, batch, beam_size=beam_size, size=size, n_best=n_best)
    # The last row of the arguments is none of the state's: it changes nothing.
    rows, limits = jnp.append(jnp.arange(batch), -1), jnp.append(max_lengths, size)
    if counted is not None:
        state = state._replace(coverage=empty_coverage(beam_size, counted))
        counted = jnp.concatenate([counted, ~counted[:1]])
    state = start_sentences(state, rows, limits, counted, groups=groups)
    state = lax.while_loop(
        lambda state: is_live(state).any(), lambda state: advance(step, rules, state), state
    )
    return state.pool, state.steps


class Found(NamedTuple):
    ids: Any
    lengths: Any
    log_probs: Any
    scores: Any
    steps: Any


def find(
    table, limits, alpha=0.6, *, beam, size=SIZE, banned=(), min_length=0, no_repeat=0, **settings
):
    pool, steps = beam_search(
        HashModel.step,
        table,
        HashModel.cache(len(limits), beam, size),
        limits,
        alpha=alpha,
        beam_size=beam,
        size=size,
        exclusions=Exclusions(banned, min_length, no_repeat),
        **settings,
    )
    return Found(*pool, steps)


def compiled(function):
    names = ("beam", "n_best", "size", "penalty", "banned", "min_length", "no_repeat", "groups")
    call = jax.jit(function, static_argnames=names)
    return lambda model, *args, **kwargs: jax.device_get(call(model.table, *args, **kwargs))


run = compiled(find)


def rows(result, sentence):
    """A sentence's hypotheses as lists of ids, with their numbers."""
    found = []
    for ids, length, log_prob, score in zip(*(x[sentence] for x in result[:4]), strict=True):
        assert (ids[length:] == PAD).all()
        if length == 0:
            assert log_prob == -np.inf and score == -np.inf
        else:
            found.append((ids[:length].tolist(), float(log_prob), float(score)))
    return found


def assert_same_hypotheses(result, sentence, want):
    got = rows(result, sentence)
    assert [ids for ids, _, _ in got] == [h.ids for h in want]
    np.testing.assert_allclose([h[1] for h in got], [h.log_prob for h in want], rtol=2e-6)
    np.testing.assert_allclose([h[2] for h in got], [h.score for h in want], rtol=2e-6)


def coverage(model, beta):
    """The settings of a coverage penalty; none if beta is None."""
    return {} if beta is None else {"beta": beta, "counted": model.counted}


def checked(model, limits, alpha=0.6, beta=None, *, penalty="gnmt", size=SIZE, **settings):
    """The result of search, which is that of the plain search in as few steps as possible."""
    own = {"penalty": penalty, "size": size, **settings, **coverage(model, beta)}
    result = run(model, np.array(limits), alpha, **own)

    def added(sentence, ids):
        return (beta or 0.0) * model.penalty(sentence, ids)

    steps = 0
    for sentence, limit in enumerate(limits):
        want, needed = reference.beam_search(
            model.next_logits,
            sentence,
            min(limit, size),
            alpha=alpha,
            penalty=reference.PENALTIES[penalty],
            added=added,
            **settings,
        )
        assert_same_hypotheses(result, sentence, want)
        steps = max(steps, needed)
    assert result.steps == steps
    return result
