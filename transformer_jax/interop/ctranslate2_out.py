"""Writes a folder for CTranslate2, by CTranslate2's own converter class.

The weights are written without a permutation: CTranslate2 reads positions from a table of vectors,
and it gets our table. An unscaled score is a scaled one whose queries are multiplied by sqrt(d_k).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.interop.block import PROJECTIONS, Weights, to_block
from transformer_jax.interop.ctranslate2 import ACTIVATIONS, NORM, parts_of
from transformer_jax.interop.exported import Exported, require_supported
from transformer_jax.interop.huggingface import NORMALIZES
from transformer_jax.model.positions.choices import POSITIONS
from transformer_jax.model.sides.transformer import watched_layer
from transformer_jax.text.vocabulary import BOS, EOS, UNK

FORMAT = "CTranslate2"
# Its bfloat16 needs PyTorch.
QUANTIZATIONS = ("float32", "float16", "int16", "int8", "int8_float32", "int8_float16")
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "norm": ("post", "pre"),
    "score": ("scaled_dot", "dot"),
    "cross_score": (None, "scaled_dot", "dot"),
    "cross_normalizer": (None, "softmax"),
    "positions": ("sinusoidal", "sinusoidal_t2t", "learned", "none"),
    "activation": tuple(ACTIVATIONS),
    "source_eos": (True, False),
}


def write_ctranslate2(model: Exported, folder: Path, quantization: str | None) -> None:
    """Writes the folder, with the SentencePiece models that text needs.

    Args:
      model: the run's model.
      folder: to create.
      quantization: one of QUANTIZATIONS; None: float32.

    Raises:
      UserError: ctranslate2 is not installed, or it cannot express the model or the
        quantization.
    """
    require_supported(model.config, SUPPORTED, FORMAT)
    if quantization not in (None, *QUANTIZATIONS):
        raise ConfigError(f"quantization={quantization} is not one of {', '.join(QUANTIZATIONS)}.")
    try:
        from ctranslate2.converters.converter import Converter
    except ImportError:
        raise UserError("CTranslate2 needs its package: pip install ctranslate2.") from None

    class FromRun(Converter):
        """Fills CTranslate2's description of a model."""

        def _load(self) -> Any:
            return _spec(model)

    FromRun().convert(str(folder), quantization=quantization)
    model.write_sentencepiece(folder)


def _spec(model: Exported) -> Any:
    """CTranslate2's description of the model, filled with its arrays."""
    from ctranslate2 import specs

    config = model.config.model
    d_k = config.head_sizes[0]
    shared = {
        "pre_norm": model.is_pre_norm,
        "activation": specs.Activation(ACTIVATIONS[config.activation]),
        "head_dim": d_k if d_k * config.num_heads != config.d_model else None,
    }
    weights = to_block(model.params, config, model.vocabulary.sizes, halves=False)
    weights = for_scaled_scores(weights, config)
    watched = watched_layer(config)
    layer, head = model.aligner or (watched, None)
    heads = (config.watched_heads or 0) if layer == watched else 0  # the first heads; 0: all
    if head is not None:
        heads = 1
        name = f"model.decoder.layers.{layer}.encoder_attn"
        _put_first(weights, name, head, config.num_heads)
    encoder = specs.TransformerEncoderSpec(config.encoder_depth, config.num_heads, **shared)
    decoder = specs.TransformerDecoderSpec(
        config.decoder_depth,
        config.num_heads,
        alignment_layer=layer,
        alignment_heads=heads,
        **shared,
    )
    _fill_ends(encoder, decoder, weights, model)
    for side, part in (("encoder", encoder), ("decoder", decoder)):
        for n, spec_of_layer in enumerate(part.layer):
            _fill_layer(spec_of_layer, weights, side, n, config.attention_bias)
    spec = specs.TransformerSpec(encoder, decoder)
    source, pieces = model.pieces
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token, spec.config.eos_token = pieces[UNK], pieces[EOS]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[BOS]
    spec.config.add_source_bos = False
    spec.config.add_source_eos = config.source_eos
    spec.config.layer_norm_epsilon = config.norm_epsilon
    # The engine does not read it; `import` does.
    spec.config.add_attribute(NORMALIZES, model.vocabulary.normalizes_punctuation)
    return spec


def _put_first(weights: Weights, name: str, head: int, num_heads: int) -> None:
    """Puts `head` first, by which the engine then aligns; translations stay the same."""
    order = [head, *(h for h in range(num_heads) if h != head)]
    for part, theirs in PROJECTIONS.items():
        weight, bias = f"{name}.{theirs}.weight", f"{name}.{theirs}.bias"
        if part == "out":
            weights[weight] = _by_heads(weights[weight].T, order).T
        else:
            weights[weight] = _by_heads(weights[weight], order)
            weights[bias] = _by_heads(weights[bias], order)


def _by_heads(x: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """The rows in another order of heads."""
    return x.reshape(len(order), -1, *x.shape[1:])[np.array(order)].reshape(x.shape)


def _fill_ends(encoder: Any, decoder: Any, weights: Weights, model: Exported) -> None:
    """Embeddings, positions, last norms and the output."""
    shared, config = weights.get("model.shared.weight"), model.config.model
    added = POSITIONS[config.positions].added
    vectors = np.zeros((model.positions, config.d_model), np.float32)
    if added is not None:
        vectors = added(config, model.positions)
    for side, part, embeddings in (
        ("encoder", encoder, encoder.embeddings[0]),
        ("decoder", decoder, decoder.embeddings),
    ):
        own = weights.get(f"model.{side}.embed_tokens.weight")
        embeddings.weight = shared if own is None else own
        learned = weights.get(f"model.{side}.embed_positions.weight")
        part.position_encodings.encodings = vectors if learned is None else learned
        if f"{side}_norm" in model.params:
            _fill_norm(part.layer_norm, weights, f"model.{side}.layer_norm")
    output = weights.get("lm_head.weight")
    decoder.projection.weight = decoder.embeddings.weight if output is None else output
    if config.output_bias:
        decoder.projection.bias = weights["final_logits_bias"][0]


def _fill_layer(layer: Any, weights: Weights, side: str, n: int, attention_bias: bool) -> None:
    """Fills layer `n` of a side of CTranslate2's description."""
    from ctranslate2.specs.model_spec import index_spec

    for own, ours in parts_of(side).items():
        part, names = index_spec(layer, own), [f"model.{side}.layers.{n}.{x}" for x in ours]
        if own.endswith(NORM):
            _fill_norm(part, weights, names[0])
            continue
        part.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
        if attention_bias or own.startswith("ffn"):
            part.bias = np.concatenate([weights[f"{name}.bias"] for name in names])


def for_scaled_scores(weights: Weights, config: ModelConfig) -> Weights:
    """The result of `to_block`, with the queries of unscaled scores multiplied by sqrt(d_k)."""
    scores = {"self_attn": config.score, "encoder_attn": config.cross_score or config.score}
    unscaled = [f".{sublayer}.q_proj." for sublayer, score in scores.items() if score == "dot"]
    root = np.float32(config.head_sizes[0] ** 0.5)
    return {
        name: x * root if any(one in name for one in unscaled) else x for name, x in weights.items()
    }


def _fill_norm(norm: Any, weights: Weights, name: str) -> None:
    norm.gamma, norm.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]
