"""Which subwords may not continue a hypothesis, whatever their probability.

An excluded subword keeps its probability, so scores are those of the model.

Dimension key
  B batch   K beams, or samples   V vocabulary, padded   T size, the longest hypothesis
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.text.vocabulary import EOS


class Exclusions(NamedTuple):
    """What no hypothesis contains; by default nothing is excluded."""

    banned: tuple[int, ...] = ()  # subwords
    min_length: int = 0  # no hypothesis ends with fewer subwords, EOS not counted
    no_repeat: int = 0  # no sequence of this many subwords comes twice; 0: any may


NOTHING = Exclusions()


def without_excluded(
    exclusions: Exclusions, logits_BKV: Array, sequences_BKT: Array, position_B: Array
) -> Array:
    """The logits of the next subword; -inf for those that are excluded.

    Args:
      exclusions: what is excluded; the same logits are returned if that is nothing.
      logits_BKV: of the next subword.
      sequences_BKT: subwords of the hypotheses, without BOS.
      position_B: number of subwords of each hypothesis.
    """
    banned, min_length, n = exclusions
    if banned:
        logits_BKV = logits_BKV.at[..., list(banned)].set(-jnp.inf)
    if min_length:
        early_B1 = (position_B < min_length)[:, None]
        end_BK = jnp.where(early_B1, -jnp.inf, logits_BKV[..., EOS])
        logits_BKV = logits_BKV.at[..., EOS].set(end_BK)
    if n:
        batch, beams, size = sequences_BKT.shape
        at_T, here_B11 = jnp.arange(size), position_B[:, None, None]
        # Where the n - 1 subwords before position t are the hypothesis's last n - 1 subwords.
        repeats_BKT = (at_T >= n - 1) & (at_T < here_B11) & jnp.ones_like(sequences_BKT, bool)

        def also(back: Array, repeats_BKT: Array) -> Array:
            last_BK1 = jnp.take_along_axis(sequences_BKT, (here_B11 - back) % size, axis=2)
            return repeats_BKT & (jnp.roll(sequences_BKT, back, axis=2) == last_BK1)

        repeats_BKT = jax.lax.fori_loop(1, min(n, size), also, repeats_BKT)
        cost_BKT = jnp.where(repeats_BKT, -jnp.inf, 0.0)
        slots = jnp.arange(batch)[:, None, None], jnp.arange(beams)[:, None], sequences_BKT
        logits_BKV = logits_BKV.at[slots].add(cost_BKT)
    return logits_BKV
