"""Ancestral sampling: each sample of a sentence is drawn from the model, subword by subword.

Rules of sampling
- A sample's next subword is drawn from the softmax of logits / temperature. Temperature 0 takes the
  likeliest subword, which is greedy search.
- top_k leaves the k likeliest subwords (Fan et al. 2018). top_p then leaves the nucleus: the
  likeliest of them whose probabilities sum to at least top_p (Holtzman et al. 2020). Equally likely
  subwords stay or go together.
- A sample's log probability and score are those of search: what the model gives its subwords at
  temperature 1, whatever was left out. At the last position of a sentence, and if every subword
  is excluded, EOS follows.
- Samples are independent of one another and are not ranked: sample n is hypothesis n of the result.
- The random numbers belong to (seed, sentence, sample, position, subword). So a sentence's samples
  depend on nothing else: not on its batch, nor on how many samples there are. Two equal sentences
  have equal samples.

A subword is drawn with Gumbel noise: argmax(logits + temperature * noise) has the distribution
softmax(logits / temperature) (Gumbel 1954; Maddison et al. 2014).

Dimension key
  B batch   K samples   V vocabulary, padded   T size, the longest hypothesis
"""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.decoding.exclusions import without_excluded
from transformer_jax.decoding.penalties import coverage_penalty, covered, penalized
from transformer_jax.decoding.search import Rules
from transformer_jax.decoding.state import (
    IMPOSSIBLE,
    SearchState,
    StepFn,
    at_own_slot,
    finished_hypotheses,
    is_live,
    top_k,
    with_newest,
)
from transformer_jax.model.layers.dropout import mix, standard_gumbel, uniform
from transformer_jax.text.vocabulary import EOS

COLDEST = 1e-6  # a temperature that leaves the nucleus only the likeliest subwords


class Sampling(NamedTuple):
    """How samples are drawn and scored."""

    temperature: float | Array
    top_k: int | None  # None: every subword
    top_p: float | Array | None  # None: every subword
    rules: Rules


def draw(step: StepFn, sampling: Sampling, state: SearchState) -> SearchState:
    """One step: draws the next subword of every sample that has not ended."""
    rules = sampling.rules
    now = at_own_slot(state.now)
    goes_on_B = is_live(state)
    length_B = now.position_B + 1
    stepped = step(now, state.memory, state.cache)
    coverage = covered(state.coverage, stepped.watched_BKM)
    logits_BKV = stepped.logits_BKV.astype(jnp.float32)
    noise_BKV = gumbel_noise(state, logits_BKV.shape[2])
    allowed_BKV = without_excluded(
        rules.exclusions, logits_BKV, state.sequences_BKT, now.position_B
    )
    noisy_BKV = kept_logits(allowed_BKV, sampling) + sampling.temperature * noise_BKV
    ends_BK = (length_B == state.limits_B)[:, None] | jnp.isneginf(noisy_BKV.max(-1))
    ids_BK = jnp.where(ends_BK, EOS, noisy_BKV.argmax(-1))
    own_BK = jnp.take_along_axis(logits_BKV, ids_BK[..., None], axis=-1)[..., 0]
    log_probs_BK = state.log_probs_BK + own_BK - jax.nn.logsumexp(logits_BKV, axis=-1)
    log_probs_BK = jnp.where(log_probs_BK > IMPOSSIBLE, log_probs_BK, -jnp.inf)  # NaN too
    sequences_BKT = with_newest(state.sequences_BKT, now.position_B, ids_BK)
    ended_BK = ids_BK == EOS
    scores_BK = penalized(log_probs_BK, rules.penalties_L[length_B][:, None])
    if coverage is not None:
        scores_BK += rules.beta * coverage_penalty(coverage)
    new = finished_hypotheses(
        jnp.where(ended_BK, log_probs_BK, -jnp.inf), scores_BK, length_B, sequences_BKT
    )

    def replaced(old_BK: Array, new_BK: Array) -> Array:
        ends_BK = new.lengths > 0
        return jnp.where(ends_BK.reshape(ends_BK.shape + (1,) * (old_BK.ndim - 2)), new_BK, old_BK)

    return state._replace(
        now=now._replace(position_B=jnp.where(goes_on_B, length_B, now.position_B), ids_BK=ids_BK),
        log_probs_BK=jnp.where(ended_BK, -jnp.inf, log_probs_BK),
        sequences_BKT=sequences_BKT,
        cache=stepped.cache,
        coverage=coverage,
        pool=jax.tree.map(replaced, state.pool, new),
        steps=state.steps + 1,
    )


def kept_logits(logits_BKV: Array, sampling: Sampling) -> Array:
    """The logits; -inf for subwords that are excluded, or not among top_k or in the nucleus."""
    logits_BKV = jnp.where(logits_BKV > IMPOSSIBLE, logits_BKV, -jnp.inf)
    if sampling.top_k is not None and sampling.top_k < logits_BKV.shape[-1]:
        least_BK1 = top_k(logits_BKV, sampling.top_k)[0][..., -1:]
        logits_BKV = jnp.where(logits_BKV >= least_BK1, logits_BKV, -jnp.inf)
    if sampling.top_p is None:
        return logits_BKV
    temperature = jnp.maximum(sampling.temperature, COLDEST)
    highest_BK1 = logits_BKV.max(-1, keepdims=True)
    probs_BKV = jax.nn.softmax((logits_BKV - highest_BK1) / temperature)
    inside_BKV = probs_BKV >= nucleus_threshold(probs_BKV, sampling.top_p)
    return jnp.where(inside_BKV, logits_BKV, -jnp.inf)


def nucleus_threshold(probs: Array, top_p: float | Array) -> Array:
    """The largest t such that the probabilities of at least t sum to at least `top_p`.

    Bisection over the bits of float32, which have the order of the numbers: 31 sums. On a CPU they
    are faster than sorting the vocabulary.

    Args:
      probs: float32 `[..., width]`, at least 0.
      top_p: in (0, 1].

    Returns:
      float32 `[..., 1]`; 0 if rounding keeps the whole sum below `top_p`.
    """
    bits = jax.lax.bitcast_convert_type(probs, jnp.int32)
    threshold = jnp.zeros((*probs.shape[:-1], 1), jnp.int32)

    def halve(n: Array, threshold: Array) -> Array:
        higher = threshold + (1 << (30 - n))
        mass = jnp.where(bits >= higher, probs, 0.0).sum(-1, keepdims=True)
        return jnp.where(mass >= top_p, higher, threshold)

    threshold = jax.lax.fori_loop(0, 31, halve, threshold)
    return jax.lax.bitcast_convert_type(threshold, jnp.float32)


def sentence_seed(ids: np.ndarray, seed: int) -> int:
    """A random number below 2^32 for a sentence and a seed below 2^32.

    The sentence is its subwords `[length]`, or numbers `[length, features]`.
    """
    words = ids.astype("<i4" if ids.ndim == 1 else "<f4").tobytes()
    return int.from_bytes(hashlib.blake2b(words, digest_size=4, key=seed.to_bytes(4)).digest())


def gumbel_noise(state: SearchState, width: int) -> Array:
    """Standard Gumbel noise for the samples' next subword: float32 `[batch, samples, width]`."""
    assert state.sample_seed_B is not None
    samples_K = mix(jnp.arange(state.now.ids_BK.shape[1], dtype=jnp.uint32))
    sample_BK = mix(state.sample_seed_B[:, None] ^ samples_K)
    position_B1 = mix(state.now.position_B.astype(jnp.uint32))[:, None]
    hash_BK = mix(sample_BK ^ position_B1)
    subword_V = mix(jnp.arange(width, dtype=jnp.uint32))
    bits_BKV = mix(hash_BK[..., None] ^ subword_V)
    return standard_gumbel(uniform(bits_BKV))
