"""The parameters of multi-head attention (Vaswani et al. 2017, section 3.2.2), and two options.

"memory" is the number of features of what is attended to. The options: a gate of each head's output
(Qiu et al. 2025), and RMSNorm of queries and keys, which bounds their products, however large the
weights. Henry et al. 2020 give both the length 1 and the scores one learned gain; that is the score
"cosine" of scores.py. Here each feature has a gain, as in later language models.

Dimension key
  B batch   L query length   D d_model   H heads   K d_k per head   V d_v per head
"""

import functools

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import Parameter
from transformer_jax.model.layers.matrix_products import product
from transformer_jax.model.layers.norms import rms_norm

_xavier = functools.partial(nn.initializers.variance_scaling, 1.0, "fan_avg", "uniform")
_split = _xavier(in_axis=0, out_axis=(1, 2))
_joined = _xavier(in_axis=(0, 1), out_axis=2)
_zeros, _ones = nn.initializers.zeros, nn.initializers.ones

PROJECTIONS = {
    "query": Parameter(_split, ("d_model", "heads", "d_k"), 1),
    "key": Parameter(_split, ("memory", "key_heads", "d_k"), 1),
    "value": Parameter(_split, ("memory", "key_heads", "d_v"), 1),
    "out": Parameter(_joined, ("heads", "d_v", "d_model"), 2),
}
BIASES = {  # with model.attention_bias
    "query_bias": Parameter(_zeros, ("heads", "d_k")),
    "key_bias": Parameter(_zeros, ("key_heads", "d_k")),
    "value_bias": Parameter(_zeros, ("key_heads", "d_v")),
    "out_bias": Parameter(_zeros, ("d_model",)),
}
GAINS = {  # with model.qk_norm; all heads of a layer share them
    "query_gain": Parameter(_ones, ("d_k",)),
    "key_gain": Parameter(_ones, ("d_k",)),
}
GATE = {"gate": Parameter(_split, ("d_model", "heads", "d_v"), 1)}  # with model.attention_gate


def options(config: ModelConfig) -> dict[str, Parameter]:
    """The parameters that the config's keys add to PROJECTIONS."""
    asked = (config.attention_bias, BIASES), (config.attention_gate, GATE), (config.qk_norm, GAINS)
    return {name: one for is_on, own in asked if is_on for name, one in own.items()}


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
