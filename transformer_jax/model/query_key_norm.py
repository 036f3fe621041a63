"""RMSNorm of queries and keys, head by head: it bounds their products, however large the weights.

Henry et al. 2020 give both the length 1 and the scores one learned gain; that is the score
"cosine" of scores.py. Here each feature has a gain, as in later language models.

Dimension key
  B batch   L length   H heads   K d_k per head
"""

import flax.linen as nn
from jax import Array

from transformer_jax.model.axes import Parameter
from transformer_jax.model.norms import rms_norm

_ones = nn.initializers.ones
GAINS = {  # with model.qk_norm; all heads of a layer share them
    "query_gain": Parameter(_ones, ("d_k",), (None,)),
    "key_gain": Parameter(_ones, ("d_k",), (None,)),
}


def normed(x_BLHK: Array, gain_K: Array, epsilon: float) -> Array:
    """g x / sqrt(mean(x^2) + epsilon) over the features of each head, in x's type.

    Args:
      x_BLHK: queries or keys `[batch, length, heads, d_k]`, before they are rotated.
      gain_K: g, float32 `[d_k]`.
      epsilon: added to the mean square.

    Source: Yang et al. 2025, "Qwen3 Technical Report", section 2; the norm is that of Zhang and
    Sennrich 2019, equation 4.
    """
    return (rms_norm(x_BLHK, epsilon) * gain_K).astype(x_BLHK.dtype)
