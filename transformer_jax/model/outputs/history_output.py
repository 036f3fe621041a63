"""Copies from the translation so far.

Dimension key
  B batch   L target length   M positions pointed to   D d_model   K beams
  F features of a query, D of them   T positions of the cache   S keys of the cache, T K
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.attention.cached_attention import cached_places, own_past, replaced
from transformer_jax.model.attention.normalizers import masked
from transformer_jax.model.attention.patterns import causal, mask_of, same_sentence
from transformer_jax.model.axes import BATCH, Parameter, zeros
from transformer_jax.model.interfaces import (
    Cache,
    Given,
    Now,
    Params,
    Place,
    SearchSizes,
    StepGiven,
)
from transformer_jax.model.layers.matrix_products import product
from transformer_jax.model.outputs.mixed_loss import Mixture, Pointer
from transformer_jax.model.outputs.mixed_outputs import MixedOutput, wide


class History(MixedOutput):
    """A pointer sentinel (Merity et al. 2016): it can repeat subwords of the translation so far."""

    watches = False
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "history_query": Parameter(nn.initializers.xavier_uniform(), ("d_model", "hidden"), 1),
        "history_query_bias": Parameter(nn.initializers.zeros, ("d_model",)),
        "history_sentinel": Parameter(nn.initializers.zeros, ("d_model",)),
    }

    def mixture(self, params: Params, x_BLD: Array, seen: tuple[Array, Array, Array]) -> Mixture:
        """p(y) = a_s softmax(x E^T)_y + sum_{m: y_m = y} a_m, one softmax over past and sentinel.

        a = softmax([q . h_1, ..., q . h_l, q . s] / sqrt(D)) with q = tanh(W x + b), where h_m is
        the decoder's output when it has read y_m. The paper does not divide by sqrt(D).

        Args:
          params: "history_query" W, "history_query_bias" b and "history_sentinel" s.
          x_BLD: the decoder's output.
          seen: h `[batch, positions, d_model]`, the subwords y `[batch, positions]`, and where a
            position may point `[batch, length, positions]`.

        Source: Merity et al. 2016, equations 3 to 7.
        """
        (keys_BMD, ids_BM, mask_BLM), dtype = seen, self.config.dtype
        query_BLD = product("BLD,DF->BLF", x_BLD, params["history_query"], dtype)
        query_BLD = jnp.tanh(wide(query_BLD) + params["history_query_bias"])
        scores_BLM = jnp.einsum(
            "BLD,BMD->BLM",
            query_BLD.astype(dtype),
            keys_BMD.astype(dtype),
            preferred_element_type=query_BLD.dtype,
        )
        scores_BLM = masked(scores_BLM, mask_BLM)
        sentinel_BL1 = (query_BLD @ params["history_sentinel"])[..., None]
        both = jnp.concatenate([scores_BLM, sentinel_BL1], axis=-1)
        log_weights = jax.nn.log_softmax(both * self.config.d_model**-0.5)
        mass_BLM = jnp.where(mask_BLM, jnp.exp(log_weights[..., :-1]), 0.0)
        return Mixture(x_BLD[..., None, :], log_weights[..., -1:], Pointer(mass_BLM, ids_BM))

    def seen(self, x_BLD: Array, given: Given) -> tuple[Array, Array, Array]:
        """The decoder's output, what it has read, and each position's own past without BOS."""
        place = Place(given.target.segments, given.target.positions)
        return x_BLD, given.target.ids, _past(place, place)[:, 0]

    def with_cache(self, cache: Cache, sizes: SearchSizes) -> Cache:
        """The decoder's empty cache; outputs `[B, T, K, D]` and subwords `[B, T, K]`."""
        shape = (sizes.batch, sizes.length, sizes.beams)
        names = (BATCH, None, None)
        keys = zeros((*shape, self.config.d_model), (*names, None), self.config.dtype)
        return Cache((cache.written, (keys, zeros(shape, names, jnp.int32))), cache.carried)

    def own_cache(self, cache: Cache) -> tuple[Cache, Any]:
        """The decoder's part of a cache, and the output's."""
        written, own = cache.written
        return Cache(written, cache.carried), own

    def step(self, x_BKD: Array, given: StepGiven, now: Now, cache: Cache) -> tuple[Array, Cache]:
        """Log probabilities `[batch, beams, vocabulary]`, and the cache with this position."""
        keys_BTKD, ids_BTK = given.written
        here = (jnp.arange(x_BKD.shape[0]), now.position_B)
        keys_BTKD = replaced(keys_BTKD, here, x_BKD.astype(keys_BTKD.dtype))
        ids_BTK = replaced(ids_BTK, here, now.ids_BK)
        newest, cached = cached_places(now.position_B, ids_BTK.shape[1])
        mask_BKS = own_past(_past(newest, cached), now.ancestors_BKT)[:, 0]
        batch, *_, d_model = keys_BTKD.shape
        seen = keys_BTKD.reshape(batch, -1, d_model), ids_BTK.reshape(batch, -1), mask_BKS
        mixture = self.mixture(given.params, x_BKD, seen)
        cache = Cache((cache.written, (keys_BTKD, ids_BTK)), cache.carried)
        return self.step_log_probs(given.prepared_DV, mixture), cache


def _past(query: Place, key: Place) -> Array:
    """True at what a sentence has read, without BOS: `[batch, 1, query_len, key_len]`."""
    return mask_of((same_sentence, causal), query, key) & (key.positions != 0)[:, None, None]
