"""COMBINATIONS: how encoder-decoder attention joins several source sentences (model.combination).

A new one is a class here and its line in `COMBINATIONS`.

Dimension key
  B batch   L target length (in search: the beams)   M source length   D d_model   H heads
  V d_v per head   N source sentences of a pair
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.attention_sublayer import for_every_head
from transformer_jax.model.attention.multi_head import MultiHeadAttention, attend
from transformer_jax.model.attention.normalizers import Normalize
from transformer_jax.model.axes import Parameter, declared
from transformer_jax.model.layers.matrix_products import einsum, product


class Reading(NamedTuple):
    """A call of encoder-decoder attention, which a combination finishes."""

    read: Callable[[Normalize], tuple[Array, Array]]  # heads [B, L, H, V], weights [B, H, L, M]
    join: Callable[[Array], Array]  # the heads joined by W^O: [B, L, D]
    normalize: Normalize
    mask: Array  # booleans that broadcast to the weights
    sentence_BM: Array  # which of its pair's sentences a position is in, int32, from 0

    def sees(self, number: int) -> Array:
        """Whether a query sees a position of a sentence; like the mask, with 1 position."""
        return (self.mask & (self.sentence_BM == number)[:, None, None]).any(-1, keepdims=True)

    def of(self, numbers: Sequence[int]) -> tuple[Array, Array]:
        """Heads and weights: the sum over some sentences of attention to each one alone."""
        return self.read(alone(self.normalize, self.sentence_BM, numbers))

    def mean(self, weights_BHLM: Array, count: int) -> Array:
        """The weights over the number of sentences that a query sees, so that they sum to 1."""
        seen = sum(self.sees(number).astype(weights_BHLM.dtype) for number in range(count))
        return weights_BHLM / jnp.maximum(seen, 1)


def alone(normalize: Normalize, sentence_BM: Array, numbers: Sequence[int]) -> Normalize:
    """(scores, mask) -> the sum over these sentences of the weights of each one alone.

    A sentence adds nothing for a query that sees none of its positions.
    """

    def summed(scores_BHLM: Array, mask: Array) -> Array:
        weights_BHLM = jnp.zeros_like(scores_BHLM)
        for number in numbers:
            own = mask & (sentence_BM == number)[:, None, None]
            of_one_BHLM = normalize(scores_BHLM, own)
            weights_BHLM += jnp.where(own.any(-1, keepdims=True), of_one_BHLM, 0.0)
        return weights_BHLM

    return summed


class Parallel(nn.Module):
    """The sum of attention to each sentence alone; with one number, attention to that sentence.

    The sentences share the matrices. In a decoder layer with model.combination=serial each has a
    sub-layer of its own, with its own matrices, and they follow one another.

    Source: Libovicky, Helcl and Marecek 2018, section 3, which has matrices for each sentence.
    """

    config: ModelConfig
    numbers: tuple[int, ...]

    def __call__(self, reading: Reading, x_BLD: Array) -> tuple[Array, Array]:
        """`[batch, tgt_len, d_model]`, and weights that sum to 1 over all sentences."""
        heads_BLHV, weights_BHLM = reading.of(self.numbers)
        return reading.join(heads_BLHV), reading.mean(weights_BHLM, self.config.sources)


class Hierarchical(nn.Module):
    """Attention to each sentence alone, and then attention to the results.

    C_n is the output of attention to sentence n, with the matrices that all sentences share, and
    the output that of a second multi-head attention, whose keys and values are C_1 .. C_N. The
    weight of a position is its own in its sentence, times its sentence's, the mean over heads.

    Source: Libovicky, Helcl and Marecek 2018, section 3.4, which has matrices for each sentence.
    """

    config: ModelConfig
    numbers: tuple[int, ...]

    def setup(self) -> None:
        self.over_sentences = MultiHeadAttention(self.config)

    def __call__(self, reading: Reading, x_BLD: Array) -> tuple[Array, Array]:
        """`[batch, tgt_len, d_model]`, and weights that sum to 1 over all sentences."""
        batch, length, _ = x_BLD.shape
        each = [reading.of((number,)) for number in self.numbers]
        of_sentences_BLND = jnp.stack([reading.join(heads) for heads, _ in each], axis=2)
        seen = [reading.sees(number)[:, 0] for number in self.numbers]  # [B, 1 or L, 1]
        seen_BLN = jnp.broadcast_to(jnp.concatenate(seen, -1), (batch, length, len(seen)))
        # Each target position attends by itself: it is a row of its own.
        x_in_rows = x_BLD.reshape(batch * length, 1, -1)
        queries = self.over_sentences.queries(x_in_rows)
        keys_values = self.over_sentences.keys_values(
            of_sentences_BLND.reshape(batch * length, len(seen), -1)
        )
        key, value = (for_every_head(self.config, x) for x in keys_values)
        heads, shares = attend(queries, key, value, seen_BLN.reshape(-1, 1, 1, len(seen)))
        out = self.over_sentences.joined(heads, x_in_rows)
        shares_BLN = shares.mean((1, 2)).reshape(seen_BLN.shape) * seen_BLN
        weights_BHLMN = jnp.stack([weights for _, weights in each], axis=-1)
        weights_BHLM = einsum("BHLMN,BLN->BHLM", weights_BHLMN, shares_BLN)
        return out.reshape(x_BLD.shape), weights_BHLM


GATE = Parameter(nn.initializers.xavier_uniform(), ("both", "d_model"), 1)


class Gated(nn.Module):
    """(1 - g) h + g d: h of the first sentence, d of the others, g = sigmoid([h; d] W).

    h is the output of attention to the first sentence alone, and d that of `Hierarchical` over the
    others, such as those before it in its document. A sentence that is not there is its EOS alone,
    to which attention goes; without it (model.source_eos=False) the output is h. The weights of the
    others' positions count g, the mean over its features.

    Source: Miculicich et al. 2018, section 2, on top of the decoder, with a network after d.
    """

    config: ModelConfig
    numbers: tuple[int, ...]

    def setup(self) -> None:
        self.others = Hierarchical(self.config, self.numbers[1:])
        sizes = self.config.axis_sizes
        sizes["both"] = 2 * sizes["d_model"]
        self.gate = declared(self, {"gate": GATE}, sizes)["gate"]

    def __call__(self, reading: Reading, x_BLD: Array) -> tuple[Array, Array]:
        """`[batch, tgt_len, d_model]`, and weights that sum to 1 over all sentences."""
        heads_BLHV, own_BHLM = reading.of(self.numbers[:1])
        h_BLD = reading.join(heads_BLHV)
        d_BLD, others_BHLM = self.others(reading, x_BLD)
        both_BLE = jnp.concatenate([h_BLD, d_BLD], -1)
        g_BLD = nn.sigmoid(product("BLE,ED->BLD", both_BLE, self.gate, self.config.dtype))
        seen_BL1 = sum(reading.sees(number)[:, 0] for number in self.numbers[1:]) > 0
        g_BLD = jnp.where(seen_BL1, g_BLD, 0)
        share_B1L1 = g_BLD.astype(jnp.float32).mean(-1)[:, None, :, None]
        weights_BHLM = (1 - share_B1L1) * own_BHLM + share_B1L1 * others_BHLM
        return (1 - g_BLD) * h_BLD + g_BLD * d_BLD, weights_BHLM


# By the value of model.combination; None: attention reads all sentences as one.
COMBINATIONS: dict[str, type[Parallel] | type[Hierarchical] | type[Gated] | None] = {
    "flat": None,
    "parallel": Parallel,
    "serial": Parallel,
    "hierarchical": Hierarchical,
    "gated": Gated,
}


def is_serial(config: ModelConfig) -> bool:
    """Whether a decoder layer has a sub-layer of attention for each source sentence."""
    return config.combination == "serial"
