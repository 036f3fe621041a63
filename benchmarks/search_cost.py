"""The cost of a beam search of a Transformer, matrix products and bytes, in closed form.

A product of [m, k] and [k, n] counts 2 m k n FLOPs. training/cost.py cannot count a search, because
a trace does not show how many steps a search takes. Only necessary work counts: a hypothesis
attends to its own past, and masked positions of a cache do not count. The encoder and
cross-attention's keys and values count once per sentence, and everything else per step and
hypothesis.
"""

import jax.numpy as jnp

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.sides.embeddings import padded_vocabulary
from transformer_jax.training.cost import parameter_count

FLOAT32 = 4  # bytes


def attention_parameters(model: ModelConfig) -> int:
    """Parameters of one attention block: four projections without bias."""
    d_k, d_v = model.head_sizes
    return model.d_model * model.num_heads * (2 * d_k + 2 * d_v)


def memory_flops(model: ModelConfig, src_length: int) -> int:
    """FLOPs per sentence: the encoder, and cross-attention's keys and values in every layer."""
    attention = attention_parameters(model)
    feed_forward = 2 * model.d_model * model.d_ff
    scores = model.num_heads * sum(model.head_sizes)
    a_position = attention + feed_forward + src_length * scores + attention // 2
    return 2 * model.num_layers * src_length * a_position


def decode_step_flops(model: ModelConfig, vocabulary_size: int, src_length: int, past: int) -> int:
    """FLOPs to add subword number `past` (from 1) to one hypothesis."""
    attention = attention_parameters(model)
    feed_forward = 2 * model.d_model * model.d_ff
    scores = model.num_heads * sum(model.head_sizes)
    # Cross-attention's keys and values exist already, so only its queries and output count.
    a_layer = attention + attention // 2 + feed_forward + (src_length + past) * scores
    logits = model.d_model * vocabulary_size
    return 2 * (model.num_layers * a_layer + logits)


def search_flops(
    model: ModelConfig, vocabulary_size: int, batch: int, beam_size: int, src_length: int, size: int
) -> int:
    """FLOPs of a search over `batch` sentences whose hypotheses all have `size` subwords."""
    steps = (decode_step_flops(model, vocabulary_size, src_length, n + 1) for n in range(size))
    return batch * (memory_flops(model, src_length) + beam_size * sum(steps))


def search_bytes(
    model: ModelConfig, vocabulary_size: int, batch: int, beam_size: int, src_length: int, size: int
) -> int:
    """The bytes that such a search must move at least.

    Once, it reads the encoder's parameters and writes the sources' keys and values. In each of the
    `size` steps it reads the parameters of the decoder and the embedding, and the sources' keys and
    values once per sentence. In each step and for each hypothesis it writes the keys and values of
    the newest subword, reads those of the hypothesis's own subwords so far (the newest included),
    and writes and reads the logits.
    """
    d, f = model.d_model, model.d_ff
    encoder = model.num_layers * (attention_parameters(model) + 2 * d * f + f + 5 * d)
    decoder = parameter_count(model, padded_vocabulary(vocabulary_size)) - encoder
    place = (
        model.num_layers * model.num_heads * sum(model.head_sizes) * jnp.dtype(model.dtype).itemsize
    )
    pasts = size * (size + 1) // 2
    logits = 2 * vocabulary_size * FLOAT32
    a_hypothesis = place * (pasts + size) + size * logits
    a_step = FLOAT32 * decoder + batch * src_length * place
    source = FLOAT32 * encoder + batch * src_length * place
    return source + size * a_step + batch * beam_size * a_hypothesis
