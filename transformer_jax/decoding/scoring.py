"""Scores of given translations: what search would report, had it found them (forced decoding).

Dimension key
  B rows, one pair each   M source length   L target length   V vocabulary, padded
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.decoding.penalties import Coverage, coverage_penalty, divisors
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError
from transformer_jax.model.ensemble import Predictor
from transformer_jax.model.interfaces import Params
from transformer_jax.model.sides.embeddings import shift_right
from transformer_jax.parallel.mesh import placed
from transformer_jax.text.batches import Packed, packed_sentences, row_length
from transformer_jax.text.vocabulary import BOS, EOS

SHORTEST = 16  # positions of the shortest row; longer rows have 32, 64, ...
POSITIONS = 1_024  # target positions whose logits are in memory at once


class Forced(NamedTuple):
    """The score of a given translation."""

    score: float  # log probability over the length penalty, plus the coverage penalty
    log_prob: float  # nats, summed over the subwords
    length: int  # subwords, EOS included


def forced_scores(
    translator: Translator, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> list[Forced]:
    """The score of each pair, by the translator's model and settings of search.

    Args:
      translator: provides the model and the settings.
      sources: the subwords of each source, int32 `[length]`, EOS included.
      targets: the subwords of each translation, likewise.
    """
    decode = translator.decode
    found = []
    numbers = of_pairs(_forced, translator, sources, targets)
    for (log_prob, coverage), length in zip(numbers, map(len, targets), strict=True):
        divisor = divisors(decode.penalty, jnp.float32(length), decode.length_penalty)
        score = float(log_prob) / float(divisor)
        if translator.model.watch:
            score += decode.coverage_penalty * float(coverage)
        found.append(Forced(score, float(log_prob), length))
    return found


def forced_logits(
    translator: Translator, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The logits of each target in forced decoding.

    Args:
      translator, sources, targets: as in `forced_scores`.

    Returns:
      float32 `[tgt_len, vocabulary]` for each pair; row l predicts subword l.
    """
    found = of_pairs(logits_and_watched, translator, sources, targets)
    return [
        np.asarray(logits_LV[: len(target)], np.float32)
        for (logits_LV, _), target in zip(found, targets, strict=True)
    ]


def of_pairs(
    compute: Callable[[Predictor, Params, Packed, Packed], Any],
    translator: Translator,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
) -> list[Any]:
    """Each pair's entries of the arrays [B, ...] that `compute` returns, in the order of pairs.

    Args:
      compute: a compiled function of the model, its parameters and both sides, a pair a row.
      translator: provides the model and the mesh.
      sources: the subwords of each source, or the numbers of its file.
      targets: the subwords of each translation.

    Raises:
      ConfigError: the model writes all subwords at once.
    """
    check_one_by_one(translator.model, "The probability of a given translation")
    found: list[Any] = [None] * len(sources)
    groups: dict[tuple[int, int], list[int]] = {}  # by row lengths: few, so few compilations
    longest = translator.model.longest()
    for number, pair in enumerate(zip(sources, targets, strict=True)):
        src_length, tgt_length = (_row_length(len(ids), longest) for ids in pair)
        groups.setdefault((src_length, tgt_length), []).append(number)
    for lengths, group in groups.items():
        rows = max(1, POSITIONS // max(lengths))
        for start in range(0, len(group), rows):
            numbers = group[start : start + rows]
            source, target = (
                packed_sentences([side[i] for i in numbers], rows, length)
                for side, length in zip((sources, targets), lengths, strict=True)
            )
            with placed(translator.mesh, translator.model):
                arrays = compute(translator.model, translator.params, source, target)
            arrays = jax.device_get(arrays)
            for row, number in enumerate(numbers):
                found[number] = jax.tree.map(operator.itemgetter(row), arrays)
    return found


def check_one_by_one(model: Predictor, what: str) -> None:
    """Raises ConfigError, naming `what` is asked, if a model writes all subwords at once."""
    for member in model.members:
        if (parallel := member.config.parallel) is not None:
            raise ConfigError(
                f"{what} is for models that write from left to right, and this run has "
                f"model.parallel={parallel!r}."
            )


def _row_length(length: int, longest: int | None) -> int:
    rounded = SHORTEST * 2 ** max(0, math.ceil(math.log2(max(length, 1) / SHORTEST)))
    return row_length(rounded, length, longest)


@functools.partial(jax.jit, static_argnames="model")
def _forced(
    model: Predictor, params: Params, source: Packed, target: Packed
) -> tuple[Array, Array]:
    """Summed log probabilities, and coverage penalties (0 if nothing is watched): `[rows]`."""
    logits_BLV, watched_BLM = logits_and_watched(model, params, source, target)
    log_probs_BLV = jax.nn.log_softmax(logits_BLV.astype(jnp.float32))
    own_BL = jnp.take_along_axis(log_probs_BLV, target.ids[..., None], axis=-1)[..., 0]
    real_BL = target.segments != 0
    sums_B = jnp.where(real_BL, own_BL, 0.0).sum(1)
    if watched_BLM is None:
        return sums_B, jnp.zeros_like(sums_B)
    attended_BM = jnp.where(real_BL[..., None], watched_BLM, 0.0).sum(1)
    counted_BM = (source.segments != 0) & (source.ids != EOS)
    return sums_B, coverage_penalty(Coverage(attended_BM[:, None], counted_BM))[:, 0]


@functools.partial(jax.jit, static_argnames="model")
def logits_and_watched(
    model: Predictor, params: Params, source: Packed, target: Packed
) -> tuple[Array, Array | None]:
    """The logits of each target subword in forced decoding, and the watched weights."""
    given = target._replace(ids=shift_right(target.ids, target.positions, BOS))
    found: Any = model.apply({"params": params}, source, given, method="logits_and_watched")
    return found  # type: ignore[no-any-return]
