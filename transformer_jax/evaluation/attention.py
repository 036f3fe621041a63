"""Attention weights of a sentence pair: every kind, layer and head of a Transformer.

Dimension key
  N layers   H heads   L attending subwords   M subwords attended to
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.model.attention_maps import attention_maps
from transformer_jax.model.embeddings import shift_right
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.records import Params
from transformer_jax.text.batches import Packed
from transformer_jax.text.vocabulary import BOS, Vocabulary


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


class Attention(NamedTuple):
    """The weights of one kind in one sentence pair, and the subwords of their rows and columns."""

    weights_NHLM: np.ndarray  # float32 [layers, heads, attending, attended to]; rows sum to 1
    attending: list[str]  # subwords, one per row; in the decoder, the subwords predicted there
    attended: list[str]  # subwords, one per column


def pair_attention(
    model: EncoderDecoder,
    params: Params,
    vocabulary: Vocabulary,
    src_ids: np.ndarray,
    tgt_ids: np.ndarray,
) -> dict[str, Attention]:
    """Weights of every kind, layer and head while the model is given a translation.

    Args:
      model: any model.
      params: its parameters.
      vocabulary: gives the subwords' names.
      src_ids: subwords of the source, EOS included, int32 `[src_len]`.
      tgt_ids: subwords of the translation, EOS included, int32 `[tgt_len]`.

    Returns:
      By those names of KINDS that the model has: encoder `[layers, heads, src_len, src_len]`, cross
      `[layers, heads, tgt_len, src_len]` and decoder `[layers, heads, tgt_len, tgt_len]`, whose
      row n belongs to `tgt_ids[n]` and whose column n belongs to the subword before it (BOS at 0).
    """
    src, tgt = (_one_row(ids) for ids in (src_ids, tgt_ids))
    inputs = tgt._replace(ids=shift_right(tgt.ids, tgt.positions, BOS))
    # Compiled as a whole, since separate operations take three times as long.
    found = jax.jit(functools.partial(attention_maps, model))(params, src, inputs)
    source, target = (vocabulary.pieces(ids) for ids in (src_ids, tgt_ids))
    before = vocabulary.pieces(np.asarray(inputs.ids[0]))
    pieces = {"encoder": (source, source), "decoder": (target, before), "cross": (target, source)}
    return {name: Attention(np.asarray(w[0]), *pieces[name]) for name, w in found.items()}


def _one_row(ids: np.ndarray) -> Packed:
    ids_1L = jnp.asarray(ids, jnp.int32)[None]
    return Packed(ids_1L, jnp.ones_like(ids_1L), jnp.arange(len(ids))[None])
