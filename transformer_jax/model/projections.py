"""The parameters of multi-head attention (Vaswani et al. 2017, section 3.2.2).

"memory" is the number of features of what is attended to.
"""

import functools

import flax.linen as nn

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import FEATURES, HEADS, KEY_HEADS, Parameter
from transformer_jax.model.query_key_norm import GAINS

_xavier = functools.partial(nn.initializers.variance_scaling, 1.0, "fan_avg", "uniform")
_split = _xavier(in_axis=0, out_axis=(1, 2))
_joined = _xavier(in_axis=(0, 1), out_axis=2)
_zeros = nn.initializers.zeros

PROJECTIONS = {
    "query": Parameter(_split, ("d_model", "heads", "d_k"), (FEATURES, HEADS, None), 1),
    "key": Parameter(_split, ("memory", "key_heads", "d_k"), (FEATURES, KEY_HEADS, None), 1),
    "value": Parameter(_split, ("memory", "key_heads", "d_v"), (FEATURES, KEY_HEADS, None), 1),
    "out": Parameter(_joined, ("heads", "d_v", "d_model"), (HEADS, None, FEATURES), 2),
}
BIASES = {  # with model.attention_bias
    "query_bias": Parameter(_zeros, ("heads", "d_k"), (HEADS, None)),
    "key_bias": Parameter(_zeros, ("key_heads", "d_k"), (KEY_HEADS, None)),
    "value_bias": Parameter(_zeros, ("key_heads", "d_v"), (KEY_HEADS, None)),
    "out_bias": Parameter(_zeros, ("d_model",), (None,)),
}
GATE = {  # with model.attention_gate
    "gate": Parameter(_split, ("d_model", "heads", "d_v"), (FEATURES, HEADS, None), 1),
}


def optional_parameters(config: ModelConfig) -> dict[str, Parameter]:
    """The parameters that the config's keys add to PROJECTIONS."""
    asked = (config.attention_bias, BIASES), (config.attention_gate, GATE), (config.qk_norm, GAINS)
    return {name: one for is_on, own in asked if is_on for name, one in own.items()}
