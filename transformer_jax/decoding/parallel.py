"""Translations of models that write all subwords at once (model.parallel).

**Mask-predict** (Ghazvininejad et al. 2019, section 3.2) takes the likeliest lengths and fills in a
text of masks for each. After iteration t of T, the N (T - t) / T subwords that it is least sure of
are masked again, for the next iteration to fill in. The text with the highest mean log probability
of its subwords is the translation. **CTC** takes the likeliest subword or blank at each state,
merges repeated ones and leaves out blanks (Libovicky and Helcl 2018).

Dimension key
  B rows   M source length   L target length   E features of the encoder's output   K lengths
  C classes of lengths   V vocabulary, padded   T states
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from transformer_jax.config.decode import PARALLEL
from transformer_jax.decoding.translator import LANES, Hypothesis, Progress, Translator
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params
from transformer_jax.model.outputs.ctc import BLANK, states
from transformer_jax.model.outputs.mask_predict import LENGTHS, MASK, length_log_probs
from transformer_jax.parallel.mesh import batch_sharding, batch_ways, placed
from transformer_jax.text.batches import Packed, packed_sentences, translation_buckets
from transformer_jax.text.vocabulary import BOS, EOS, PAD

MULTIPLE = 16  # the positions of filled rows are a multiple of this: few compilations
NEVER = -1e30  # a logit of what is not written


class ParallelTranslator(Translator):
    """The same for a model with model.parallel."""

    def translate(self, sentences: Sequence[np.ndarray]) -> list[list[Hypothesis]]:
        """The n_best best translations of each sentence, best first; none if logits are NaN.

        Args:
          sentences: subwords of each, EOS included, or the numbers of its recording.
        """
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        write = {"mask_predict": self._filled, "ctc": self._named}[self.decode.method]
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        tokens = max(1, self.decode.tokens_per_batch // LANES // self.decode.lengths)
        longest = min(self.decode.max_length, self.model.longest() or self.decode.max_length)
        progress = Progress(len(sentences))
        for bucket in translation_buckets(lengths, tokens, longest, batch_ways(self.mesh)):
            for start in range(0, len(bucket.indices), bucket.rows):
                numbers = bucket.indices[start : start + bucket.rows]
                rows = [sentences[number] for number in numbers]
                source = packed_sentences(rows, bucket.rows, bucket.length)
                source = jax.device_put(source, batch_sharding(self.mesh))
                with placed(self.mesh, self.model):
                    found = write(source, lengths[numbers])
                for number, hypotheses in zip(numbers, found, strict=True):
                    results[number] = hypotheses[: self.n_best]
                progress.note(len(numbers))
        return results

    def _filled(self, source: Packed, lengths: np.ndarray) -> list[list[Hypothesis]]:
        encoded_BME, log_p_BC = _lengths(self.model, self.params, source)
        tried_BK = self._likeliest(np.asarray(log_p_BC)[: len(lengths)], lengths)
        size = -(-max(1, int(tried_BK.max())) // MULTIPLE) * MULTIPLE
        size = min(size, self.model.longest() or size)
        empty = len(source.ids) - len(lengths)
        length_BK = np.pad(tried_BK, ((0, empty), (0, 0)))
        how = {"size": size, "iterations": self.decode.iterations, "banned": self.exclusions.banned}
        found = _fill(self.model, self.params, (source, encoded_BME, length_BK), **how)
        ids_BKL, log_p_BK = map(np.asarray, found)
        results = []
        for row, tried_K in enumerate(tried_BK):
            texts = [
                Hypothesis(ids[:length], float(log_p) / (length - 1), float(log_p))
                for ids, length, log_p in zip(ids_BKL[row], tried_K, log_p_BK[row], strict=True)
                if length and np.isfinite(log_p)
            ]
            results.append(sorted(texts, key=lambda one: -one.score))
        return results

    def _likeliest(self, log_p_BC: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The likeliest lengths, EOS included, int32 `[B, K]`; 0 where fewer are allowed."""
        length_BC = lengths[:, None] + np.arange(LENGTHS) - LENGTHS // 2
        limit_B = lengths + self.decode.max_extra_length
        if (longest := self.model.longest()) is not None:
            limit_B = np.minimum(limit_B, longest)
        fits_BC = (length_BC >= 2) & (length_BC <= np.maximum(limit_B, 2)[:, None])
        log_p_BC = np.where(fits_BC, log_p_BC, -np.inf)
        best_BK = np.argsort(-log_p_BC, axis=1, kind="stable")[:, : self.decode.lengths]
        length_BC = np.where(fits_BC, length_BC, 0)
        return np.take_along_axis(length_BC, best_BK, axis=1).astype(np.int32)

    def _named(self, source: Packed, lengths: np.ndarray) -> list[list[Hypothesis]]:
        banned = tuple(one for one in self.exclusions.banned if one != BLANK)  # it is not written
        found = _name(self.model, self.params, source, banned)
        ids_BT, log_p_B = map(np.asarray, found)
        return [
            [Hypothesis(collapsed(ids_T), float(log_p), float(log_p))] if np.isfinite(log_p) else []
            for ids_T, log_p in zip(ids_BT[: len(lengths)], log_p_B, strict=False)
        ]


def collapsed(ids_T: np.ndarray) -> np.ndarray:
    """The subwords that states name, up to the first EOS: repeated ones merged, without blanks."""
    is_new = np.append(True, ids_T[1:] != ids_T[:-1])
    ids = ids_T[is_new & (ids_T != BLANK)]
    return np.append(ids[: int((ids != EOS).cumprod().sum())], np.int32(EOS))


@functools.partial(jax.jit, static_argnames="model")
def _lengths(model: EncoderDecoder, params: Params, source: Packed) -> tuple[Array, Array]:
    """The encoder's output, and the log probabilities of the classes of lengths `[B, C]`."""

    def compute(model: Any) -> tuple[Array, Array]:
        encoded_BME = model.encode(source)
        log_p_BMC = length_log_probs(model, encoded_BME, model.source_place(source))
        return encoded_BME, log_p_BMC[:, 0]

    found: Any = model.apply({"params": params}, method=compute)
    return found  # type: ignore[no-any-return]


@functools.partial(jax.jit, static_argnames=("model", "size", "iterations", "banned"))
def _fill(
    model: EncoderDecoder,
    params: Params,
    given: tuple[Packed, Array, Array],
    size: int,
    iterations: int,
    banned: tuple[int, ...],
) -> tuple[Array, Array]:
    """Texts of the lengths that are asked `[B, K, size]`, and their log probabilities `[B, K]`.

    `given` are the source, the encoder's output and the lengths, EOS included, int32 `[B, K]`.
    Banned subwords are never written.
    """
    source, encoded_BME, length_BK = given
    never = (*banned, PAD, EOS, BOS)
    count = length_BK.shape[1]

    def for_each(x_B: Array) -> Array:  # each row once for each of its lengths
        return jnp.repeat(x_B, count, axis=0)

    length_N1 = length_BK.reshape(-1, 1)
    position_NL = jnp.broadcast_to(jnp.arange(size), (length_N1.shape[0], size))
    word_NL = position_NL < length_N1 - 1
    ends = jnp.where(position_NL == length_N1 - 1, EOS, PAD)
    place = Packed(ends, (position_NL < length_N1).astype(jnp.int32), position_NL)

    def compute(model: Any) -> tuple[Array, Array]:
        sources, encoded = source.map(for_each), for_each(encoded_BME)

        def fill(t: int | Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            ids_NL, log_p_NL, masked_NL = carry
            seen = place._replace(ids=jnp.where(masked_NL, MASK, ids_NL))
            x_NLD, _ = model.decode(encoded, sources, seen, full_context=True)
            given = model.given(None, encoded, sources, seen)
            best_NL, best_log_p_NL = likeliest(model.out().logits(x_NLD, given), never)
            ids_NL = jnp.where(masked_NL, best_NL, ids_NL)
            log_p_NL = jnp.where(masked_NL, best_log_p_NL, log_p_NL)
            again_N1 = (length_N1 - 1) * (iterations - t - 1) // iterations
            return ids_NL, log_p_NL, least_sure(log_p_NL, word_NL, again_N1)

        carry = ends, jnp.zeros(ends.shape), word_NL
        ids_NL, log_p_NL, _ = lax.fori_loop(0, iterations, fill, carry)
        return ids_NL, log_p_NL.sum(-1)

    found: Any = model.apply({"params": params}, method=compute)
    ids_NL, log_p_N = found
    return ids_NL.reshape(-1, count, size), log_p_N.reshape(-1, count)


def least_sure(log_p_NL: Array, word_NL: Array, count_N1: Array) -> Array:
    """Which of the words are the `count` with the lowest probabilities; of equal ones, the first.

    Args:
      log_p_NL: log probabilities of the words `[rows, tgt_len]`, and 0 elsewhere.
      word_NL: booleans, False for EOS and padding.
      count_N1: int `[rows, 1]`.
    """
    order_NL = jnp.argsort(log_p_NL, axis=1, stable=True)
    rank_NL = jnp.argsort(order_NL, axis=1, stable=True)
    return word_NL & (rank_NL < count_N1)


def likeliest(logits_NLV: Array, never: Sequence[int]) -> tuple[Array, Array]:
    """The likeliest subwords of those that may be written, and their log probabilities."""
    log_sum_NL = jax.nn.logsumexp(logits_NLV, axis=-1)
    column_V = jnp.arange(logits_NLV.shape[-1])
    for excluded in never:
        logits_NLV = jnp.where(column_V == excluded, NEVER, logits_NLV)
    best_NL = logits_NLV.argmax(-1).astype(jnp.int32)
    return best_NL, logits_NLV.max(-1) - log_sum_NL


@functools.partial(jax.jit, static_argnames=("model", "banned"))
def _name(
    model: EncoderDecoder, params: Params, source: Packed, banned: tuple[int, ...]
) -> tuple[Array, Array]:
    """What each state names `[B, T]`, the blank in the padding, and its log probability `[B]`."""

    def compute(model: Any) -> tuple[Array, Array]:
        encoded_BME = model.encode(source)
        x_BTD, place = states(model, encoded_BME, source, None)
        logits_BTV = model.out().logits(x_BTD, model.given(None, encoded_BME, source, source))
        best_BT, log_p_BT = likeliest(logits_BTV, (*banned, PAD))
        real_BT = place.segments != 0
        log_p_B = jnp.where(real_BT, log_p_BT, 0.0).sum(-1)
        return jnp.where(real_BT, best_BT, BLANK), log_p_B

    found: Any = model.apply({"params": params}, method=compute)
    return found  # type: ignore[no-any-return]


def translator_for(method: str) -> type[Translator]:
    """What translates with this decode.method."""
    return ParallelTranslator if method in PARALLEL else Translator
