"""Attention weights of a sentence pair: every kind, layer and head of a Transformer.

Dimension key
  N layers   H heads   L attending subwords   M subwords attended to
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.explanations import explained
from transformer_jax.model.attention.maps import attention_maps, uses_of
from transformer_jax.model.attention.traces import in_rows
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params
from transformer_jax.text.batches import row_length
from transformer_jax.text.vocabulary import BOS, Vocabulary

LENGTHS = 16  # rows are padded to a multiple of this


class Kind(NamedTuple):
    """One of the model's three uses of attention (Vaswani et al. 2017, section 3.2.3)."""

    title: str
    about: str


KINDS = {
    "encoder": Kind(
        "Encoder self-attention",
        "Rows and columns are the subwords of the source; each row may look at all of them.",
    ),
    "decoder": Kind(
        "Decoder self-attention",
        "A row is the next subword of the translation, a column is a subword before it; <s> is the "
        "beginning. The upper triangle is 0, because no position may look at a later one.",
    ),
    "cross": Kind(
        "Encoder-decoder attention",
        "A row is the next subword of the translation, a column is a subword of the source.",
    ),
}


# What a row of an explanation is about (explanations.py).
EXPLAINED = {
    "decoder": Kind(
        "Earlier target subwords",
        "A row is a subword of the translation, and a column one before it; <s> is the beginning.",
    ),
    "cross": Kind(
        "Source subwords",
        "A row is a subword of the translation, and a column a subword of the source.",
    ),
}


class Attention(NamedTuple):
    """The weights of one kind in one sentence pair, and the subwords of their rows and columns."""

    # float32 [layers, heads, attending, attended to]; rows sum to 1. If the source is a prefix,
    # those of "decoder" and "cross" together do.
    weights_NHLM: np.ndarray
    attending: list[str]  # subwords, one per row; in the decoder, the subwords predicted there
    attended: list[str]  # subwords, one per column
    heads: tuple[int, ...]  # their numbers, from 1

    def of_head(self, number: int) -> "Attention":
        """The weights of one head alone. Raises ConfigError if there is no head of that number."""
        if number not in self.heads:
            raise ConfigError(f"--head={number}: this model has heads 1 to {len(self.heads)}.")
        return self._replace(weights_NHLM=self.weights_NHLM[:, [number - 1]], heads=(number,))


def pair_attention(
    model: EncoderDecoder,
    params: Params,
    vocabulary: Vocabulary,
    src_ids: np.ndarray,
    tgt_ids: np.ndarray,
    places: Sequence[str] | None = None,
    explain: str | None = None,
) -> dict[str, Attention]:
    """Weights of every kind, layer and head while the model is given a translation.

    Args:
      model: a model with layers of attention.
      params: its parameters.
      vocabulary: gives the subwords' names.
      src_ids: subwords of the source, EOS included, int32 `[src_len]`; of a recording or a picture
        its numbers, float32 `[src_len, features]`.
      tgt_ids: subwords of the translation, EOS included, int32 `[tgt_len]`.
      places: what the positions of a recording or a picture are called.
      explain: a name in EXPLANATIONS, which gives cross and decoder as one layer of one head in
        place of the weights; None: the weights.

    Returns:
      By those names of KINDS that the model has: encoder `[layers, heads, src_len, src_len]`, cross
      `[layers, heads, tgt_len, src_len]` and decoder `[layers, heads, tgt_len, tgt_len]`, whose
      row n belongs to `tgt_ids[n]` and whose column n belongs to the subword before it (BOS at 0).

    Raises:
      ConfigError: the model has no such layers.
    """
    if not uses_of(model):
        encoder, decoder = model.config.encoder, model.config.decoder
        raise ConfigError(
            f"this model has no layers and heads of attention to show (model.encoder={encoder!r}, "
            f"model.decoder={decoder!r})."
        )
    lengths = padded_length(len(src_ids), model), padded_length(len(tgt_ids), model)
    pair = in_rows([src_ids], [tgt_ids], 1, lengths)
    if explain is None:
        found = _attention_maps(model, params, pair.source, pair.target)
    else:
        found = explained(model, params, pair, explain)
    source = vocabulary.pieces(src_ids) if places is None else list(places)
    target, before = map(vocabulary.target.pieces, (tgt_ids, np.array([BOS, *tgt_ids[:-1]])))
    pieces = {"encoder": (source, source), "decoder": (target, before), "cross": (target, source)}

    def attention(weights_1NHLM: Array, attending: list[str], attended: list[str]) -> Attention:
        # Cut on the host: on the device, each length would be another program.
        own_NHLM = np.asarray(weights_1NHLM)[0, :, :, : len(attending), : len(attended)]
        return Attention(own_NHLM, attending, attended, tuple(range(1, own_NHLM.shape[1] + 1)))

    return {name: attention(weights, *pieces[name]) for name, weights in found.items()}


# Compiled as a whole, since separate operations take three times as long.
_attention_maps = jax.jit(attention_maps, static_argnums=0)


def padded_length(longest: int, model: EncoderDecoder) -> int:
    """Row length for sentences of up to `longest` subwords; few lengths, so few compilations."""
    return row_length(-(-longest // LENGTHS) * LENGTHS, longest, model.longest())
