"""COMBINATIONS: how encoder-decoder attention joins several source sentences (model.combination).

A new one is a function here and its line in `COMBINATIONS`.

Dimension key
  B batch   L target length   M source length   H heads
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from transformer_jax.model.attention.normalizers import Normalize


def parallel(normalize: Normalize, sentence_BM: Array, count: int) -> Normalize:
    """(scores, mask) -> the sum over source sentences of the weights of each one alone.

    So the heads' outputs, and with one W^O the sub-layer's, are the sum of those of attention to
    each sentence. A sentence adds nothing for a query that sees none of its positions.

    Args:
      normalize: (scores, mask) -> weights.
      sentence_BM: which of its pair's source sentences a position is in, int32, from 0.
      count: source sentences of each pair.

    Source: Libovicky, Helcl and Marecek 2018, section 3.2, which has matrices for each sentence.
    """

    def summed(scores_BHLM: Array, mask: Array) -> Array:
        weights_BHLM = jnp.zeros_like(scores_BHLM)
        for number in range(count):
            own = mask & (sentence_BM == number)[:, None, None]
            alone_BHLM = normalize(scores_BHLM, own)
            weights_BHLM += jnp.where(own.any(-1, keepdims=True), alone_BHLM, 0.0)
        return weights_BHLM

    return summed


def mean_over_sentences(weights: Array, mask: Array, sentence_BM: Array, count: int) -> Array:
    """What `parallel` gives, over the number of sentences that a query sees.

    So probabilities sum to 1 again, also where a pair has fewer sentences that can be seen.

    Args:
      weights: `[batch, heads, queries, src_len]`.
      mask: booleans that broadcast to the weights.
      sentence_BM, count: as for `parallel`.
    """
    own = [mask & (sentence_BM == number)[:, None, None] for number in range(count)]
    seen = sum(jnp.any(one, -1, keepdims=True).astype(weights.dtype) for one in own)
    return weights / jnp.maximum(seen, 1)


# By the value of model.combination: what it makes of a normalizer; None: nothing, as the normalizer
# reads all sentences as one.
COMBINATIONS: dict[str, Callable[[Normalize, Array, int], Normalize] | None] = {
    "flat": None,
    "parallel": parallel,
}
