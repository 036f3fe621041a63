"""EXPLANATIONS: how much each source subword and each earlier target subword has to do with a word.

Attention weights say what a head reads, not what reaches the output: values differ in length, the
residual passes each position on beside attention, and layers mix positions before the decoder reads
them. The methods here give one matrix for a whole model. Most of them describe every sub-layer of
attention by a matrix over the positions of the source, then of the target (`Mixing`), and multiply.

A new method is a function here and its line in `EXPLANATIONS`.

Dimension key
  B batch   L target length   M source length   T positions of both, M + L   H heads   D d_model
  Q positions of a sub-layer's queries   K of its keys   J summands
"""

import functools
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.errors import ConfigError
from transformer_jax.model.attention.traces import Pairs, Traced, problems, terms, traced
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params, is_prefix, visible_place

SMALLEST = 1e-9  # a sum of contributions that is divided by
WIDTH = 10**6  # of an edge of weight 1, since flows are counted in whole numbers


def contributions(terms_BQKD: Array, kept_BQD: Array, y_BQD: Array) -> tuple[Array, Array]:
    """What share of the output comes from each key and from the residual; they sum to 1.

    c_j = max(0, |y|_1 - |y - T_j|_1) / sum. In self-attention the residual's summand belongs to the
    query's own key. If no summand is nearer to y than 0 is, which the paper leaves open, c_j is
    |T_j|_1 / sum.

    Source: Ferrando et al. 2022, "Measuring the Mixing of Contextual Information in the
    Transformer" (ALTI), section 3.
    """

    parts_BQJD = jnp.concatenate([terms_BQKD, kept_BQD[:, :, None]], axis=2)
    whole_BQ1D = y_BQD[:, :, None]
    far_BQJ = jnp.abs(whole_BQ1D - parts_BQJD).sum(-1)
    near_BQJ = jnp.maximum(0, jnp.abs(whole_BQ1D).sum(-1) - far_BQJ)
    has_near_BQ1 = near_BQJ.sum(-1, keepdims=True) > SMALLEST
    near_BQJ = jnp.where(has_near_BQ1, near_BQJ, jnp.abs(parts_BQJD).sum(-1))
    near_BQJ /= jnp.maximum(near_BQJ.sum(-1, keepdims=True), SMALLEST)
    return near_BQJ[..., :-1], near_BQJ[..., -1]


def own_terms(one: Traced, terms_BQKD: Array, kept_BQD: Array) -> tuple[Array, Array]:
    """The summands, with the residual's added to that of the query's own key in self-attention."""
    if one.mixing.queries != one.mixing.keys:
        return terms_BQKD, kept_BQD
    own = jnp.arange(terms_BQKD.shape[1])
    return terms_BQKD.at[:, own, own].add(kept_BQD), jnp.zeros_like(kept_BQD)


# Methods ------------------------------------------------------------------------------------------


class Explanation(NamedTuple):
    """An entry of the registry."""

    # (model, params, pair) -> [batch, T, T]; rows of target positions
    compute: Callable[[EncoderDecoder, Params, Pairs], Array]
    unit: str  # of what it finds
    of_target: bool = True  # whether it finds what the translation so far has to do with it


# Compiled as a whole, for each model.
compiled = functools.partial(jax.jit, static_argnums=0)


def half(one: Traced, length: int) -> Array:
    """(A + I) / 2, where A is the mean of the heads' weights."""
    kept_BQ = jnp.full(one.x_BQD.shape[:2], 0.5)
    return one.mixing.joint(one.weights_BHQK.mean(1) / 2, kept_BQ, length)


@compiled
def halves(model: EncoderDecoder, params: Params, pair: Pairs) -> list[Array]:
    """`half` of every sub-layer."""
    return [half(one, pair.length) for one in traced(model, params, pair)]


def _multiplied(steps: Iterable[Array]) -> Array:
    return reduce(lambda product, step: step @ product, steps)


@compiled
def rollout(model: EncoderDecoder, params: Params, pair: Pairs) -> Array:
    """The product of `half` over the sub-layers (Abnar and Zuidema 2020, section 3)."""
    return _multiplied(halves(model, params, pair))


def flow(model: EncoderDecoder, params: Params, pair: Pairs) -> Array:
    """The largest flow from each target position to each input through edges as wide as `half`.

    It takes as many searches as there are pairs of positions.

    Source: Abnar and Zuidema 2020, section 3.
    """
    import scipy.sparse.csgraph  # it adds a filter of warnings, which an import must not do

    steps = np.stack(jax.device_get(halves(model, params, pair)))  # [sub-layers, B, T, T]
    found = np.zeros(steps.shape[1:])
    first, nodes = pair.source.ids.shape[1], (len(steps) + 1) * pair.length
    for row, own in enumerate(steps.swapaxes(0, 1)):
        capacities = scipy.sparse.lil_matrix((nodes, nodes), dtype=np.int32)
        for n, step in enumerate(own):  # from the positions after a sub-layer to those before it
            before, after = n * pair.length, (n + 1) * pair.length
            edges = slice(after, after + pair.length), slice(before, before + pair.length)
            capacities[edges] = np.round(step * WIDTH)
        graph = scipy.sparse.csr_matrix(capacities)
        for query in np.flatnonzero(pair.target.segments[row]) + first:
            for key in range(pair.length):
                ends = nodes - pair.length + query, key
                found[row, query, key] = scipy.sparse.csgraph.maximum_flow(graph, *ends).flow_value
    return jnp.asarray(found / WIDTH)


@compiled
def alti(model: EncoderDecoder, params: Params, pair: Pairs) -> Array:
    """The product of the sub-layers' `contributions`; rows sum to 1.

    Source: Ferrando et al. 2022, "Towards Opening the Black Box of Neural Machine Translation"
    (ALTI+), section 3.
    """

    def step(one: Traced) -> Array:
        parts = own_terms(one, *terms(model.config, params, one))
        return one.mixing.joint(*contributions(*parts, one.y_BQD), pair.length)

    return _multiplied(map(step, traced(model, params, pair)))


@compiled
def norms(model: EncoderDecoder, params: Params, pair: Pairs) -> Array:
    """The lengths of the last layer's `terms`, each row of a sub-layer divided by its sum.

    Source: Kobayashi et al. 2020, section 3; the norm after the sum is treated as in Kobayashi et
    al. 2021, whose residual is left out.
    """
    found = traced(model, params, pair)
    last = [one for one in found if one.mixing.names[0] == found[-1].mixing.names[0]]
    joint_BTT = jnp.zeros((len(pair.labels_BL), pair.length, pair.length))
    for one in last:
        terms_BQKD, _ = terms(model.config, params, one)
        lengths_BQK = jnp.linalg.norm(terms_BQKD, axis=-1)
        lengths_BQK /= jnp.maximum(lengths_BQK.sum(-1, keepdims=True), SMALLEST)
        joint_BTT = joint_BTT.at[:, one.mixing.queries, one.mixing.keys].add(lengths_BQK)
    return joint_BTT


def log_probs(model: EncoderDecoder, variables: Any, pair: Pairs) -> Array:
    """The log probability of each label `[batch, tgt_len]`, with attention that gives weights."""
    logits_BLV, _ = model.apply(variables, pair.source, pair.target, mutable=["intermediates"])
    found_BLV = jax.nn.log_softmax(logits_BLV[..., : model.sizes.target])
    return jnp.take_along_axis(found_BLV, pair.labels_BL[..., None], axis=-1)[..., 0]


@compiled
def gradient(model: EncoderDecoder, params: Params, pair: Pairs) -> Array:
    """The product of I + A', with A' the mean of max(0, dA * A) over heads.

    dA is the gradient of the label's log probability with respect to the weights A, so each target
    position has a product of its own.

    Source: Chefer et al. 2021, section 3, equations 5 and 6, here for all uses of attention alike.
    """
    found = traced(model, params, pair)

    def of_shifts(shifts: list[Array]) -> Array:
        moved: dict[str, dict[str, Any]] = {}
        for one, shift in zip(found, shifts, strict=True):
            layer, name = one.mixing.names
            moved.setdefault(layer, {})[name] = {"weights": shift}
        variables = {"params": params, "perturbations": moved}
        return log_probs(model, variables, pair).sum(0)

    _, slopes_of = jax.vjp(of_shifts, [jnp.zeros_like(one.weights_BHQK) for one in found])
    first, length = pair.source.ids.shape[1], pair.labels_BL.shape[1]

    def row(number: Array) -> Array:
        steps = []
        [slopes] = slopes_of(jax.nn.one_hot(number, length))
        for one, slope_BHQK in zip(found, slopes, strict=True):
            own_BQK = jnp.maximum(0, slope_BHQK * one.weights_BHQK).mean(1)
            steps.append(one.mixing.joint(own_BQK, jnp.ones(own_BQK.shape[:2]), pair.length))
        return _multiplied(steps)[:, first + number]

    rows_LBT = jax.lax.map(row, jnp.arange(length))  # one after the other: it takes memory
    return jnp.pad(rows_LBT.swapaxes(0, 1), ((0, 0), (first, 0), (0, 0)))


@compiled
def leave_one_out(model: EncoderDecoder, params: Params, pair: Pairs) -> Array:
    """How much less likely each label is, in nats, if a source subword is hidden; at least 0.

    Nothing of the target is hidden. The subword's place stays empty, as padding is; of the only
    subword that can be seen (model.source_eos=False) it is 0, since nothing would be left.

    Source: Zeiler and Fergus 2014; for translation, Li, Monroe and Jurafsky 2016.
    """
    first = pair.source.ids.shape[1]
    whole_BL = log_probs(model, {"params": params}, pair)

    def without(position: Array) -> Array:
        hidden_BM = pair.source.segments * (jnp.arange(first) != position)
        own = pair._replace(source=pair.source._replace(segments=hidden_BM))
        if is_prefix(model.config):  # its target positions count on from those that are seen
            is_real_B = pair.source.segments[:, position] != 0
            behind_BL = pair.target.positions + is_real_B[:, None]
            own = own._replace(target=pair.target._replace(positions=behind_BL))
        is_left_B1 = visible_place(model.config, own.source).segments.any(1, keepdims=True)
        return jnp.where(is_left_B1, log_probs(model, {"params": params}, own), whole_BL)

    losses_MBL = jnp.maximum(0, whole_BL - jax.lax.map(without, jnp.arange(first)))
    pads = (0, 0), (first, 0), (0, pair.labels_BL.shape[1])
    return jnp.pad(losses_MBL.transpose(1, 2, 0), pads)


EXPLANATIONS = {
    "rollout": Explanation(rollout, "share"),
    "flow": Explanation(flow, "flow"),
    "norms": Explanation(norms, "share of the last layer"),
    "alti": Explanation(alti, "share"),
    "gradient": Explanation(gradient, "gradient times weight"),
    "leave_one_out": Explanation(leave_one_out, "nats lost without it", of_target=False),
}


def check_method(name: str) -> None:
    """Raises ConfigError if there is no such method."""
    if name not in EXPLANATIONS:
        raise ConfigError(f"explain={name!r} is not one of {', '.join(EXPLANATIONS)}.")


def explained(model: EncoderDecoder, params: Params, pair: Pairs, method: str) -> dict[str, Array]:
    """What a method finds, in the form of `attention_maps`: one layer of one head.

    Args:
      model: a model without `problems`.
      params: its parameters.
      pair: sentence pairs, one a row.
      method: a name in EXPLANATIONS.

    Returns:
      float32: "cross" `[batch, 1, 1, tgt_len, src_len]` and "decoder" `[batch, 1, 1, tgt_len,
      tgt_len]`, with rows as in `attention_maps`. A method that hides nothing of the target has no
      "decoder".

    Raises:
      ConfigError: there is no such method, or the model has parts that no method knows.
    """
    check_method(method)
    if why := ", ".join(problems(model.config)):
        raise ConfigError(f"explain={method} is for attention alone, and this run has {why}.")
    joint_BTT = EXPLANATIONS[method].compute(model, params, pair)
    first = pair.source.ids.shape[1]
    rows_B11LT = joint_BTT[:, None, None, first:]
    found = {"cross": rows_B11LT[..., :first]}
    return found | ({"decoder": rows_B11LT[..., first:]} if EXPLANATIONS[method].of_target else {})
