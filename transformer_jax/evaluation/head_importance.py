"""How much each head of attention matters to a model, and a model without some heads.

The output of a head is multiplied by a gate before W^O, which is the same as its part of W^O times
the gate. So gates need nothing of the model: they are a change of its parameters.

Dimension key
  B rows, one pair each   H heads   V d_v per head   D d_model
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.evaluation.explanations import log_probs
from transformer_jax.model.attention.traces import Pairs, in_rows
from transformer_jax.model.axes import HEADS, KEY_HEADS
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params
from transformer_jax.model.parameters import axis_names

ROWS = 16  # pairs whose gradients are computed together
Heads = Mapping[str, Any]  # something for each head, by "decoder_0/cross_attention": [H]
OUT = "out"  # W^O, [H, V, D]


def attentions(model: EncoderDecoder) -> list[str]:
    """Names of the model's attentions with heads, such as "decoder_0/cross_attention"."""
    leaves = jax.tree_util.tree_leaves_with_path(axis_names(model))
    found = [(*_place(path), names) for path, names in leaves]
    return [where for where, name, names in found if name == OUT and names and names[0] == HEADS]


def _place(path: Any) -> tuple[str, str]:
    """The module of a parameter, and the parameter's own name."""
    *modules, name = (key.key for key in path)
    return "/".join(modules), name


def gated(params: Params, gates: Heads) -> Params:
    """The parameters with each head's output times its gate."""

    def gate(path: Any, x: Array) -> Array:
        where, name = _place(path)
        own_H = gates.get(where) if name == OUT else None
        return x if own_H is None else x * jnp.asarray(own_H, x.dtype)[:, None, None]

    return jax.tree_util.tree_map_with_path(gate, params)


def importance(
    model: EncoderDecoder,
    params: Params,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
) -> dict[str, np.ndarray]:
    """The mean over pairs of |dL/dg| for each head, at gates of 1: float64 `[heads]`.

    Args:
      model: the model.
      params: its parameters.
      sources: the subwords of each source, int32 `[length]`, EOS included.
      targets: the subwords of each translation, likewise; L is the sum of their nats.

    Source: Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", equation 2.
    """
    # All pairs in rows of one length: a program of the gradient takes seconds to compile.
    src_length, tgt_length = (max(map(len, side)) for side in (sources, targets))
    total: dict[str, np.ndarray] = {}
    for start in range(0, len(sources), ROWS):
        own = sources[start : start + ROWS], targets[start : start + ROWS]
        pairs = in_rows(*own, ROWS, (src_length, tgt_length))
        for name, found_BH in gate_gradients(model, params, pairs).items():
            real_BH = np.abs(np.asarray(found_BH, float)[: len(own[0])])
            total[name] = total.get(name, 0) + real_BH.sum(0) / len(sources)
    return total


@functools.partial(jax.jit, static_argnames="model")
def gate_gradients(model: EncoderDecoder, params: Params, pairs: Pairs) -> dict[str, Array]:
    """The gradient of each row's nats by the gates of all heads, at 1: `[batch, heads]`."""

    def nats(gates: Heads, pair: Pairs) -> Array:
        row = jax.tree.map(lambda x: x[None], pair)
        found_1L = log_probs(model, {"params": gated(params, gates)}, row)
        return -jnp.where(row.target.segments != 0, found_1L, 0.0).sum()

    ones = {name: jnp.ones(model.config.num_heads) for name in attentions(model)}
    gradients: dict[str, Array] = jax.vmap(jax.grad(nats), (None, 0))(ones, pairs)
    return gradients


def with_heads(model: EncoderDecoder, params: Params, kept: Heads) -> Params:
    """The parameters of the heads with these numbers, from 0: every axis of heads is cut.

    Heads that share their keys and values (model.num_key_heads) keep them.
    """
    config = model.config
    whole = (HEADS, KEY_HEADS) if config.key_heads == config.num_heads else (HEADS,)

    def cut(path: Any, x: Array, names: Any) -> Array:
        numbers = kept.get(_place(path)[0])
        for axis, name in enumerate(names if numbers is not None else ()):
            x = jnp.take(x, jnp.asarray(numbers), axis) if name in whole else x
        return x

    return jax.tree_util.tree_map_with_path(cut, params, axis_names(model))
