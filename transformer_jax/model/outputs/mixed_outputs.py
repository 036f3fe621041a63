"""Outputs that mix the softmax over the vocabulary with something else.

Each is one function from the decoder's output to a `Mixture`, which training and search share.
Search takes log probabilities as logits: its own log-softmax does not change them.

Dimension key
  B batch   L target length, in search beams   M positions pointed to, or source length
  D d_model   K beams   C components of a mixture   V vocabulary, padded
  E features of the encoder's output   F features of a query, D of them   T positions of the cache
  S keys of the cache, T K
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
    LossSums,
    Now,
    Params,
    Place,
    SearchSizes,
    StepGiven,
)
from transformer_jax.model.layers.matrix_products import product, sum_type
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.outputs.mixed_loss import (
    LEAST_MASS,
    Mixture,
    Pointer,
    log_probabilities,
    mixture_loss,
    safe_log,
)
from transformer_jax.model.outputs.softmax_output import Softmax, output_logits
from transformer_jax.text.batches import Batch, Packed


class MixedOutput(Softmax):
    """An output whose probabilities are those of a mixture.

    By default the mixture reads the watched weights, and what `remember` keeps of the source.
    """

    watches = True

    def mixture(self, params: Params, x_BLD: Array, seen: Any) -> Mixture:
        """The mixture of each position.

        Args:
          params: the output's own.
          x_BLD: the decoder's output.
          seen: the result of `seen` in training; in search, the same for one search step.
        """
        raise NotImplementedError

    def seen(self, x_BLD: Array, given: Given) -> Any:
        """What `mixture` reads, when all positions are computed together."""
        assert given.watched_BLM is not None
        return given.watched_BLM, self.remember(given.params, given.encoded_BME, given.source)

    def logits(self, x_BLD: Array, given: Given) -> Array:
        """Log probabilities `[batch, length, padded vocabulary]`."""
        mixture = self._mixture(x_BLD, given)
        logits_BLCV = output_logits(mixture.x_BLCD, given.table_VD, self.config.dtype)
        return log_probabilities(self.masked(logits_BLCV), mixture)

    def loss(self, x_BLD: Array, given: Given, batch: Batch, settings: LossSettings) -> LossSums:
        """The sums of the loss over the target's real positions."""
        mixture, target = self._mixture(x_BLD, given), batch.tgt
        real_BL = target.segments != 0
        return mixture_loss(mixture, given.table_VD, target.ids, real_BL, settings)[0]

    def _mixture(self, x_BLD: Array, given: Given) -> Mixture:
        mixture = self.mixture(given.params, x_BLD, self.seen(x_BLD, given))
        return mixture._replace(x_BLCD=self.widened(mixture.x_BLCD))

    def step(self, x_BKD: Array, given: StepGiven, now: Now, cache: Cache) -> tuple[Array, Cache]:
        """Log probabilities `[batch, beams, vocabulary]`, and the cache."""
        assert given.watched_BKM is not None
        mixture = self.mixture(given.params, x_BKD, (given.watched_BKM, given.memory))
        return self.step_log_probs(given.prepared_DV, mixture), cache

    def step_log_probs(self, prepared_DV: Array, mixture: Mixture) -> Array:
        """Log probabilities `[batch, beams, vocabulary]` of one search step."""
        return log_probabilities(self.step_logits(prepared_DV, mixture.x_BLCD), mixture)


def wide(x: Array) -> Array:
    """x in float32, or in float64 if x is float64."""
    return x.astype(sum_type(x.dtype))


class Copy(MixedOutput):
    """A pointer-generator (See et al. 2017): subwords of the source get the attention's weights."""

    parameters: ClassVar[Mapping[str, Parameter]] = {
        "copy_gate": Parameter(nn.initializers.normal(0.02), ("d_model",)),
        "copy_gate_bias": Parameter(nn.initializers.zeros, ()),
    }

    def mixture(self, params: Params, x_BLD: Array, seen: tuple[Array, Array]) -> Mixture:
        """p(y) = (1 - g) softmax(x E^T)_y + g sum_{m: y_m = y} a_m with g = sigmoid(w x + b).

        Args:
          params: "copy_gate" w `[d_model]` and "copy_gate_bias" b.
          x_BLD: the decoder's output.
          seen: the watched weights a `[batch, length, src_len]`, and the source's subwords.

        Source: See, Liu and Manning 2017, equations 8 and 9, where g is 1 - p_gen and reads the
        context vector and the decoder's input too; Gulcehre et al. 2016, section 4.
        """
        watched_BLM, ids_BM = seen
        gate_BL = wide(x_BLD) @ params["copy_gate"] + params["copy_gate_bias"]
        mass_BLM = jax.nn.sigmoid(gate_BL)[..., None] * watched_BLM
        log_weights_BLC = jax.nn.log_sigmoid(-gate_BL)[..., None]
        return Mixture(x_BLD[..., None, :], log_weights_BLC, Pointer(mass_BLM, ids_BM))

    def remember(self, params: Params, encoded_BME: Array, source: Packed) -> Array:
        """The source's subwords."""
        return source.ids

    def empty_memory(self, sizes: SearchSizes) -> Any:
        """The shape of `remember`, boxed with the names of its axes."""
        return zeros((sizes.batch, sizes.src_length), (BATCH, None), jnp.int32)


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


class Marginal(MixedOutput):
    """The exact marginal of hard attention: a softmax for each of the best source positions."""

    divides_by_sum = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "marginal_context": Parameter(nn.initializers.xavier_uniform(), ("encoded", "hidden"), 1)
    }

    def mixture(self, params: Params, x_BLD: Array, seen: tuple[Array, Array]) -> Mixture:
        """p(y) = sum_m a_m softmax((x + v_m) E^T)_y over the k largest a_m, divided by their sum.

        Args:
          params: the output's own.
          x_BLD: the decoder's output.
          seen: the watched weights a `[batch, length, src_len]`, and vectors v of the source
            `[batch, src_len, d_model]`.

        Source: Shankar, Garg and Sarawagi 2018, section 3, who do not divide by the sum.
        """
        watched_BLM, contexts_BMD = seen
        count = min(self.config.marginal_positions, watched_BLM.shape[-1])
        weights_BLC, positions_BLC = jax.lax.top_k(watched_BLM, count)
        weights_BLC = wide(weights_BLC)
        # Some normalizers give padding no weight at all; it gets equal weights, and never counts.
        some_BL1 = weights_BLC.sum(-1, keepdims=True) > LEAST_MASS
        weights_BLC = jnp.where(some_BL1, weights_BLC, 1.0)
        log_weights_BLC = safe_log(weights_BLC) - jnp.log(weights_BLC.sum(-1, keepdims=True))
        contexts_BLCD = jax.vmap(lambda contexts_MD, positions: contexts_MD[positions])(
            contexts_BMD, positions_BLC
        )
        return Mixture(x_BLD[..., None, :] + contexts_BLCD, log_weights_BLC, None)

    def remember(self, params: Params, encoded_BME: Array, source: Packed) -> Array:
        """v = W e, float32 `[batch, src_len, d_model]`, with e the encoder's output."""
        matrix_ED = params["marginal_context"]
        dtype = self.config.dtype
        return wide(product("BME,ED->BMD", encoded_BME, matrix_ED, dtype))

    def empty_memory(self, sizes: SearchSizes) -> Any:
        """The shapes of `remember`, boxed with the names of their axes."""
        return zeros((sizes.batch, sizes.src_length, self.config.d_model), (BATCH, None, None))
