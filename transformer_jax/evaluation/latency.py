"""How far a translation lags behind its source, if it is generated while the source is read.

The delay g(t) is the number of source tokens that are read before target token t, from 1, is
generated. Every measure is of one sentence with |x| source and |y| target tokens; a corpus has
their mean.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Latency(NamedTuple):
    """Means over the sentences, in source tokens; proportions count the source as 1.

    |y| is the hypothesis's length, or the reference's where a name says so. SimulEval prints AL and
    AP by the reference and DAL by the hypothesis.
    """

    average_lagging: float  # AL
    average_lagging_of_reference: float
    length_adaptive: float  # LAAL: AL by the longer one of the two
    average_proportion: float  # AP, at most 1
    average_proportion_of_reference: float  # above 1 if the hypothesis is far longer
    differentiable: float  # DAL
    differentiable_of_reference: float


def wait_k_delays(k: int, source: int, target: int) -> np.ndarray:
    """g(t) = min(k + t - 1, |x|) for each target token: int `[target]`.

    Source: Ma et al. 2019, equation 3.
    """
    return np.minimum(k + np.arange(target), source)


def average_lagging(delays: np.ndarray, source: int, target: float) -> float:
    """AL = 1 / tau sum_{t <= tau} (g(t) - (t - 1) |x| / |y|); tau is the first t with g(t) = |x|.

    Args:
      delays: g of each generated target token; at least one.
      source: |x|.
      target: |y|; with the longer one of hypothesis and reference it is the length-adaptive LAAL.

    Source: Ma et al. 2019, section 4.1; LAAL: Papi et al. 2022, equation 1.
    """
    read = np.flatnonzero(delays >= source)
    tau = int(read[0]) + 1 if len(read) else len(delays)
    return float((delays[:tau] - np.arange(tau) * source / target).mean())


def average_proportion(delays: np.ndarray, source: int, target: float) -> float:
    """AP = sum_t g(t) / (|x| |y|).

    Source: Cho and Esipova 2016, equation 4.
    """
    return float(delays.sum() / (source * target))


def differentiable_lagging(delays: np.ndarray, source: int, target: float) -> float:
    """DAL: the mean of g'(t) - (t - 1) |x| / |y| with g'(t) = max(g(t), g'(t - 1) + |x| / |y|).

    The mean is over the generated target tokens, whatever |y| is.

    Source: Cherry and Foster 2019, equations 5 and 6.
    """
    step = source / target
    last = 0.0
    total = 0.0
    for position, delay in enumerate(delays.tolist()):
        last = max(delay, last + step) if position else float(delay)
        total += last - position * step
    return total / len(delays)


def mean_latency(
    delays: Sequence[np.ndarray], sources: Sequence[int], references: Sequence[int]
) -> Latency:
    """The means over the sentences that have a translation.

    Args:
      delays: of each sentence's target tokens.
      sources: |x| of each.
      references: the length of each reference, at least 1.
    """
    rows = [
        Latency(
            average_lagging(own, source, len(own)),
            average_lagging(own, source, reference),
            average_lagging(own, source, max(len(own), reference)),
            average_proportion(own, source, len(own)),
            average_proportion(own, source, reference),
            differentiable_lagging(own, source, len(own)),
            differentiable_lagging(own, source, reference),
        )
        for own, source, reference in zip(delays, sources, references, strict=True)
        if len(own)
    ]
    means = np.mean(rows, axis=0) if rows else np.full(len(Latency._fields), np.nan)
    return Latency(*means.tolist())


def format_latency(latency: Latency) -> str:
    """A line for the log: the measures by the hypothesis's and by the reference's length."""
    own = latency
    return (
        f"latency in source subwords, by the hypothesis's length: AL {own.average_lagging:.2f}, "
        f"DAL {own.differentiable:.2f}, AP {own.average_proportion:.3f}; by the reference's: "
        f"AL {own.average_lagging_of_reference:.2f}, DAL {own.differentiable_of_reference:.2f}, "
        f"AP {own.average_proportion_of_reference:.3f}; by the longer one's: "
        f"LAAL {own.length_adaptive:.2f}"
    )
