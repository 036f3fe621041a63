"""Parameters and FLOPs of the Transformer, by closed form.

Dimension key
  d d_model   f d_ff
"""

from transformer_jax.config.model import ModelConfig


def parameters(model: ModelConfig, vocabulary_size: int) -> int:
    """Trained parameters."""
    tables = 1 if model.tie_embeddings else 2 if model.tie_output else 3
    stacks = _stack_parameters(model, model.encoder_depth, 1)
    stacks += _stack_parameters(model, model.decoder_depth, 2)
    return stacks + tables * vocabulary_size * model.d_model


def _stack_parameters(model: ModelConfig, depth: int, attentions: int) -> int:
    """Parameters of a stack without bias, with that number of attention sub-layers in a layer."""
    d, f = model.d_model, model.d_ff
    d_k, d_v = model.head_sizes
    attention = model.num_heads * 2 * d * (d_k + d_v)
    feed_forward = 2 * d * f + f + d
    norm = 2 * d
    layers = depth * (attentions * (attention + norm) + feed_forward + norm)
    positions = model.max_positions * d if model.positions == "learned" else 0
    return layers + positions + (norm if model.norm == "pre" else 0)


def forward_flops(model: ModelConfig, vocabulary_size: int, src: int, tgt: int) -> int:
    """Matrix products of one row of `src` source and `tgt` target positions, to the logits."""
    d, f = model.d_model, model.d_ff
    encoder = _attention_products(model, src, src) + src * 2 * d * f
    decoder = _attention_products(model, tgt, tgt) + _attention_products(model, tgt, src)
    decoder += tgt * 2 * d * f
    layers = model.encoder_depth * encoder + model.decoder_depth * decoder
    return 2 * (layers + tgt * d * vocabulary_size)


def training_flops(model: ModelConfig, vocabulary_size: int, src: int, tgt: int) -> int:
    """Forward and backward pass: the backward pass has two products for each of the forward's."""
    return 3 * forward_flops(model, vocabulary_size, src, tgt)


def _attention_products(model: ModelConfig, queries: int, keys: int) -> int:
    """Multiply-adds: queries and outputs, keys and values, and each pair of a query and a key."""
    both = sum(model.head_sizes)
    return model.num_heads * both * ((queries + keys) * model.d_model + queries * keys)
