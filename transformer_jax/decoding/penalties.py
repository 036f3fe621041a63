"""Length and coverage penalties, from which search computes the score of a finished hypothesis.

Dimension key
  B batch   K beams   M source length
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

# Divisors are clipped, so that no alpha makes a score 0 / 0, or -inf, which means no hypothesis.
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
LEAST_COVERED = 1e-6  # the sum of attention of a source position counts as at least this


def gnmt_penalty(lengths: Array, alpha: float | Array) -> Array:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14); 1 for alpha 0."""
    return ((5.0 + lengths) / 6.0) ** alpha


def power_penalty(lengths: Array, alpha: float | Array) -> Array:
    """length^alpha, as in Marian, CTranslate2 and Hugging Face's transformers; 1 for alpha 0."""
    return (1.0 * lengths) ** alpha


# (lengths in subwords, alpha) -> positive divisors of the summed log probability
Penalty = Callable[[Array, float | Array], Array]
PENALTIES: dict[str, Penalty] = {"gnmt": gnmt_penalty, "power": power_penalty}


def divisors(penalty: str, lengths: Array, alpha: float | Array) -> Array:
    """The positive, finite float32 divisors of summed log probabilities, by length.

    Raises:
      ValueError: there is no such penalty.
    """
    if penalty not in PENALTIES:
        raise ValueError(f"penalty={penalty!r} is unknown; there are {', '.join(PENALTIES)}.")
    return jnp.clip(PENALTIES[penalty](lengths, alpha), SMALLEST, LARGEST)


def penalized(log_probs: Array, divisors: Array) -> Array:
    """log_probs / divisors, at least -LARGEST, even for -inf: callers mask missing hypotheses."""
    return jnp.maximum(log_probs / divisors, -LARGEST)


class Coverage(NamedTuple):
    """The attention that each source position has received."""

    sums_BKM: Array  # float32, for each live hypothesis
    counted_BM: Array  # booleans, True = a source subword, but not EOS or padding


def empty_coverage(beam_size: int, counted_BM: Array) -> Coverage:
    """The coverage before the first subword."""
    batch, src_length = counted_BM.shape
    return Coverage(jnp.zeros((batch, beam_size, src_length)), counted_BM)


def covered(coverage: Coverage | None, watched_BKM: Array | None) -> Coverage | None:
    """The coverage after another subword; None if there is no coverage penalty.

    Raises:
      ValueError: there is one, but the decoder returns no watched weights.
    """
    if coverage is None:
        return None
    if watched_BKM is None:
        raise ValueError("a coverage penalty needs the decoder's watched weights.")
    return coverage._replace(sums_BKM=coverage.sums_BKM + watched_BKM)


def coverage_penalty(coverage: Coverage) -> Array:
    """sum_m log(min(sum_l a_lm, 1)) of each hypothesis, nats, at most 0: `[batch, beams]`.

    a_lm is the weight of source position m when subword l was chosen; callers multiply the penalty
    by beta. A sum below 1e-6 counts as 1e-6, so it is finite. The source's EOS is left out.

    Source: Wu et al. 2016, equation 14.
    """
    clipped_BKM = jnp.clip(coverage.sums_BKM, LEAST_COVERED, 1.0)
    return jnp.where(coverage.counted_BM[:, None], jnp.log(clipped_BKM), 0.0).sum(-1)
