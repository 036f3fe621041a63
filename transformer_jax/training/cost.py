"""What a model costs: parameters and FLOPs, by closed form.

A product of [m, k] and [k, n] counts 2 m k n FLOPs; the backward pass computes two products for
each of the forward's.
"""

import jax

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.layers import head_sizes
from transformer_jax.model.recurrent import hidden_size

# Dense peak of the matrix units in FLOP/s, as the vendors print it: bfloat16, and float32 (as TF32
# where the chip has it).
DEVICE_PEAKS = {
    "NVIDIA A100": (312e12, 156e12),
    "NVIDIA H100": (989e12, 495e12),
    "NVIDIA H200": (989e12, 495e12),
    "NVIDIA GH200": (989e12, 495e12),
    "NVIDIA B200": (2250e12, 1125e12),
    "TPU v4": (275e12, 275e12),
    "TPU v5 lite": (197e12, 197e12),
    "TPU v5p": (459e12, 459e12),
    "TPU v6 lite": (918e12, 918e12),
}


def attention_parameters(model: ModelConfig) -> int:
    """Of one attention block: four projections without bias."""
    d_k, d_v = head_sizes(model)
    return model.d_model * model.num_heads * (2 * d_k + 2 * d_v)


def parameter_count(model: ModelConfig, vocabulary_size: int) -> int:
    """Trained parameters by closed form; what is allocated has the padded vocabulary."""
    d, f = model.d_model, model.d_ff
    embeddings = vocabulary_size * d * (1 if model.tie_embeddings else 3)
    if model.kind == "recurrent":
        return embeddings + _recurrent_parameters(d, hidden_size(model))
    attention, feed_forward, norm = attention_parameters(model), 2 * d * f + f + d, 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    positions = 2 * model.max_positions * d if model.positions == "learned" else 0
    final_norms = 2 * norm if model.norm == "pre" else 0
    layers = model.num_layers * (encoder_layer + decoder_layer)
    return layers + embeddings + positions + final_norms


def _recurrent_parameters(d: int, h: int) -> int:
    """Of the recurrent model without its embeddings: d_model d, d_hidden h."""
    unit = 3 * (d * h + h * h + h)
    attention, context, start = h * h + 2 * h * h + h, 2 * h * 3 * h, h * h
    readout = (3 * h + d) * 2 * d + 2 * d
    return 3 * unit + attention + context + start + readout


def _recurrent_products(model: ModelConfig, src_length: int, tgt_length: int) -> int:
    """Multiply-adds of one row before the vocabulary."""
    d, h = model.d_model, hidden_size(model)
    unit = 3 * (d * h + h * h)
    # Keys, and the first state that the decoder would have if a sentence began there.
    source = 2 * unit + 2 * h * h + h * h
    target = unit + h * h + 2 * h * 3 * h + (3 * h + d) * 2 * d
    pairs = h + 2 * h  # scores and contexts
    return src_length * source + tgt_length * target + tgt_length * src_length * pairs


def forward_flops(
    model: ModelConfig, vocabulary_size: int, src_length: int, tgt_length: int
) -> int:
    """Of the matrix products of one row with so many source and target positions."""
    logits = tgt_length * model.d_model * vocabulary_size
    if model.kind == "recurrent":
        return 2 * (_recurrent_products(model, src_length, tgt_length) + logits)
    d_k, d_v = head_sizes(model)
    attention, feed_forward = attention_parameters(model), 2 * model.d_model * model.d_ff
    scores = model.num_heads * (d_k + d_v)  # QK^T and weights V, multiply-adds a query-key pair
    # Cross-attention's queries and outputs run over the target, keys and values over the source.
    half = attention // 2
    encoder = src_length * (attention + feed_forward) + src_length**2 * scores
    decoder = tgt_length * (attention + half + feed_forward) + src_length * half
    decoder += (tgt_length**2 + tgt_length * src_length) * scores
    return 2 * (model.num_layers * (encoder + decoder) + logits)


def training_flops(
    model: ModelConfig, vocabulary_size: int, src_length: int, tgt_length: int
) -> int:
    """Forward and backward of one row."""
    return 3 * forward_flops(model, vocabulary_size, src_length, tgt_length)


def device_peak(dtype: str) -> float | None:
    """Peak FLOP/s of one device of this kind, or None where it is not known (a CPU)."""
    return peak_of(jax.devices()[0].device_kind, dtype)


def peak_of(kind: str, dtype: str) -> float | None:
    """Peak FLOP/s of a device of this kind, or None where it is not known."""
    for name, (bfloat16, float32) in DEVICE_PEAKS.items():
        if kind.startswith(name):
            return bfloat16 if dtype == "bfloat16" else float32
    return None
