"""Attention weights of a sentence pair: every kind, layer and head of a Transformer.

Dimension key
  N layers   H heads   L length of what attends   M length of what is attended to
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.model.encoder_decoder import EncoderDecoder, shift_right
from transformer_jax.parallel.mesh import Params
from transformer_jax.text.vocabulary import BOS, Vocabulary


class Kind(NamedTuple):
    """One of the model's three uses of attention (Vaswani et al. 2017, section 3.2.3)."""

    stack: str  # whose layers hold it: "encoder" or "decoder"
    module: str  # its name in a layer
    title: str
    about: str


KINDS = {
    "encoder": Kind(
        "encoder",
        "self_attention",
        "Encoder self-attention",
        "Rows and columns are the subwords of the source; each row may look at all of them.",
    ),
    "decoder": Kind(
        "decoder",
        "self_attention",
        "Decoder self-attention",
        "A row is the next subword of the translation, a column is a subword before it; <s> is the "
        "beginning. The upper triangle is 0, because no position may look at a later one.",
    ),
    "cross": Kind(
        "decoder",
        "cross_attention",
        "Encoder-decoder attention",
        "A row is the next subword of the translation, a column is a subword of the source.",
    ),
}


class Attention(NamedTuple):
    """The weights of one kind in one sentence pair, and the subwords of their rows and columns."""

    weights_NHLM: np.ndarray  # float32 [layers, heads, attending, attended to]; rows sum to 1
    attending: list[str]  # subwords, one a row; in the decoder the next ones
    attended: list[str]  # subwords, one a column


def pair_attention(
    model: EncoderDecoder,
    params: Params,
    vocabulary: Vocabulary,
    src_ids: np.ndarray,
    tgt_ids: np.ndarray,
) -> dict[str, Attention]:
    """Weights of every kind, layer and head while the model is given a translation.

    Args:
      model: a Transformer.
      params: its parameters.
      vocabulary: names the subwords.
      src_ids: subwords of the source, EOS included, int32 `[src_len]`.
      tgt_ids: subwords of the translation, EOS included, int32 `[tgt_len]`.

    Returns:
      By the names of KINDS: encoder `[layers, heads, src_len, src_len]`, cross `[layers, heads,
      tgt_len, src_len]` and decoder `[layers, heads, tgt_len, tgt_len]`, whose row n belongs to
      `tgt_ids[n]` and whose column n belongs to the subword before it (BOS at 0).
    """
    src, tgt = (jnp.asarray(ids, jnp.int32)[None] for ids in (src_ids, tgt_ids))
    src_positions, tgt_positions = (jnp.arange(ids.shape[1])[None] for ids in (src, tgt))
    inputs = shift_right(tgt, tgt_positions, BOS)
    # Compiled as a whole: one operation after the other takes three times as long.
    run = jax.jit(functools.partial(model.apply, mutable=["intermediates"]))
    _, state = run(
        {"params": params},
        *(src, jnp.ones_like(src), src_positions),
        *(inputs, jnp.ones_like(tgt), tgt_positions),
    )
    source, said = (vocabulary.pieces(ids) for ids in (src_ids, tgt_ids))
    before = vocabulary.pieces(np.asarray(inputs[0]))
    pieces = {"encoder": (source, source), "decoder": (said, before), "cross": (said, source)}
    sown, layers = state["intermediates"], range(model.config.num_layers)

    def weights(kind: Kind) -> np.ndarray:
        every = [sown[f"{kind.stack}_{n}"][kind.module]["attention_weights"] for n in layers]
        return np.stack([weights_1HLM[0] for [weights_1HLM] in every])

    return {name: Attention(weights(kind), *pieces[name]) for name, kind in KINDS.items()}
