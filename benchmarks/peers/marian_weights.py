"""Converts a run's weights to Marian's model in transformers, and to a CTranslate2 model.

Both have the paper's block: post-norm, one tied embedding times sqrt(d_model), ReLU. They differ in
- the sinusoids: ours interleave sine and cosine as the paper's equation does, Marian's hold all
  sines and then all cosines. So every axis of size d_model is permuted;
- biases of the attention's projections: zeros in Marian's model, none in CTranslate2's;
- the vocabulary's padding: peers have only the real rows;
- the epsilon of layer normalization: PyTorch's and CTranslate2's default is 1e-5, ours 1e-6.

torch, transformers and ctranslate2 are imported where a function needs them, not before.

Dimension key
  D d_model   F d_ff   H heads   K d_k per head   V vocabulary, real
"""

from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config.schema import ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.interop.block import Tree, Weights, halves_first, to_block
from transformer_jax.interop.ctranslate2 import fill_layer
from transformer_jax.model.norms import DEFAULT_EPSILON as LAYER_NORM_EPSILON
from transformer_jax.model.positions import sinusoids
from transformer_jax.text.vocabulary import BOS, EOS, PAD, UNK, both_sides


class Sizes(NamedTuple):
    """What a peer needs to know to build the model."""

    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    vocabulary: int  # real subwords
    positions: int  # the longest sequence, BOS included


def refuse_other_blocks(config: ModelConfig) -> None:
    """Raises UserError if Marian's block cannot hold the model's weights."""
    d_k = config.d_model // config.num_heads
    allowed = {
        "encoder": (config.encoder, "transformer"),
        "decoder": (config.decoder, "transformer"),
        "num_encoder_layers": (config.encoder_depth, config.num_layers),
        "num_decoder_layers": (config.decoder_depth, config.num_layers),
        "score": (config.score, "scaled_dot"),
        "cross_score": (config.cross_score or config.score, "scaled_dot"),
        "window": (config.window, None),
        "attention_memory": (config.attention_memory, None),
        "norm": (config.norm, "post"),
        "activation": (config.activation, "relu"),
        "attention_bias": (config.attention_bias, False),
        "output_bias": (config.output_bias, False),
        "positions": (config.positions, "sinusoidal"),
        "tie_embeddings": (config.tie_embeddings, True),
        "dtype": (config.dtype, "float32"),
        "d_k": (config.head_sizes[0], d_k),
        "d_v": (config.head_sizes[1], d_k),
    }
    for key, (value, wanted) in allowed.items():
        if value != wanted:
            raise UserError(
                f"model.{key}={value} has no place in the peers' block, which is the paper's: "
                f"train with model.{key}={wanted}."
            )


def marian_weights(params: Tree, sizes: Sizes) -> Weights:
    """Our parameters under the names and in the layout of transformers' MarianMTModel.

    Args:
      params: arrays as `load_params` restores them.
      sizes: sizes of this model.

    Returns:
      float32 arrays; a linear map's weight is `[out, in]`.
    """
    return to_block(params, _config(sizes), both_sides(sizes.vocabulary), halves=True)


def _config(sizes: Sizes) -> ModelConfig:
    return ModelConfig(
        num_layers=sizes.num_layers,
        d_model=sizes.d_model,
        num_heads=sizes.num_heads,
        d_ff=sizes.d_ff,
    )


def marian_model(weights: Weights, sizes: Sizes, attention: str = "sdpa") -> Any:
    """transformers' MarianMTModel with these weights, ready to generate.

    Args:
      weights: the result of `marian_weights`.
      sizes: sizes of this model.
      attention: "sdpa" or "eager".
    """
    import torch
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=sizes.vocabulary,
        max_position_embeddings=sizes.positions,
        d_model=sizes.d_model,
        encoder_layers=sizes.num_layers,
        decoder_layers=sizes.num_layers,
        encoder_attention_heads=sizes.num_heads,
        decoder_attention_heads=sizes.num_heads,
        encoder_ffn_dim=sizes.d_ff,
        decoder_ffn_dim=sizes.d_ff,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,  # the default, 0, would end long outputs without a loss of score
        attn_implementation=attention,
    )
    model = MarianMTModel(config).eval()
    tensors = {name: torch.from_numpy(x) for name, x in weights.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    tied_or_fixed = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight")
    missing = [name for name in missing if not name.endswith(tied_or_fixed)]
    if missing or unexpected:
        raise ValueError(f"MarianMTModel lacks {missing} and does not know {unexpected}.")
    model.tie_weights()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = LAYER_NORM_EPSILON
    return model


def save_ctranslate2(
    weights: Weights, sizes: Sizes, folder: Path, epsilon: float = LAYER_NORM_EPSILON
) -> None:
    """Writes a CTranslate2 model of these weights; its subwords are ids in decimal digits.

    Args:
      weights: the result of `marian_weights`.
      sizes: sizes of this model.
      folder: to create.
      epsilon: the epsilon of layer normalization.
    """
    from ctranslate2.specs import TransformerSpec

    spec = TransformerSpec.from_config(sizes.num_layers, sizes.num_heads, pre_norm=False)
    positions_LD = halves_first(sinusoids(sizes.positions, sizes.d_model), 1)
    for side, part, embeddings in (
        ("encoder", spec.encoder, spec.encoder.embeddings[0]),
        ("decoder", spec.decoder, spec.decoder.embeddings),
    ):
        embeddings.weight = weights["model.shared.weight"]
        part.position_encodings.encodings = positions_LD
        for i, layer in enumerate(part.layer):
            fill_layer(layer, weights, f"model.{side}.layers.{i}", _config(sizes))
    spec.decoder.projection.weight = weights["model.shared.weight"]
    tokens = [str(i) for i in range(sizes.vocabulary)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.unk_token, spec.config.bos_token = str(UNK), str(BOS)
    spec.config.eos_token, spec.config.decoder_start_token = str(EOS), str(BOS)
    spec.config.layer_norm_epsilon = epsilon
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True)
    spec.save(str(folder))
