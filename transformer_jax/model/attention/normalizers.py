"""Normalizers: scores to attention weights.

A new normalizer is a function here and its line in `NORMALIZERS`, which names its parameters if it
has any. Those of encoder-decoder attention alone are in model/attention/cross_normalizers.py.

Dimension key
  B batch   L query length   M key length   H, I heads   P pairs of heads   V d_v per head
  F features of a pair
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import Params
from transformer_jax.model.layers.dropout import NoiseSource
from transformer_jax.model.layers.norms import rms_norm

Normalize = Callable[[Array, Array], Array]  # (scores, mask) -> weights

# The first lambda of differential attention, in every layer. The paper's grows from 0.2 towards 0.8
# with the layer's number; a constant 0.8 is hardly worse (its table 6).
FIRST_LAMBDA = 0.8
PAIR_EPSILON = 1e-5  # as in the authors' code


def masked(scores: Array, mask: Array) -> Array:
    """The scores, and where the mask is False the lowest number that their type has.

    It is not -inf, with which the softmax of a row without any True would be NaN.
    """
    return jnp.where(mask, scores, jnp.finfo(scores.dtype).min)


def softmax(scores_BHLM: Array, mask: Array, kept: str | None = None) -> Array:
    """Weights `[batch, heads, query_len, key_len]` over the keys where the mask is True.

    Each query's weights sum to 1. A query that may attend to nothing gets equal weights, not NaN.

    Args:
      scores_BHLM: scores `[batch, heads, query_len, key_len]`, float32.
      mask: booleans that broadcast to that shape, True = may attend.
      kept: type of the weights that are kept for the backward pass; None: that of the scores.
    """
    if kept and jnp.finfo(kept).bits < jnp.finfo(scores_BHLM.dtype).bits:
        return narrow_softmax(scores_BHLM, mask, kept)
    return jax.nn.softmax(masked(scores_BHLM, mask))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def narrow_softmax(scores_BHLM: Array, mask: Array, kept: str) -> Array:
    """The softmax, whose backward pass needs only weights of a narrower type, such as bfloat16.

    The product with the values keeps such weights anyway. Otherwise the float32 scores are kept
    beside them: of a layer of the base model, 208 MiB for 104 rows of 256 positions.
    """
    return softmax(scores_BHLM, mask)


def _narrow_softmax_forward(
    scores_BHLM: Array, mask: Array, kept: str
) -> tuple[Array, tuple[Array, Array]]:
    weights_BHLM = softmax(scores_BHLM, mask)
    # XLA may drop a pair of casts; without the barrier it keeps the scores after all.
    return weights_BHLM, (jax.lax.optimization_barrier(weights_BHLM.astype(kept)), mask)


def _narrow_softmax_backward(
    kept: str, residuals: tuple[Array, Array], gradient_BHLM: Array
) -> tuple[Array, None]:
    weights_BHLM, mask = residuals
    weights_BHLM = weights_BHLM.astype(gradient_BHLM.dtype)
    mean_BHL1 = (weights_BHLM * gradient_BHLM).sum(-1, keepdims=True)
    return jnp.where(mask, weights_BHLM * (gradient_BHLM - mean_BHL1), 0.0), None


narrow_softmax.defvjp(_narrow_softmax_forward, _narrow_softmax_backward)


def sparsemax(scores_BHLM: Array, mask: Array) -> Array:
    """The nearest weights to the scores, many of them exactly 0: max(score - tau, 0).

    tau makes each query's weights sum to 1. A query that may attend to nothing gets equal weights.

    Args:
      scores_BHLM, mask: as in `softmax`.

    Source: Martins and Astudillo 2016, equation 2 and algorithm 1.
    """
    allowed = masked(scores_BHLM, mask)
    highest_BHL1 = jax.lax.stop_gradient(allowed.max(-1, keepdims=True))
    # tau is at least the highest score - 1, so a score 2 below it has no weight.
    scores_BHLM = jnp.where(mask, scores_BHLM - highest_BHL1, -2.0)
    scores_BHLM = jnp.where(jnp.any(mask, -1, keepdims=True), scores_BHLM, 0.0)
    sorted_BHLM = -jnp.sort(-jax.lax.stop_gradient(scores_BHLM), axis=-1)
    sums_BHLM = jnp.cumsum(sorted_BHLM, -1)
    number_M = jnp.arange(1, scores_BHLM.shape[-1] + 1)
    count_BHL1 = (1 + number_M * sorted_BHLM > sums_BHLM).sum(-1, keepdims=True)
    sum_BHL1 = jnp.take_along_axis(sums_BHLM, count_BHL1 - 1, -1)
    # Not a comparison with the lowest score of the support, which XLA may round differently here.
    support = scores_BHLM > (sum_BHL1 - 1) / count_BHL1
    inside_BHLM = jnp.where(support, scores_BHLM, 0.0)
    tau_BHL1 = (inside_BHLM.sum(-1, keepdims=True) - 1) / support.sum(-1, keepdims=True)
    # Rounding can put tau a little above a score of the support, and no weight is below 0.
    return jnp.where(support, jnp.maximum(scores_BHLM - tau_BHL1, 0.0), 0.0)


def top_k(scores_BHLM: Array, mask: Array, size: int) -> Array:
    """The softmax over each query's keys with the `size` highest scores, and those equal to them.

    Args:
      scores_BHLM, mask: as in `softmax`.
      size: at least 1.

    Source: Zhao et al. 2019, "Explicit Sparse Transformer".
    """
    # XLA would compute the scores twice, round them differently, and miss equal ones.
    scores_BHLM = jax.lax.optimization_barrier(scores_BHLM)
    allowed = masked(scores_BHLM, mask)
    highest = jax.lax.top_k(jax.lax.stop_gradient(allowed), min(size, scores_BHLM.shape[-1]))[0]
    return softmax(scores_BHLM, mask & (allowed >= highest[..., -1:]))


def with_sink(params: Params, scores_BHLM: Array, mask: Array, kept: str | None = None) -> Array:
    """exp(score) / (exp(b) + sum of exp(scores)): a head may attend to nothing.

    It is the softmax with one more key, whose score is b and whose value is 0. So a query's weights
    sum to less than 1, and to 0 if it may attend to no key.

    Args:
      params: "sink" b, float32 `[heads]`; 0, its initial value, is Miller's.
      scores_BHLM, mask: as in `softmax`.
      kept: see `softmax`.

    Source: Miller 2023, "Attention Is Off By One"; with a learned b, OpenAI 2025, "gpt-oss-120b &
    gpt-oss-20b Model Card", section 2.2.
    """
    allowed = masked(scores_BHLM, mask)
    total_BHL1 = jax.nn.logsumexp(allowed, axis=-1, keepdims=True)
    share_BHL1 = jax.nn.sigmoid(total_BHL1 - params["sink"][:, None, None])
    return softmax(scores_BHLM, mask, kept) * share_BHL1


def talking_heads(
    params: Params, scores_BHLM: Array, mask: Array, kept: str | None = None
) -> Array:
    """W^T softmax(S^T scores): heads mix their scores, and after the softmax their weights.

    With S = W = I, the initial values, it is the softmax. A weight may be negative, and a query's
    weights need not sum to 1.

    Args:
      params: "mix_scores" S and "mix_weights" W, float32 `[heads, heads]`.
      scores_BHLM, mask: as in `softmax`.
      kept: see `softmax`; the gradients of S and W also need float32 scores and weights.

    Source: Shazeer et al. 2020, "Talking-Heads Attention", section 4.
    """
    mixed_BILM = jnp.einsum("BHLM,HI->BILM", scores_BHLM, params["mix_scores"])
    weights_BILM = softmax(mixed_BILM, mask, kept)
    return jnp.einsum("BILM,IH->BHLM", weights_BILM, params["mix_weights"])


def differential(params: Params, scores_BHLM: Array, mask: Array, kept: str | None = None) -> Array:
    """softmax(S_2p) - lambda_h softmax(S_2p+1) for both heads h of pair p: h = 2p and h = 2p + 1.

    A pair is one head of the paper, whose values are twice as wide as its queries: head 2p has the
    first half of them, head 2p + 1 the second half. So num_heads is twice the paper's number of
    heads, and the model has as many parameters as with a softmax. A weight may be negative, and a
    query's weights sum to 1 - lambda.

    Args:
      params: "lambda", float32 `[heads]`. The paper has one for all heads of a layer, made of four
        vectors (its equation 2).
      scores_BHLM: scores `[batch, heads, query_len, key_len]`, float32; an even number of heads.
      mask: booleans that broadcast to that shape, True = may attend.
      kept: see `softmax`.

    Source: Ye et al. 2024, "Differential Transformer", equation 1.
    """
    weights_BHLM = softmax(scores_BHLM, mask, kept)
    first_BPLM, second_BPLM = weights_BHLM[:, ::2], weights_BHLM[:, 1::2]
    first_BHLM, second_BHLM = (jnp.repeat(x, 2, axis=1) for x in (first_BPLM, second_BPLM))
    return first_BHLM - params["lambda"][:, None, None] * second_BHLM


def normed_pairs(params: Params, heads_BLHV: Array) -> Array:
    """(1 - 0.8) RMSNorm of each pair of heads: what differential attention does to its output.

    Without it the paper's model is worse than a Transformer (its table 6).

    Args:
      params: "gain", float32 `[heads, d_v]`; the paper's is the same for all pairs.
      heads_BLHV: the heads' outputs `[batch, length, heads, d_v]`.

    Returns:
      The same shape and type.

    Source: Ye et al. 2024, equation 3.
    """
    pairs_BLPF = heads_BLHV.reshape(*heads_BLHV.shape[:2], -1, 2 * heads_BLHV.shape[-1])
    normed_BLPF = rms_norm(pairs_BLPF, PAIR_EPSILON)
    normed_BLHV = normed_BLPF.reshape(heads_BLHV.shape) * params["gain"]
    return ((1 - FIRST_LAMBDA) * normed_BLHV).astype(heads_BLHV.dtype)


def unchanged(params: Params, heads_BLHV: Array) -> Array:
    """The heads' outputs."""
    return heads_BLHV


def _identity(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jnp.eye(shape[-1], dtype=dtype)


class Normalizer(NamedTuple):
    """An entry of the registry."""

    # (config, params, noise source or None outside training) -> ((scores, mask) -> weights).
    of: Callable[[ModelConfig, Params, NoiseSource | None], Normalize]
    parameters: Mapping[str, Parameter] = MappingProxyType({})
    sums_to_1: bool = True  # whether the weights of a query do; if not, they are not probabilities
    signed: bool = False  # whether a weight may be negative
    # (params, heads' outputs) -> what is joined.
    of_heads: Callable[[Params, Array], Array] = unchanged


# The backward pass of the softmax keeps weights in the type of the activations.
NORMALIZERS: dict[str, Normalizer] = {
    "softmax": Normalizer(
        lambda config, params, noise: functools.partial(softmax, kept=config.dtype)
    ),
    "sparsemax": Normalizer(lambda config, params, noise: sparsemax),
    "top_k": Normalizer(
        lambda config, params, noise: functools.partial(top_k, size=config.attended_keys)
    ),
    "sink": Normalizer(
        lambda config, params, noise: functools.partial(with_sink, params, kept=config.dtype),
        parameters={"sink": Parameter(nn.initializers.zeros, ("heads",))},
        sums_to_1=False,
    ),
    "talking_heads": Normalizer(
        lambda config, params, noise: functools.partial(talking_heads, params, kept=config.dtype),
        parameters={
            "mix_scores": Parameter(_identity, ("heads", "heads")),
            "mix_weights": Parameter(_identity, ("heads", "heads")),
        },
        sums_to_1=False,
        signed=True,
    ),
    "differential": Normalizer(
        lambda config, params, noise: functools.partial(differential, params, kept=config.dtype),
        parameters={
            "lambda": Parameter(nn.initializers.constant(FIRST_LAMBDA), ("heads",)),
            "gain": Parameter(nn.initializers.ones, ("heads", "d_v")),
        },
        sums_to_1=False,
        signed=True,
        of_heads=normed_pairs,
    ),
}


def problems(config: ModelConfig) -> Iterator[str]:
    """Why a normalizer cannot be combined with the model's other keys, with the fix."""
    if "differential" not in (config.normalizer, config.cross_normalizer):
        return
    if config.num_heads % 2:
        yield (
            f"the normalizer 'differential' subtracts in pairs of heads, and model.num_heads="
            f"{config.num_heads} is odd. Use {config.num_heads + 1}, or another normalizer."
        )
    if config.key_heads != config.num_heads:
        yield (
            "the normalizer 'differential' gives both heads of a pair the same weights, and with "
            f"model.num_key_heads={config.num_key_heads} they would have the same values. Use "
            "model.num_key_heads=None, or another normalizer."
        )
