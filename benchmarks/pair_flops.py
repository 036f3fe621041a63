"""Training FLOPs of many sentence pairs, from a few traces of the program (training/cost.py).

A matrix product works on single positions, on pairs of positions of one side, or on pairs of a
source and a target position. So the FLOPs of a row are a polynomial of degree 2 in its two lengths,
and six traces determine it.
"""

import numpy as np

from transformer_jax.config.model import ModelConfig
from transformer_jax.training.cost import training_flops

SHORTEST = 2  # shortest length that is traced


def flops_of_pairs(
    model: ModelConfig, vocabulary_size: int, src_lengths: np.ndarray, tgt_lengths: np.ndarray
) -> np.ndarray:
    """FLOPs of the forward and backward pass of each pair in a row of its own: int64 `[pairs]`.

    Args:
      model: any model.
      vocabulary_size: the real one, not padded.
      src_lengths: source positions `[pairs]`.
      tgt_lengths: target positions `[pairs]`.

    Raises:
      ValueError: the polynomial and the trace disagree at the longest lengths.
    """

    def traced(src: int, tgt: int) -> int:
        return training_flops(model, vocabulary_size, src, tgt)

    # Newton's form: differences at SHORTEST, times binomials of the distances from SHORTEST.
    start = traced(SHORTEST, SHORTEST)
    src_1, src_2 = (traced(SHORTEST + n, SHORTEST) - start for n in (1, 2))
    tgt_1, tgt_2 = (traced(SHORTEST, SHORTEST + n) - start for n in (1, 2))
    both = traced(SHORTEST + 1, SHORTEST + 1) - start - src_1 - tgt_1

    def polynomial(src: np.ndarray, tgt: np.ndarray) -> np.ndarray:
        s, t = src.astype(np.int64) - SHORTEST, tgt.astype(np.int64) - SHORTEST
        linear = start + src_1 * s + tgt_1 * t + both * s * t
        squares = (src_2 - 2 * src_1) * (s * (s - 1) // 2)
        return linear + squares + (tgt_2 - 2 * tgt_1) * (t * (t - 1) // 2)

    longest = int(src_lengths.max()), int(tgt_lengths.max())
    wanted = traced(*longest)
    found = int(polynomial(*map(np.array, longest)))
    if found != wanted:
        raise ValueError(
            f"FLOPs are no polynomial of degree 2 in the lengths: it gives {found:,} for {longest} "
            f"positions, and their trace {wanted:,}."
        )
    return polynomial(src_lengths, tgt_lengths)
