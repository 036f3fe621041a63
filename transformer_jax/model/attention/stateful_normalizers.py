"""Normalizers with a state: in encoder-decoder attention, weights depend on earlier positions.

memories.py and monotonic.py have the normalizers. Training and search call the same
`step`, unless a normalizer chooses single source positions: then training computes an expectation.

Dimension key
  B batch   L target length   M source length   H heads   K d_k per head   D d_model
  E features of the encoder's output
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, HEADS, Parameter, unboxed, zeros
from transformer_jax.model.interfaces import Params


class Source(NamedTuple):
    """What a normalizer may prepare features from."""

    encoded_BME: Array  # the encoder's output
    words_BMD: Array | None  # the embedded source, without positions; None: not `reads_words`


class Scored(NamedTuple):
    """The input of a normalizer with a state for one query; leading axes are batch and beams.

    For all positions at once, see `weights_of_all`.
    """

    scores_HM: Array  # float32 [..., heads, src_len]
    mask_HM: Array  # booleans that broadcast to them, True = may attend
    query_HK: Array  # [..., heads, d_k]
    features: Any  # the result of `prepare` for the source sentence
    inputs_D: Array | None = None  # [..., d_model], the newest target subword, embedded


class SearchArray(NamedTuple):
    """The shape of an array that search keeps for each hypothesis or for each source sentence."""

    sizes: tuple[str | int, ...]  # its axes after batch and beams; by name: heads, source, d_k
    dtype: Any = jnp.float32

    def empty(self, sizes: Mapping[str, int], *first: int) -> Any:
        """Zeros `[*first, ...]` in a box; `first` is the batch, or the batch and the beams."""
        shape = tuple(size if isinstance(size, int) else sizes[size] for size in self.sizes)
        names = tuple(HEADS if size == "heads" else None for size in self.sizes)
        return zeros((*first, *shape), (BATCH, *(None,) * (len(first) - 1), *names), self.dtype)


HEADS_SOURCE = ("heads", "source")


class Stateful(NamedTuple):
    """A normalizer whose weights depend on those of earlier target positions."""

    parameters: Mapping[str, Parameter]
    # (params, source) -> features, leaves [B, ...]; once for each source sentence.
    prepare: Callable[[Params, Source], Any]
    # (params, state, scored) -> (state, weights); the state is 0 at first.
    step: Callable[[Params, Array, Scored], tuple[Array, Array]]
    state: SearchArray = SearchArray(HEADS_SOURCE)
    features: SearchArray | None = SearchArray(HEADS_SOURCE)  # None: there are none
    reads_words: bool = False  # whether it needs the embedded source
    # (params, scored of all positions, where sentences begin, noise of the scores) -> weights, in
    # training; None: as everywhere else, step after step.
    expected: Callable[[Params, Scored, Array, Array], Array] | None = None


def weights_of_all(normalizer: Stateful, params: Params, scored: Scored, begins_BL: Array) -> Array:
    """Weights of all target positions, `step` after `step`: `[batch, heads, tgt_len, src_len]`.

    Args:
      normalizer: the normalizer.
      params: its parameters.
      scored: scores `[B, H, L, M]`, mask `[B, 1, L, M]`, queries `[B, L, H, K]` and inputs
        `[B, L, D]` of all positions; the features of the source.
      begins_BL: True at the first position of each sentence, where the state starts from zero.
    """

    def step(state: Array, now: tuple[Any, ...]) -> tuple[Array, Array]:
        scores_BHM, mask_B1M, query_BHK, inputs_BD, begins_B = now
        state = jnp.where(begins_B.reshape(-1, *(1,) * (state.ndim - 1)), 0, state)
        scored_now = Scored(scores_BHM, mask_B1M, query_BHK, scored.features, inputs_BD)
        return normalizer.step(params, state, scored_now)

    along = (
        jnp.moveaxis(scored.scores_HM, 2, 0),
        jnp.moveaxis(scored.mask_HM, 2, 0),
        jnp.moveaxis(scored.query_HK, 1, 0),
        None if scored.inputs_D is None else jnp.moveaxis(scored.inputs_D, 1, 0),
        begins_BL.T,
    )
    batch, heads, _, source = scored.scores_HM.shape
    first: Any = unboxed(normalizer.state.empty({"heads": heads, "source": source}, batch))
    if first.dtype == jnp.float32:
        first = first.astype(scored.scores_HM.dtype)
    _, weights_LBHM = jax.lax.scan(step, first, along)
    return jnp.moveaxis(weights_LBHM, 0, 2)
