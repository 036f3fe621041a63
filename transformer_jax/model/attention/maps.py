"""The attention weights of every layer and head, for plots, tables and word alignments.

Dimension key
  B batch   N layers   H heads   L length of the queries   M length of the keys
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params, is_prefix
from transformer_jax.model.layers.layer import cross_attentions
from transformer_jax.text.batches import Packed

# The three uses of attention (Vaswani et al. 2017, section 3.2.3): stack and sub-layer.
USES = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}


# Where the uses are in the self-attention of a decoder that reads the source itself: in rows of M
# source positions, then the target's (sides/prefix.py).
BLOCKS: dict[str, Callable[[int], tuple[slice, slice]]] = {
    "encoder": lambda m: (slice(m), slice(m)),
    "decoder": lambda m: (slice(m, None), slice(m, None)),
    "cross": lambda m: (slice(m, None), slice(m)),
}


def place_of_use(model: EncoderDecoder, use: str) -> tuple[str, str]:
    """The stack and the sub-layer whose weights are those of a use in USES."""
    return USES["decoder" if is_prefix(model.config) else use]


def layers_of_use(model: EncoderDecoder, use: str) -> int:
    """The number of layers that have weights of a use in USES; 0: the model has none."""
    stack, sublayer = place_of_use(model, use)
    layer, depth = model.stacks().get(stack, (None, 0))
    return depth if layer is not None and sublayer in layer.sublayers else 0


def uses_of(model: EncoderDecoder) -> tuple[str, ...]:
    """The names of those USES for which the model has weights of every layer and head."""
    return tuple(use for use in USES if layers_of_use(model, use))


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

    def read(model: EncoderDecoder) -> None:
        if full_context:
            model.align(model.encode(source), source, target)
        else:
            model(source, target)

    _, state = model.apply({"params": params}, mutable=["intermediates"], method=read)
    sown: Any = state["intermediates"]

    def weights(name: str) -> Array:
        stack, sublayer = place_of_use(model, name)
        is_cross = sublayer == "cross_attention"
        several = [sublayer, *cross_attentions(model.config)[1:]] if is_cross else [sublayer]
        block = BLOCKS[name](source.ids.shape[1]) if is_prefix(model.config) else ()

        def of_layer(number: int) -> Array:
            # Flax keeps what a module sows in a tuple, here of one.
            own = sown[f"{stack}_{number}"]
            return sum(own[one]["attention_weights"][0][..., *block] for one in several)

        layers = range(layers_of_use(model, name))
        return jnp.stack([of_layer(number) for number in layers], axis=1)

    return {name: weights(name) for name in uses_of(model)}
