"""The parameters of multi-head attention (Vaswani et al. 2017, section 3.2.2).

"memory" is the number of features of what is attended to.
"""

import functools

import flax.linen as nn

from transformer_jax.model.axes import FEATURES, HEADS, KEY_HEADS, Parameter

_xavier = functools.partial(nn.initializers.variance_scaling, 1.0, "fan_avg", "uniform")
_split = _xavier(in_axis=0, out_axis=(1, 2))
_joined = _xavier(in_axis=(0, 1), out_axis=2)
_zeros = nn.initializers.zeros

PROJECTIONS = {
    "query": Parameter(_split, ("d_model", "heads", "d_k"), (FEATURES, HEADS, None)),
    "key": Parameter(_split, ("memory", "key_heads", "d_k"), (FEATURES, KEY_HEADS, None)),
    "value": Parameter(_split, ("memory", "key_heads", "d_v"), (FEATURES, KEY_HEADS, None)),
    "out": Parameter(_joined, ("heads", "d_v", "d_model"), (HEADS, None, FEATURES)),
}
BIASES = {  # with model.attention_bias
    "query_bias": Parameter(_zeros, ("heads", "d_k"), (HEADS, None)),
    "key_bias": Parameter(_zeros, ("key_heads", "d_k"), (KEY_HEADS, None)),
    "value_bias": Parameter(_zeros, ("key_heads", "d_v"), (KEY_HEADS, None)),
    "out_bias": Parameter(_zeros, ("d_model",), (None,)),
}
