"""The attention weights of every layer and head, for plots, tables and word alignments.

Dimension key
  B batch   N layers   H heads   L length of the queries   M length of the keys
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params
from transformer_jax.model.layers.layer import cross_attentions
from transformer_jax.text.batches import Packed

# The three uses of attention (Vaswani et al. 2017, section 3.2.3): stack and sub-layer.
USES = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}


def uses_of(model: EncoderDecoder) -> tuple[str, ...]:
    """The names of those USES for which the model has weights of every layer and head."""
    stacks = model.stacks()
    return tuple(
        name
        for name, (stack, sublayer) in USES.items()
        if stack in stacks and sublayer in stacks[stack][0].sublayers
    )


def attention_maps(
    model: EncoderDecoder,
    params: Params,
    source: Packed,
    target: Packed,
    full_context: bool = False,
) -> dict[str, Array]:
    """The weights when the model reads a given translation; call it under `jax.jit`.

    Args:
      model: any model.
      params: its parameters.
      source: the source side of a batch.
      target: the target side, its ids shifted right.
      full_context: whether the decoder sees the whole target, as in `EncoderDecoder.align`.

    Returns:
      By the names of `uses_of`: float32 `[batch, layers, heads, query_len, key_len]`.
    """
    method = "in_full_context" if full_context else "__call__"
    _, state = model.apply(
        {"params": params}, source, target, mutable=["intermediates"], method=method
    )
    sown: Any = state["intermediates"]
    depths = {name: depth for name, (_, depth) in model.stacks().items()}

    def weights(name: str) -> Array:
        stack, sublayer = USES[name]
        several = [sublayer, *cross_attentions(model.config)[1:]] if name == "cross" else [sublayer]

        def of_layer(number: int) -> Array:
            # Flax keeps what a module sows in a tuple, here of one.
            own = sown[f"{stack}_{number}"]
            return sum(own[one]["attention_weights"][0] for one in several)

        return jnp.stack([of_layer(number) for number in range(depths[stack])], axis=1)

    return {name: weights(name) for name in uses_of(model)}
