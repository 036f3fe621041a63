"""Length and coverage penalties, from which search computes the score of a finished hypothesis.

Dimension key
  B batch   K beams   M source length
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

LEAST_COVERED = 1e-6  # smallest attention that a source position counts with


def gnmt_penalty(lengths: Array, alpha: float | Array) -> Array:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14); 1 for alpha 0."""
    return ((5.0 + lengths) / 6.0) ** alpha


def power_penalty(lengths: Array, alpha: float | Array) -> Array:
    """length^alpha, as in Marian, CTranslate2 and Hugging Face's transformers; 1 for alpha 0."""
    return (1.0 * lengths) ** alpha


# (lengths in subwords, alpha) -> positive divisors of the summed log probability
Penalty = Callable[[Array, float | Array], Array]
PENALTIES: dict[str, Penalty] = {"gnmt": gnmt_penalty, "power": power_penalty}


class Coverage(NamedTuple):
    """The attention that each source position has received."""

    sums_BKM: Array  # float32, for each live hypothesis
    counted_BM: Array  # booleans, True = a source subword, but not EOS or padding


def empty_coverage(beam_size: int, counted_BM: Array) -> Coverage:
    """The coverage before the first subword."""
    batch, src_length = counted_BM.shape
    return Coverage(jnp.zeros((batch, beam_size, src_length)), counted_BM)


def coverage_penalty(coverage: Coverage) -> Array:
    """sum_j log(min(sum_i p_ij, 1)) of each hypothesis, nats, at most 0: `[batch, beams]`.

    p_ij is the weight of source position j when subword i was chosen. A sum below 1e-6 counts as
    1e-6, so the penalty is finite. The source's EOS is left out.

    Source: Wu et al. 2016, equation 14.
    """
    clipped_BKM = jnp.clip(coverage.sums_BKM, LEAST_COVERED, 1.0)
    return jnp.where(coverage.counted_BM[:, None], jnp.log(clipped_BKM), 0.0).sum(-1)
