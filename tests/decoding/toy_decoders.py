"""Toy decoders, and functions that compare search over them with reference_search.py."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.decoding import reference_search as reference
from transformer_jax.decoding.exclusions import Exclusions
from transformer_jax.decoding.search import beam_search
from transformer_jax.model.interfaces import Cache, Stepped
from transformer_jax.text.vocabulary import BOS, EOS, PAD

BATCH, SIZE, VOCABULARY, PADDED = 5, 9, 11, 13
BUCKETS = 97  # of HashModel
AFTER_BOS = BOS + 1  # its rolling hash before the first subword


def pad_vocabulary(logits, padded):
    width = [(0, 0)] * (logits.ndim - 1) + [(0, padded - logits.shape[-1])]
    return np.pad(logits, width, constant_values=-1e9).astype(np.float32)


class HashModel:
    """Logits looked up by two hashes of the whole history.

    The one is carried by a hypothesis, and search has to reorder it; the other is computed anew
    from a cache that nothing moves, by the ancestors.
    """

    def __init__(self, seed, batch=BATCH, vocabulary=VOCABULARY, padded=PADDED, eos_logit=0.0):
        table = np.random.default_rng(seed).normal(0, 1.5, (batch, 2, BUCKETS, vocabulary))
        table[..., EOS] += eos_logit
        self.real = table
        self.table = pad_vocabulary(table, padded)

    @staticmethod
    def rolled(ids):
        return functools.reduce(lambda code, i: (code * 31 + i + 1) % BUCKETS, [BOS, *ids], 0)

    def next_logits(self, sentence, ids):
        table = self.table[sentence, :, :, : self.real.shape[-1]].astype(np.float64)
        return self.lookup(table, ids)

    @staticmethod
    def lookup(table, ids):
        summed = sum((2 * n + 3) * (i + 1) for n, i in enumerate([BOS, *ids])) % BUCKETS
        return table[0, HashModel.rolled(ids)] + table[1, summed]

    @staticmethod
    def memory(table):
        """The table's part for these sentences, one row each."""
        return table

    @staticmethod
    def cache(batch, beams, size):
        return Cache(
            written=(jnp.full((batch, size, beams), 10**6, jnp.int32),),
            carried={"code": jnp.zeros((batch, beams), jnp.int32)},
        )

    @staticmethod
    def step(_, now, table, cache):
        code = (cache.carried["code"] * 31 + now.ids_BK + 1) % BUCKETS
        rows_B = jnp.arange(now.ids_BK.shape[0])
        history = cache.written[0].at[rows_B, now.position_B].set(now.ids_BK + 1)
        own_BKT = jnp.take_along_axis(history.swapaxes(1, 2), now.ancestors_BKT, axis=1)
        places_T = jnp.arange(own_BKT.shape[2])
        past_B1T = places_T <= now.position_B[:, None, None]
        summed = (jnp.where(past_B1T, own_BKT, 0) * (2 * places_T + 3)).sum(-1) % BUCKETS
        logits = table[rows_B[:, None], 0, code] + table[rows_B[:, None], 1, summed]
        return Stepped(jnp.maximum(logits, -1e9), Cache((history,), {"code": code}), None)


class RecurrentModel:
    """state = tanh(W state + E id + sentence vector); logits = U state."""

    WIDTH = 6

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        draw = functools.partial(random.normal, 0.0)
        width = self.WIDTH
        self.table = {
            "W": draw(0.8, (width, width)).astype(np.float32),
            "E": draw(1.5, (PADDED, width)).astype(np.float32),
            "U": draw(1.5, (width, PADDED)).astype(np.float32),
            "sentence": draw(1.0, (BATCH, width)).astype(np.float32),
        }

    def next_logits(self, sentence, ids):
        table = {name: array.astype(np.float64) for name, array in self.table.items()}
        state = np.zeros(self.WIDTH)
        for i in [BOS, *ids]:
            state = np.tanh(state @ table["W"] + table["E"][i] + table["sentence"][sentence])
        return (state @ table["U"])[:VOCABULARY]

    @staticmethod
    def memory(table):
        return table["sentence"]

    @staticmethod
    def cache(batch, beams, size):
        return Cache(written=(), carried=jnp.zeros((batch, beams, RecurrentModel.WIDTH)))

    @staticmethod
    def step(table, now, sentence, cache):
        state = cache.carried @ table["W"] + table["E"][now.ids_BK]
        state = jnp.tanh(state + sentence[:, None])
        logits = state @ table["U"]
        logits = jnp.where(jnp.arange(logits.shape[-1]) < VOCABULARY, logits, -1e9)
        return Stepped(logits, Cache((), state), None)


class AttendingModel(HashModel):
    """A HashModel that attends to WORDS source positions with weights looked up by its hash."""

    WORDS = 4

    def __init__(self, seed, batch=BATCH, vocabulary=VOCABULARY, eos_logit=0.0):
        super().__init__(seed, batch, vocabulary, PADDED, eos_logit)
        draw = np.random.default_rng(1_000 + seed)
        self.weights = draw.dirichlet([0.3] * self.WORDS, (batch, BUCKETS)).astype(np.float32)
        # The last positions are the source's EOS, or padding.
        self.counted = np.arange(self.WORDS) < draw.integers(2, self.WORDS, batch)[:, None]
        self.table = {"logits": self.table, "weights": self.weights}

    def next_logits(self, sentence, ids):
        table = self.table["logits"][sentence, :, :, : self.real.shape[-1]].astype(np.float64)
        return HashModel.lookup(table, ids)

    def penalty(self, sentence, ids):
        """sum_j log(min(sum_i p_ij, 1)) of a hypothesis, in plain loops (Wu et al. 2016)."""
        total = 0.0
        for j in np.flatnonzero(self.counted[sentence]):
            chosen_at = [self.rolled(ids[:i]) for i in range(len(ids))]
            attention = sum(float(self.weights[sentence, code, j]) for code in chosen_at)
            total += np.log(min(max(attention, 1e-6), 1.0))
        return total

    @staticmethod
    def step(_, now, memory, cache):
        stepped = HashModel.step(_, now, memory["logits"], cache)
        rows_B1 = jnp.arange(now.ids_BK.shape[0])[:, None]
        weights = memory["weights"][rows_B1, stepped.cache.carried["code"]]
        return stepped._replace(watched_BKM=weights)


class Found(NamedTuple):
    ids: Any
    lengths: Any
    log_probs: Any
    scores: Any
    steps: Any


def find(
    model,
    table,
    limits,
    alpha=0.6,
    *,
    beam,
    size=SIZE,
    banned=(),
    min_length=0,
    no_repeat=0,
    **settings,
):
    pool, steps = beam_search(
        functools.partial(model.step, table),
        model.memory(table),
        model.cache(len(limits), beam, size),
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
    call = jax.jit(function, static_argnums=0, static_argnames=names)
    return lambda *args, **kwargs: jax.device_get(call(*args, **kwargs))


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


def assert_same_result(got, want):
    np.testing.assert_array_equal(got.ids, want.ids)
    np.testing.assert_array_equal(got.lengths, want.lengths)
    np.testing.assert_allclose(got.log_probs, want.log_probs, rtol=1e-6)
    np.testing.assert_allclose(got.scores, want.scores, rtol=1e-6)


def coverage(model, beta):
    """The settings of a coverage penalty; none if beta is None."""
    return {} if beta is None else {"beta": beta, "counted": model.counted}


def checked(
    model, limits, alpha=0.6, beta=None, *, beam, n_best, penalty="gnmt", size=SIZE, **exclusions
):
    """The result of search, which is that of the plain search in as few steps as possible."""
    settings = {"beam": beam, "n_best": n_best, "penalty": penalty, "size": size, **exclusions}
    settings |= coverage(model, beta)
    result = run(type(model), model.table, np.array(limits), alpha, **settings)

    def added(sentence, ids):
        return 0.0 if beta is None else beta * model.penalty(sentence, ids)

    steps = 0
    for sentence, limit in enumerate(limits):
        want, needed = reference.beam_search(
            model.next_logits,
            sentence,
            min(limit, size),
            beam_size=beam,
            n_best=n_best,
            alpha=alpha,
            penalty=reference.PENALTIES[penalty],
            added=added,
            **exclusions,
        )
        assert_same_hypotheses(result, sentence, want)
        steps = max(steps, needed)
    assert result.steps == steps
    return result
