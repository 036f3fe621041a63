"""What each sub-layer of attention was given and gave, and what its output consists of.

Dimension key
  B batch   L target length   M source length   T positions of both, M + L   H heads   D d_model
  Q positions of a sub-layer's queries   K of its keys   G heads of keys   V d_v per head
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.attention_sublayer import for_every_head
from transformer_jax.model.attention.normalizers import NORMALIZERS, unchanged
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import PREFIXES, Params, is_prefix
from transformer_jax.model.layers.layer import Residual
from transformer_jax.model.layers.residuals import RESIDUALS, constants_of
from transformer_jax.model.sides.embeddings import Embedding, Projection
from transformer_jax.text.batches import Ints, Packed, packed_sentences, padded_sentences
from transformer_jax.text.vocabulary import BOS


class Mixing(NamedTuple):
    """A sub-layer of attention, and where its positions are among those of source and target."""

    names: tuple[str, str]  # of its layer and of itself among the parameters
    queries: slice
    keys: slice

    def joint(self, own_BQK: Array, kept_BQ: Array, length: int) -> Array:
        """The matrix over all positions `[batch, T, T]`, the identity but for the queries.

        Args:
          own_BQK: what each query takes from each key.
          kept_BQ: what it takes from itself, by the residual.
          length: T.
        """
        positions = jnp.arange(length)
        joint_BTT = jnp.broadcast_to(jnp.eye(length), (own_BQK.shape[0], length, length))
        queries = positions[self.queries]
        joint_BTT = joint_BTT.at[:, queries, queries].set(kept_BQ)
        return joint_BTT.at[:, self.queries, self.keys].add(own_BQK)


class Pairs(NamedTuple):
    """Sentence pairs, one a row."""

    source: Packed
    target: Packed  # its ids shifted right
    labels_BL: Ints  # int32, the subword that each target position predicts

    @property
    def length(self) -> int:
        """T."""
        return int(self.source.ids.shape[1] + self.target.ids.shape[1])


def in_rows(
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    rows: int,
    lengths: tuple[int, int],
) -> Pairs:
    """One pair in each row; `lengths` are the positions of a row's source and target."""
    src_length, tgt_length = lengths
    return Pairs(
        packed_sentences(sources, rows, src_length),
        packed_sentences([[BOS, *ids[:-1]] for ids in targets], rows, tgt_length),
        padded_sentences(targets, rows, tgt_length)[0],
    )


class Traced(NamedTuple):
    """A sub-layer of attention, and what it was given and gave."""

    mixing: Mixing
    weights_BHQK: Array
    x_BQD: Array  # the residual's input
    memory_BKD: Array  # what keys and values were made of, before a norm of the input
    y_BQD: Array  # the residual's output


def mixings(model: EncoderDecoder, source_length: int) -> Iterator[Mixing]:
    """Every sub-layer of attention, in the order in which they are computed."""
    source, target = slice(0, source_length), slice(source_length, None)
    config = model.config
    if not is_prefix(config):
        for n in range(config.encoder_depth):
            yield Mixing((f"encoder_{n}", "self_attention"), source, source)
    own = slice(0, None) if is_prefix(config) else target
    for n in range(config.decoder_depth):
        yield Mixing((f"decoder_{n}", "self_attention"), own, own)
        if not is_prefix(config):
            yield Mixing((f"decoder_{n}", "cross_attention"), target, source)


def problems(config: ModelConfig) -> Iterator[str]:
    """Why a model's attention cannot be explained; empty if it can."""
    if config.encoder not in ("transformer", *PREFIXES) or config.decoder != "transformer":
        yield f"model.encoder={config.encoder!r} with model.decoder={config.decoder!r}"
    if config.positions == "relative" and config.relative_values:
        yield "model.positions='relative', which adds to the values (model.relative_values)"
    if config.attention_gate:
        yield "model.attention_gate=True"
    if config.sources > 1:
        yield f"model.sources={config.sources}"
    names = {config.normalizer, config.cross_normalizer or config.normalizer}
    own = [NORMALIZERS[name] for name in names if name in NORMALIZERS]
    if any(one.of_heads is not unchanged for one in own):
        yield "a normalizer that changes the heads' outputs"
    if any(one.signed for one in own):
        yield "a normalizer with negative weights"


def traced(model: EncoderDecoder, params: Params, pair: Pairs) -> list[Traced]:
    """Every sub-layer of attention, in one pass."""

    def is_kept(module: Any, method: str) -> bool:
        inputs = isinstance(module, Residual | Embedding | Projection)
        return method == "encode" or (inputs and method == "__call__")

    _, state = model.apply(
        {"params": params},
        pair.source,
        pair.target,
        capture_intermediates=is_kept,
        mutable=["intermediates"],
    )
    kept: Any = state["intermediates"]
    embedded = [*kept.get("projection", kept.get("embedding"))["__call__"]]
    embedded += kept.get("tgt_embedding", {}).get("__call__", ())
    if model.config.features:
        embedded += kept["embedding"]["__call__"] if model.config.tie_embeddings else ()
    source_BMD, target_BLD = embedded[0], embedded[-1]
    joint_BTD = jnp.concatenate([source_BMD, target_BLD], axis=1)
    encoded_BMD = kept["encode"][0]
    found = []
    for mixing in mixings(model, source_BMD.shape[1]):
        layer, name = mixing.names
        own = kept[layer]
        x_BQD = joint_BTD[:, mixing.queries]
        [(y_BQD, _)] = own[f"{name}_residual"]["__call__"]
        memory_BKD = encoded_BMD if name == "cross_attention" else x_BQD
        [weights_BHQK] = own[name]["attention_weights"]
        found.append(Traced(mixing, weights_BHQK, x_BQD, memory_BKD, y_BQD))
        after = own["feed_forward_residual"]["__call__"][0][0] if model.config.d_ff else y_BQD
        ends = name == "cross_attention" or "cross_attention" not in own
        joint_BTD = joint_BTD.at[:, mixing.queries].set(after if ends else y_BQD)
    return found


def terms(config: ModelConfig, params: Params, one: Traced) -> tuple[Array, Array]:
    """The summands of a sub-layer's output, before biases: of each key, and of the residual.

    A norm after the sum is a linear map once its deviation is known, so it is applied to each
    summand (Kobayashi et al. 2021; Ferrando et al. 2022).

    Returns:
      float32 `[batch, queries, keys, d_model]` and `[batch, queries, d_model]`.
    """
    layer, name = one.mixing.names
    own, residual = params[layer][name], params[layer][f"{name}_residual"]
    kind = RESIDUALS[config.norm]
    memory_BKD = one.memory_BKD
    if kind.normalizes == "input" and name == "self_attention":
        memory_BKD = norm_of(config, residual["norm"], memory_BKD)(memory_BKD, True)
    value_BKGV = jnp.einsum("BKD,DGV->BKGV", memory_BKD, own["value"]) + own.get("value_bias", 0)
    value_BKHV = for_every_head(config, value_BKGV)
    vectors_BKHD = jnp.einsum("BKHV,HVD->BKHD", value_BKHV, own["out"])
    terms_BQKD = jnp.einsum("BHQK,BKHD->BQKD", one.weights_BHQK, vectors_BKHD)
    alpha = constants_of(config, layer.startswith("decoder")).alpha
    nothing = jnp.zeros(())
    kept_BQD = kind.join(residual, alpha, one.x_BQD, nothing)
    terms_BQKD = kind.join(residual, alpha, nothing, terms_BQKD)
    if kind.normalizes == "sum":
        bias = kind.join(residual, alpha, nothing, own.get("out_bias", nothing))
        normed = norm_of(config, residual["norm"], kept_BQD + terms_BQKD.sum(2) + bias)
        kept_BQD, terms_BQKD = normed(kept_BQD, False), normed(terms_BQKD, False)
    return terms_BQKD, kept_BQD


def norm_of(
    config: ModelConfig, params: Params, whole_BQD: Array
) -> Callable[[Array, bool], Array]:
    """The norm with the deviation of `whole`, as a linear map of (summands, with its bias)."""
    kind, epsilon = config.norm_kind, config.norm_epsilon
    centered = whole_BQD - whole_BQD.mean(-1, keepdims=True) if kind == "layer" else whole_BQD
    squares = jnp.square(centered)
    if kind == "scale":
        factor = jax.lax.rsqrt(jnp.maximum(squares.sum(-1, keepdims=True), epsilon**2))
    else:
        factor = jax.lax.rsqrt(squares.mean(-1, keepdims=True) + epsilon)

    def normed(x: Array, with_bias: bool) -> Array:
        x = x - x.mean(-1, keepdims=True) if kind == "layer" else x
        own = factor if x.ndim == factor.ndim else factor[:, :, None]
        return x * own * params["scale"] + (params.get("bias", 0) if with_bias else 0)

    return normed
