"""Beam search written obviously: Python lists, float64, no cache.

A decoder is a function of the sentence's number and the subwords so far to logits over the real
vocabulary; PAD, EOS and BOS are subwords as any other.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

EOS = 1
Decoder = Callable[[int, list[int]], np.ndarray]  # (sentence, subwords so far) -> logits [V]


class Hypothesis(NamedTuple):
    ids: list[int]
    log_prob: float
    score: float


def gnmt(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def power(length: int, alpha: float) -> float:
    return length**alpha


PENALTIES = {"gnmt": gnmt, "power": power}


def forced_log_prob(decoder: Decoder, sentence: int, ids: list[int]) -> float:
    """The summed log probability of given subwords."""
    return sum(log_softmax(decoder(sentence, ids[:n]))[i] for n, i in enumerate(ids))


def every_hypothesis(decoder: Decoder, sentence: int, limit: int) -> dict[tuple[int, ...], float]:
    """Each sequence of at most `limit` subwords that ends in EOS, with its log probability."""
    found: dict[tuple[int, ...], float] = {}
    open_ = {(): 0.0}
    for _ in range(limit):
        longer = {}
        for ids, log_prob in open_.items():
            for i, gain in enumerate(log_softmax(decoder(sentence, list(ids)))):
                (found if i == EOS else longer)[(*ids, i)] = log_prob + gain
        open_ = longer
    return found


def repeats(ids: list[int], n: int) -> bool:
    """Whether the last n subwords came before, in this order and one after the other."""
    before = [ids[at : at + n] for at in range(len(ids) - n)]
    return ids[-n:] in before


def beam_search(
    decoder: Decoder,
    sentence: int,
    limit: int,
    *,
    beam: int,
    n_best: int,
    alpha: float,
    penalty: Callable[[int, float], float],
    added: Callable[[int, list[int]], float],
    banned: tuple[int, ...] = (),
    min_length: int = 0,
    no_repeat: int = 0,
    groups: int = 1,
    diversity: float = 0.0,
) -> tuple[list[Hypothesis], int]:
    """The best of each group, and the number of steps after which no other could join them.

    Banned subwords, EOS before min_length and what would repeat no_repeat subwords keep their
    probability, but no hypothesis has them.
    `added(sentence, hypothesis)`, at most 0, is added to the score of an ended hypothesis.
    """
    beam, n_best = beam // groups, n_best // groups
    live: list[list[tuple[list[int], float]]] = [[([], 0.0)] if limit else []] * groups
    finished: list[list[Hypothesis]] = [[] for _ in range(groups)]
    steps = 0
    for length in range(1, limit + 1):
        steps += any(live)
        chosen: Counter[int] = Counter()  # by earlier groups at this length
        for g, hypotheses in enumerate(live):
            candidates = []
            for ids, log_prob in hypotheses:
                for i, gain in enumerate(log_softmax(decoder(sentence, ids))):
                    excluded = i in banned or (i == EOS and length <= min_length)
                    excluded |= no_repeat > 0 and repeats([*ids, i], no_repeat)
                    if i == EOS if length == limit else not excluded:
                        candidates.append((ids + [i], log_prob + gain))
            candidates.sort(key=lambda one: diversity * chosen[one[0][-1]] - one[1])  # stable
            for ids, log_prob in candidates[:beam]:
                if ids[-1] == EOS:
                    score = log_prob / penalty(length, alpha) + added(sentence, ids)
                    finished[g].append(Hypothesis(ids, log_prob, score))
            if beam == 1:  # greedy: only the best continuation counts
                candidates = candidates[:1]
            live[g] = [one for one in candidates if one[0][-1] != EOS][:beam]
            finished[g].sort(key=lambda one: -one.score)
            last = finished[g][n_best - 1].score if len(finished[g]) >= n_best else -np.inf
            best = max((log_prob for _, log_prob in live[g]), default=-np.inf)
            longer = range(length + 1, limit + 1)
            if not any(best / penalty(final, alpha) > last for final in longer):
                live[g] = []
            chosen.update(ids[-1] for ids, _ in live[g])
    return [one for group in finished for one in group[:n_best]], steps
