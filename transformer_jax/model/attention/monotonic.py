"""Monotonic attention: the source is read from left to right, and each head stops somewhere.

At every target position a head goes on from where it stopped before. At each source position it
stops with probability p = sigmoid(energy). In training the weights are expectations over all paths
of a head. Everywhere else it stops at the first position with p >= 1/2, so that search, validation
and the score of a given translation agree. The last source position, EOS, stops every
head: otherwise weights could sum to less than 1, and would stay so.

    monotonic   the weight is where the head stops (Raffel et al. 2017)
    chunkwise   a softmax over the stop and the positions before it, `chunk_width` in all (Chiu and
                Raffel 2018)
    lookback    a softmax over the stop and all positions before it (Arivazhagan et al. 2019)

Dimension key
  B batch   L target length   M source length   H heads   K d_k per head   E encoder's features
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.affine_scan import affine_scan
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.stateful_normalizers import (
    Scored,
    SearchArray,
    Source,
    Stateful,
)
from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params

FIRST_BIAS = -1.0  # the energies' first bias (Raffel et al. 2017, section 2.4: below 0)


def last_of_sentence(mask: Array) -> Array:
    """True at the last position where the mask is True; these are next to one another."""
    after = jnp.pad(mask[..., 1:], [(0, 0)] * (mask.ndim - 1) + [(0, 1)])
    return mask & ~after


def expected_stops(energies_BHLM: Array, mask: Array, begins_BL: Array) -> Array:
    """The probability that a head stops at each source position `[batch, heads, tgt_len, src_len]`.

    At target position i, a head comes to source position j with probability q_ij. If it comes to j,
    it stops there with probability p_ij. So it stops at j with probability a_ij = p_ij q_ij, and
    q_ij = (1 - p_i(j-1)) q_i(j-1) + a_(i-1)j.

    Args:
      energies_BHLM: float32 `[batch, heads, tgt_len, src_len]`; p is their sigmoid.
      mask: booleans that broadcast to that shape, True = may stop there. Heads pass by
        the other positions.
      begins_BL: True at the first position of each sentence, where heads start on the left.

    Source: Raffel et al. 2017, section 2.3, equations 11 to 14.
    """
    last = last_of_sentence(mask)
    stop_BHLM = jnp.where(mask, jnp.where(last, 1.0, jax.nn.sigmoid(energies_BHLM)), 0.0)
    # Not 1 - p, which rounds to 1 or 0 long before the sigmoid of the negative energy does.
    go_BHLM = jnp.where(mask, jax.nn.sigmoid(-energies_BHLM), 1.0)
    come_BHLM = jnp.pad(go_BHLM[..., :-1], ((0, 0), (0, 0), (0, 0), (1, 0)))
    at_first = (jnp.arange(energies_BHLM.shape[-1]) == 0).astype(energies_BHLM.dtype)

    @jax.checkpoint  # keeps one array for each target position instead of a dozen
    def step(before_BHM: Array, step_inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        stop_BHM, come_BHM, begins_B = step_inputs
        before_BHM = jnp.where(begins_B[:, None, None], at_first, before_BHM)
        stops_BHM = stop_BHM * affine_scan(come_BHM, before_BHM)
        return stops_BHM, stops_BHM

    along = (jnp.moveaxis(stop_BHLM, 2, 0), jnp.moveaxis(come_BHLM, 2, 0), begins_BL.T)
    _, stops_LBHM = jax.lax.scan(step, jnp.zeros_like(stop_BHLM[:, :, 0]), along)
    return jnp.moveaxis(stops_LBHM, 0, 2)


def next_stop(stopped: Array, energies_HM: Array, mask_HM: Array) -> tuple[Array, Array]:
    """Where each head stops if p >= 1/2 stops it.

    Args:
      stopped: int32 `[..., heads]`, where it stopped at the target position before; 0 at first.
      energies_HM: `[..., heads, src_len]`.
      mask_HM: booleans that broadcast to them, True = may stop there.

    Returns:
      int32 `[..., heads]`, and booleans `[..., heads, src_len]` that are True there; none is True
      if there is nowhere to stop.

    Source: Raffel et al. 2017, section 2.2, algorithm 1.
    """
    number_M = jnp.arange(energies_HM.shape[-1])
    allowed = mask_HM & (number_M >= stopped[..., None])
    stops = allowed & ((energies_HM >= 0) | last_of_sentence(mask_HM))
    first = jnp.argmax(stops, -1).astype(stopped.dtype)
    stopped = jnp.where(stops.any(-1), first, stopped)
    return stopped, stops & (number_M == stopped[..., None])


def monotonic_step(params: Params, stopped: Array, now: Scored) -> tuple[Array, Array]:
    """All weight where the head stops: the new stops, and weights `[..., heads, src_len]`.

    Args:
      params: "stop_bias" `[heads]`, which is added to the scores.
      stopped: see `next_stop`.
      now: the scores.
    """
    energies = now.scores_HM + params["stop_bias"][:, None]
    stopped, here = next_stop(stopped, energies, now.mask_HM)
    return stopped, here.astype(energies.dtype)


def expected_monotonic(params: Params, scored: Scored, begins_BL: Array, noise: Array) -> Array:
    """The expectation of the weights of `monotonic_step`, with noise added to the scores."""
    energies_BHLM = scored.scores_HM + params["stop_bias"][:, None, None] + noise
    return expected_stops(energies_BHLM, scored.mask_HM, begins_BL)


_STOP_BIAS = Parameter(nn.initializers.constant(FIRST_BIAS), ("heads",))


# The score of the head is the energy, with a bias of its own.
HARD = Stateful(
    parameters={"stop_bias": _STOP_BIAS},
    prepare=lambda params, source: (),
    step=monotonic_step,
    state=SearchArray(("heads",), jnp.int32),
    features=None,
    expected=expected_monotonic,
)


# Softmax over what is before the stop ------------------------------------------------------------

Soften = Callable[[Array, Array, Array], Array]  # (stops, scores, mask) -> weights


def over_chunks(stops_BHLM: Array, scores_BHLM: Array, mask: Array, width: int) -> Array:
    """The expectation of a softmax over the `width` positions up to the stop, that one included.

    b_ij = sum over k = j .. j + width - 1 of a_ik exp(u_j) / (sum over l = k - width + 1 .. k of
    exp(u_l)). Each exponential is taken relative to the largest score of its chunk.

    Args:
      stops_BHLM: a, the result of `expected_stops`.
      scores_BHLM: u, the same shape.
      mask: booleans that broadcast to it, True = may attend.
      width: at least 1.

    Source: Chiu and Raffel 2018, section 2.3, equation 13.
    """
    width = min(width, scores_BHLM.shape[-1])
    lowest = float(jnp.finfo(scores_BHLM.dtype).min)
    before_BHLM = [  # the scores of the position itself, of the one before it, ...
        _moved(jnp.where(mask, scores_BHLM, lowest), back, lowest) for back in range(width)
    ]
    highest_BHLM = jax.lax.stop_gradient(functools.reduce(jnp.maximum, before_BHLM))
    parts_BHLM = [jnp.exp(scores - highest_BHLM) for scores in before_BHLM]
    share_BHLM = stops_BHLM / sum(parts_BHLM)
    weights = (_moved(share_BHLM * part, -back, 0.0) for back, part in enumerate(parts_BHLM))
    return functools.reduce(jnp.add, weights)


def _moved(x: Array, by: int, filler: float) -> Array:
    """x with its last axis shifted to the right by `by` positions; below 0: to the left."""
    if by < 0:
        return jnp.pad(x[..., -by:], ((0, 0),) * 3 + ((0, -by),), constant_values=filler)
    kept = x[..., : x.shape[-1] - by]
    return jnp.pad(kept, ((0, 0),) * 3 + ((by, 0),), constant_values=filler)


def over_all_before(stops_BHLM: Array, scores_BHLM: Array, mask: Array) -> Array:
    """The expectation of a softmax over all positions up to the stop.

    b_ij = sum over k >= j of a_ik exp(u_j) / (sum over l <= k of exp(u_l)). If w_j is the share of
    exp(u_j) in the sum over l <= j, then b_ij = w_j t_j with t_j = a_ij + (1 - w_{j+1}) t_{j+1}.

    Args:
      stops_BHLM: a, the result of `expected_stops`.
      scores_BHLM: u, the same shape.
      mask: booleans that broadcast to it, True = may attend.

    Source: Arivazhagan et al. 2019, section 3.2, equation 8.
    """
    lowest = float(jnp.finfo(scores_BHLM.dtype).min)
    scores_BHLM = jnp.where(mask, scores_BHLM, lowest)
    sums_BHLM = _moved(jax.lax.cumlogsumexp(scores_BHLM, axis=3), 1, lowest)  # over l < j
    share_BHLM = jax.nn.sigmoid(scores_BHLM - sums_BHLM)
    others_BHLM = _moved(jax.nn.sigmoid(sums_BHLM - scores_BHLM), -1, 0.0)
    totals_BHLM = affine_scan(others_BHLM, stops_BHLM, reverse=True)
    return jnp.where(mask, share_BHLM * totals_BHLM, 0.0)


def softened_step(
    params: Params, stopped: Array, now: Scored, width: int | None
) -> tuple[Array, Array]:
    """A softmax of the scores over the `width` positions up to the stop; None: over all of them.

    Args:
      params: "stop_bias" `[heads]`.
      stopped: see `next_stop`.
      now: scores, mask and queries; the features are those of `stop_keys`.

    Returns:
      The new stops, and weights `[..., heads, src_len]`.

    Source: Chiu and Raffel 2018, section 2.2, algorithm 1.
    """
    factor = now.query_HK.shape[-1] ** -0.5
    query_HK = now.query_HK.astype(now.features.dtype)
    energies_HM = factor * jnp.einsum("...HK,...HMK->...HM", query_HK, now.features)
    energies_HM += params["stop_bias"][:, None]
    stopped, here = next_stop(stopped, energies_HM, now.mask_HM)
    behind = stopped[..., None] - jnp.arange(here.shape[-1])
    near = now.mask_HM & (behind >= 0) & (behind < (width or here.shape[-1]))
    weights_HM = jnp.where(near, softmax(now.scores_HM, near), 0.0)
    return stopped, jnp.where(here.any(-1, keepdims=True), weights_HM, 0.0)


def stop_keys(params: Params, source: Source) -> Array:
    """What queries are compared with to decide where to stop: `[batch, heads, src_len, d_k]`."""
    return jnp.einsum("BME,EHK->BHMK", source.encoded_BME, params["stop_key"])


def _softened(soften: Soften, width: int | None) -> Stateful:
    """The energies have keys of their own; the softmax takes the scores of the head."""

    def expected(params: Params, scored: Scored, begins_BL: Array, noise_BHLM: Array) -> Array:
        query_BLHK = scored.query_HK.astype(scored.features.dtype)
        factor = query_BLHK.shape[-1] ** -0.5
        energies_BHLM = factor * jnp.einsum("BLHK,BHMK->BHLM", query_BLHK, scored.features)
        energies_BHLM += params["stop_bias"][:, None, None] + noise_BHLM
        stops_BHLM = expected_stops(energies_BHLM, scored.mask_HM, begins_BL)
        return jax.checkpoint(soften)(stops_BHLM, scored.scores_HM, scored.mask_HM)

    xavier = nn.initializers.xavier_uniform(in_axis=0, out_axis=(1, 2))
    stop_key = Parameter(xavier, ("encoded", "heads", "d_k"))
    return Stateful(
        parameters={"stop_bias": _STOP_BIAS, "stop_key": stop_key},
        prepare=stop_keys,
        step=functools.partial(softened_step, width=width),
        state=SearchArray(("heads",), jnp.int32),
        features=SearchArray(("heads", "source", "d_k")),
        expected=expected,
    )


MONOTONIC: dict[str, Callable[[ModelConfig], Stateful]] = {
    "monotonic": lambda config: HARD,
    "chunkwise": lambda config: _softened(
        functools.partial(over_chunks, width=config.chunk_width), config.chunk_width
    ),
    "lookback": lambda config: _softened(over_all_before, None),
}
