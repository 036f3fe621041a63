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

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config.schema import ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.model.norms import DEFAULT_EPSILON as LAYER_NORM_EPSILON
from transformer_jax.model.positions import sinusoids
from transformer_jax.text.vocabulary import BOS, EOS, PAD, UNK

Weights = dict[str, np.ndarray]
Tree = Mapping[str, Any]  # of parameters


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


def halves_first(x: np.ndarray, axis: int) -> np.ndarray:
    """Features 0, 2, 4, ... and then 1, 3, 5, ... of an axis: interleaved pairs as two halves."""
    features = np.arange(x.shape[axis])
    return np.take(x, np.concatenate([features[0::2], features[1::2]]), axis)


def marian_weights(params: Tree, sizes: Sizes) -> Weights:
    """Our parameters under the names and in the layout of transformers' MarianMTModel.

    Args:
      params: arrays as `load_params` restores them.
      sizes: sizes of this model.

    Returns:
      float32 arrays; a linear map's weight is `[out, in]`.
    """
    table_VD = halves_first(np.asarray(params["embedding"]["table"])[: sizes.vocabulary], 1)
    weights = {"model.shared.weight": table_VD}
    weights["final_logits_bias"] = np.zeros((1, sizes.vocabulary), np.float32)
    for i in range(sizes.num_layers):
        for side in ("encoder", "decoder"):
            layer = _layer(params[f"{side}_{i}"], side == "decoder")
            weights |= {f"model.{side}.layers.{i}.{name}": x for name, x in layer.items()}
    return {name: np.array(x, np.float32, order="C") for name, x in weights.items()}


def _layer(tree: Tree, has_memory: bool) -> Weights:
    feed_forward = tree["feed_forward"]
    weights = {
        "fc1.weight": halves_first(np.asarray(feed_forward["inner"]), 0).T,
        "fc1.bias": np.asarray(feed_forward["inner_bias"]),
        "fc2.weight": halves_first(np.asarray(feed_forward["outer"]), 1).T,
        "fc2.bias": halves_first(np.asarray(feed_forward["outer_bias"]), 0),
        **_norm(tree["feed_forward_residual"], "final"),
        **_attention(tree["self_attention"], "self_attn"),
        **_norm(tree["self_attention_residual"], "self_attn"),
    }
    if has_memory:
        weights |= _attention(tree["cross_attention"], "encoder_attn")
        weights |= _norm(tree["cross_attention_residual"], "encoder_attn")
    return weights


def _attention(tree: Tree, name: str) -> Weights:
    weights: Weights = {}
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
        x_DHK = np.asarray(tree[ours])
        weights[f"{name}.{theirs}_proj.weight"] = halves_first(x_DHK, 0).reshape(len(x_DHK), -1).T
    out_HKD = np.asarray(tree["out"])
    weights[f"{name}.out_proj.weight"] = halves_first(out_HKD, 2).reshape(-1, out_HKD.shape[2]).T
    for theirs in ("q", "k", "v", "out"):
        size = len(weights[f"{name}.{theirs}_proj.weight"])
        weights[f"{name}.{theirs}_proj.bias"] = np.zeros(size, np.float32)
    return weights


def _norm(residual: Tree, name: str) -> Weights:
    norm = residual["norm"]
    return {
        f"{name}_layer_norm.weight": halves_first(np.asarray(norm["scale"]), 0),
        f"{name}_layer_norm.bias": halves_first(np.asarray(norm["bias"]), 0),
    }


def marian_model(weights: Weights, sizes: Sizes, attention: str = "sdpa") -> Any:
    """transformers' MarianMTModel with these weights, ready to generate.

    Args:
      weights: of `marian_weights`.
      sizes: of this model.
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
        forced_eos_token_id=None,  # the default, 0, would end long outputs at no cost
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
      weights: of `marian_weights`.
      sizes: of this model.
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
            _fill_layer(layer, weights, f"model.{side}.layers.{i}")
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


def _fill_layer(layer: Any, weights: Weights, name: str) -> None:
    attention, last = layer.self_attention, weights[f"{name}.self_attn.out_proj.weight"]
    parts = [weights[f"{name}.self_attn.{part}_proj.weight"] for part in "qkv"]
    attention.linear[0].weight, attention.linear[1].weight = np.concatenate(parts), last
    _fill_norm(attention.layer_norm, weights, f"{name}.self_attn_layer_norm")
    if hasattr(layer, "attention"):
        memory = layer.attention
        parts = [weights[f"{name}.encoder_attn.{part}_proj.weight"] for part in "qkv"]
        memory.linear[0].weight, memory.linear[1].weight = parts[0], np.concatenate(parts[1:])
        memory.linear[2].weight = weights[f"{name}.encoder_attn.out_proj.weight"]
        _fill_norm(memory.layer_norm, weights, f"{name}.encoder_attn_layer_norm")
    for linear, part in ((layer.ffn.linear_0, "fc1"), (layer.ffn.linear_1, "fc2")):
        linear.weight = weights[f"{name}.{part}.weight"]
        linear.bias = weights[f"{name}.{part}.bias"]
    _fill_norm(layer.ffn.layer_norm, weights, f"{name}.final_layer_norm")


def _fill_norm(norm: Any, weights: Weights, name: str) -> None:
    norm.gamma, norm.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]
