"""A gate of each head's output (Qiu et al. 2025, "Gated Attention for Large Language Models").

Dimension key
  B batch   L query length   D d_model   H heads   V d_v per head
"""

import jax
from jax import Array

from transformer_jax.model.products import product


def gated(heads_BLHV: Array, x_BLD: Array, gate_DHV: Array) -> Array:
    """head * sigmoid(x W_g) of each head, feature by feature, in the type of the heads.

    Args:
      heads_BLHV: outputs of the heads `[batch, query_len, heads, d_v]`.
      x_BLD: `[batch, query_len, d_model]`, from which the queries are computed.
      gate_DHV: W_g, float32 `[d_model, heads, d_v]`.

    Source: Qiu et al. 2025, section 2.2: the elementwise, multiplicative gate of each head, after
    the sum over values (G1).
    """
    gate_BLHV = product("BLD,DHV->BLHV", x_BLD, gate_DHV, heads_BLHV.dtype)
    return heads_BLHV * jax.nn.sigmoid(gate_BLHV)
