"""Parameters and FLOPs of every pair of encoder and decoder, by closed form.

Dimension key
  d d_model   h d_hidden   f d_ff   e features of the encoder's output   s of its summary
"""

from transformer_jax.config.model import ModelConfig


def encoded_features(model: ModelConfig) -> int:
    """e, the width of the encoder's output: d_model, or the states of both directions."""
    return model.d_model if model.encoder == "transformer" else 2 * model.hidden_units


def summary_features(model: ModelConfig) -> int:
    """s, the width of the input to a recurrent decoder's first state."""
    return model.d_model if model.encoder == "transformer" else model.hidden_units


def attention_parameters(model: ModelConfig, memory: int) -> int:
    """Four projections without bias; keys and values come from `memory` features."""
    d_k, d_v = model.head_sizes
    d = model.d_model
    return model.num_heads * (d * d_k + memory * (d_k + d_v) + d_v * d)


def parameters(model: ModelConfig, vocabulary_size: int) -> int:
    """Trained parameters."""
    tables = 1 if model.tie_embeddings else 2 if model.tie_output else 3
    sides = {
        "transformer": (_transformer_encoder_parameters, _transformer_decoder_parameters),
        "recurrent": (_recurrent_encoder_parameters, _recurrent_decoder_parameters),
    }
    encoder = sides[model.encoder][0](model)
    decoder = sides[model.decoder][1](model)
    return encoder + decoder + tables * vocabulary_size * model.d_model


def _stack_parameters(model: ModelConfig, depth: int, cross: int) -> int:
    """Parameters of a stack; each layer has `cross` parameters of cross-attention, or 0."""
    d, f = model.d_model, model.d_ff
    attention = attention_parameters(model, d)
    feed_forward = 2 * d * f + f + d
    norm = 2 * d
    sublayers = 3 if cross else 2
    layers = depth * (attention + cross + feed_forward + sublayers * norm)
    positions = model.max_positions * d if model.positions == "learned" else 0
    return layers + positions + (norm if model.norm == "pre" else 0)


def _transformer_encoder_parameters(model: ModelConfig) -> int:
    return _stack_parameters(model, model.encoder_depth, 0)


def _transformer_decoder_parameters(model: ModelConfig) -> int:
    cross = attention_parameters(model, encoded_features(model))
    return _stack_parameters(model, model.decoder_depth, cross)


def _unit_parameters(d: int, h: int) -> int:
    """Parameters of a gated unit: two gates and a candidate, from d inputs and h states."""
    return 3 * (d * h + h * h + h)


def _recurrent_encoder_parameters(model: ModelConfig) -> int:
    return 2 * _unit_parameters(model.d_model, model.hidden_units)


def _recurrent_decoder_parameters(model: ModelConfig) -> int:
    d, h = model.d_model, model.hidden_units
    e = encoded_features(model)
    s = summary_features(model)
    attention = h * h + e * h + h
    context = 3 * e * h
    start = s * h
    readout = (h + e + d) * 2 * d + 2 * d
    return _unit_parameters(d, h) + attention + context + start + readout


def forward_flops(model: ModelConfig, vocabulary_size: int, src: int, tgt: int) -> int:
    """Matrix products of one row of `src` source and `tgt` target positions, to the logits."""
    sides = {
        "transformer": (_transformer_encoder_products, _transformer_decoder_products),
        "recurrent": (_recurrent_encoder_products, _recurrent_decoder_products),
    }
    encoder = sides[model.encoder][0](model, src)
    decoder = sides[model.decoder][1](model, src, tgt)
    return 2 * (encoder + decoder + tgt * model.d_model * vocabulary_size)


def training_flops(model: ModelConfig, vocabulary_size: int, src: int, tgt: int) -> int:
    """Forward and backward pass: the backward pass has two products for each of the forward's."""
    return 3 * forward_flops(model, vocabulary_size, src, tgt)


def _attention_products(model: ModelConfig, memory: int, queries: int, keys: int) -> int:
    """Multiply-adds: queries and outputs, keys and values, and each pair of a query and a key."""
    d_k, d_v = model.head_sizes
    d = model.d_model
    a_query = d * (d_k + d_v)
    a_key = memory * (d_k + d_v)
    a_pair = d_k + d_v
    return model.num_heads * (queries * a_query + keys * a_key + queries * keys * a_pair)


def _transformer_encoder_products(model: ModelConfig, src: int) -> int:
    d = model.d_model
    attention = _attention_products(model, d, src, src)
    return model.encoder_depth * (attention + src * 2 * d * model.d_ff)


def _transformer_decoder_products(model: ModelConfig, src: int, tgt: int) -> int:
    d = model.d_model
    to_itself = _attention_products(model, d, tgt, tgt)
    to_source = _attention_products(model, encoded_features(model), tgt, src)
    return model.decoder_depth * (to_itself + to_source + tgt * 2 * d * model.d_ff)


def _recurrent_encoder_products(model: ModelConfig, src: int) -> int:
    d, h = model.d_model, model.hidden_units
    return src * 2 * 3 * (d * h + h * h)


def _recurrent_decoder_products(model: ModelConfig, src: int, tgt: int) -> int:
    d, h = model.d_model, model.hidden_units
    e = encoded_features(model)
    s = summary_features(model)
    # Keys, and the first state that the decoder would have if a sentence began there.
    a_source = e * h + s * h
    a_target = 3 * (d * h + h * h) + h * h + 3 * e * h + (h + e + d) * 2 * d
    a_pair = h + e  # its score and its part of the context
    return src * a_source + tgt * a_target + src * tgt * a_pair
