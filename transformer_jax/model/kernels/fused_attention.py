"""Equation 1 in one kernel: the scores never reach a GPU's memory (Dao et al. 2022).

`attend` writes scores, weights and their gradients to memory, `[batch, heads, L, M]`. Here a
program, which is one instance of the kernel, holds one block of queries, walks over the blocks of
keys, and keeps the running maximum and sum of the softmax. The backward pass computes the weights
again, from the scores and the logarithm of that sum. No two programs write to the same place, so
the result is deterministic. A block in which no query may attend to any key is skipped: in packed
rows of short sentences, most blocks are far from the diagonal.

The kernels are written in Pallas. Triton compiles them for an NVIDIA GPU. On other devices Pallas
interprets them, which is slow, but it runs the same kernels in the tests.

Dimension key
  B batch   L query length   M key length   H heads   K d_k per head   V d_v per head
  l, m  positions of one block of queries or keys
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import get_abstract_mesh

from transformer_jax.model.attention.patterns import mask_of
from transformer_jax.model.axes import BATCH, HEADS, mesh_axes
from transformer_jax.model.interfaces import Place
from transformer_jax.model.kernels.choices import SMALLEST_BLOCK, Keys, Queries, Setting

LONGEST_BLOCK = 32  # positions
WARPS, STAGES = 2, 2  # groups of 32 threads of a program; blocks on their way from memory
MASKED = -1e30  # the score of a key that is not allowed: finite, and its exp is 0


def fused_attend(queries: Queries, keys: Keys, setting: Setting) -> Array:
    """softmax(factor Q K^T) V, `[batch, query_len, heads, d_v]` in the values' type.

    A query that may attend to nothing, which only padding is, gets zeros. `attend` gives it the
    mean of the values.

    Args:
      queries: d_k is a power of 2, and 16 or more.
      keys: the same for d_v.
      setting: its patterns read the places inside the kernel.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1; Dao 2023, algorithms 1 and 2.
    """
    if get_abstract_mesh().size <= 1:
        return _in_blocks(queries, keys, setting)
    # The compiler cannot divide a kernel: each device calls it for its own rows and heads.
    rows = mesh_axes(BATCH)
    heads = mesh_axes(BATCH, None, HEADS)
    return jax.shard_map(
        functools.partial(_in_blocks, setting=setting),
        in_specs=(Queries(heads, rows), Keys(heads, heads, rows)),
        out_specs=heads,
        check_vma=False,
    )(queries, keys)


def _in_blocks(queries: Queries, keys: Keys, setting: Setting) -> Array:
    """Pads both lengths to whole blocks. Padding is segment 0, to which nothing attends."""

    def padded(x: Array) -> Array:
        missing = -x.shape[1] % _block(x.shape[1])
        return jnp.pad(x, ((0, 0), (0, missing), *((0, 0),) * (x.ndim - 2))) if missing else x

    queries_padded, keys_padded = jax.tree.map(padded, (queries, keys))
    out_BLHV = _attended(queries_padded, keys_padded, setting)
    return out_BLHV[:, : queries.query.shape[1]]


def _block(length: int) -> int:
    """Positions of a block: a power of 2."""
    return min(LONGEST_BLOCK, max(SMALLEST_BLOCK, pl.next_power_of_2(length)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _attended(queries: Queries, keys: Keys, setting: Setting) -> Array:
    return _forward(queries, keys, setting)[0]


def _forward(queries: Queries, keys: Keys, setting: Setting) -> tuple[Array, tuple]:
    batch, length, heads, _ = queries.query.shape
    value = keys.value
    outputs = (
        jax.ShapeDtypeStruct((batch, length, heads, value.shape[-1]), value.dtype),
        jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
    )
    out_BLHV, log_sum_BHL = _call(FORWARD, setting, (queries, keys), outputs)
    return out_BLHV, (queries, keys, out_BLHV, log_sum_BHL)


def _backward(setting: Setting, kept: tuple, gradient_BLHV: Array) -> tuple[Queries, Keys]:
    queries, keys, out_BLHV, log_sum_BHL = kept
    query_gradient_BLHK, mean_BHL = _call(
        QUERY_GRADIENT,
        setting,
        (queries, keys, (log_sum_BHL, out_BLHV, gradient_BLHV)),
        (queries.query, log_sum_BHL),
    )
    key_gradient_BMHK, value_gradient_BMHV = _call(
        KEY_GRADIENTS,
        setting,
        (queries, keys, (log_sum_BHL, mean_BHL, gradient_BLHV)),
        (keys.key, keys.value),
    )
    nothing: Any = None  # places are integers, which have no gradient
    return (
        Queries(query_gradient_BLHK, nothing),
        Keys(key_gradient_BMHK, value_gradient_BMHV, nothing),
    )


_attended.defvjp(_forward, _backward)


# The kernels -------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """A kernel, and what of its arrays one program sees."""

    body: Callable[..., None]  # takes references to inputs and outputs
    blocked: str  # the axis, L or M, that programs divide into blocks; they see the other one whole
    axes: tuple  # a letter for each axis of inputs and outputs, in the same trees


def _call(kernel: Kernel, setting: Setting, inputs: tuple, outputs: tuple) -> list[Array]:
    """Runs a program of the kernel for each row, head and block.

    Args:
      kernel: one of the three below.
      setting: patterns and factor.
      inputs: trees of arrays.
      outputs: arrays or ShapeDtypeStructs of the outputs' shapes and types.
    """
    arrays = (*inputs, *outputs)
    specs = jax.tree.map(functools.partial(_spec, kernel.blocked), kernel.axes, arrays)
    batch, length, heads, _ = inputs[0].query.shape
    if kernel.blocked == "M":
        length = inputs[1].key.shape[1]
    run = functools.partial(
        pl.pallas_call,
        functools.partial(kernel.body, setting=setting),
        grid=(batch, heads, length // _block(length)),
        in_specs=specs[: len(inputs)],
        out_specs=specs[len(inputs) :],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        name=kernel.body.__name__.strip("_"),
    )
    return jax.lax.platform_dependent(*inputs, cuda=run(), default=run(interpret=True))


def _spec(blocked: str, axes: str, x: Any) -> pl.BlockSpec:
    """The part of an array that the program of row b, head h and block n reads or writes."""
    one = {"B": None, "H": None, blocked: _block(x.shape[axes.find(blocked)])}
    shape = tuple(one.get(axis, size) for axis, size in zip(axes, x.shape, strict=True))

    def index(b: Any, h: Any, n: Any) -> tuple:
        return tuple({"B": b, "H": h, blocked: n}.get(axis, 0) for axis in axes)

    return pl.BlockSpec(shape, index)


def _forward_kernel(
    queries: Queries, keys: Keys, out_ref: Any, log_sum_ref: Any, *, setting: Setting
) -> None:
    """One block of queries over all keys: the output, and log sum exp of the scores."""
    query_lK = queries.query[...]
    query_place = _place(queries.place, ...)

    def mask(at: Any) -> Array:
        return _mask(query_place, _place(keys.place, at), setting)

    def add(at: Any, mask_lm: Array, carry: tuple) -> tuple[Array, Array, Array]:
        out_lV, highest_l, sum_l = carry
        value_mV = keys.value[at, :]
        scores_lm = _scores(query_lK, keys.key[at, :], mask_lm, setting)
        higher_l = jnp.maximum(highest_l, scores_lm.max(axis=1))
        exp_lm = jnp.where(mask_lm, jnp.exp(scores_lm - higher_l[:, None]), 0.0)
        shrink_l = jnp.exp(highest_l - higher_l)
        out_lV = out_lV * shrink_l[:, None] + _product(exp_lm.astype(value_mV.dtype), value_mV)
        return out_lV, higher_l, sum_l * shrink_l + exp_lm.sum(axis=1)

    length, d_v = out_ref.shape
    start = jnp.zeros((length, d_v)), jnp.full((length,), MASKED), jnp.zeros((length,))
    out_lV, highest_l, sum_l = _over_blocks(keys.key.shape[0], mask, add, start)
    sum_l = jnp.where(sum_l == 0.0, 1.0, sum_l)  # a query that may attend to nothing
    out_ref[...] = (out_lV / sum_l[:, None]).astype(out_ref.dtype)
    log_sum_ref[...] = highest_l + jnp.log(sum_l)


def _query_kernel(
    queries: Queries, keys: Keys, back: tuple, *gradient_refs: Any, setting: Setting
) -> None:
    """One block of queries over all keys: its gradient, and gradient . output of each query."""
    log_sum_ref, out_ref, out_gradient_ref = back
    query_lK = queries.query[...]
    query_place = _place(queries.place, ...)
    log_sum_l1 = log_sum_ref[...][:, None]
    gradient_lV = out_gradient_ref[...]
    mean_l = (gradient_lV.astype(jnp.float32) * out_ref[...].astype(jnp.float32)).sum(axis=1)

    def mask(at: Any) -> Array:
        return _mask(query_place, _place(keys.place, at), setting)

    def add(at: Any, mask_lm: Array, query_gradient_lK: Array) -> Array:
        key_mK = keys.key[at, :]
        scores_lm = _scores(query_lK, key_mK, mask_lm, setting)
        weights_lm = jnp.where(mask_lm, jnp.exp(scores_lm - log_sum_l1), 0.0)
        weights_gradient_lm = _product(gradient_lV, keys.value[at, :].T)
        scores_gradient_lm = weights_lm * (weights_gradient_lm - mean_l[:, None])
        return query_gradient_lK + _product(scores_gradient_lm.astype(key_mK.dtype), key_mK)

    start = jnp.zeros(query_lK.shape, jnp.float32)
    query_gradient_lK = _over_blocks(keys.key.shape[0], mask, add, start) * setting.factor
    query_gradient_ref, mean_ref = gradient_refs
    query_gradient_ref[...] = query_gradient_lK.astype(query_gradient_ref.dtype)
    mean_ref[...] = mean_l


def _key_kernel(
    queries: Queries, keys: Keys, back: tuple, *gradient_refs: Any, setting: Setting
) -> None:
    """One block of keys over all queries: the gradients of keys and values."""
    log_sum_ref, mean_ref, out_gradient_ref = back
    key_mK = keys.key[...]
    value_mV = keys.value[...]
    key_place = _place(keys.place, ...)

    def mask(at: Any) -> Array:
        return _mask(_place(queries.place, at), key_place, setting)

    def add(at: Any, mask_lm: Array, carry: tuple) -> tuple[Array, Array]:
        key_gradient_mK, value_gradient_mV = carry
        query_lK = queries.query[at, :]
        gradient_lV = out_gradient_ref[at, :]
        scores_lm = _scores(query_lK, key_mK, mask_lm, setting)
        weights_lm = jnp.where(mask_lm, jnp.exp(scores_lm - log_sum_ref[at][:, None]), 0.0)
        weights_gradient_lm = _product(gradient_lV, value_mV.T)
        scores_gradient_lm = weights_lm * (weights_gradient_lm - mean_ref[at][:, None])
        return (
            key_gradient_mK + _product(scores_gradient_lm.astype(query_lK.dtype).T, query_lK),
            value_gradient_mV + _product(weights_lm.astype(gradient_lV.dtype).T, gradient_lV),
        )

    start = tuple(jnp.zeros(x.shape, jnp.float32) for x in (key_mK, value_mV))
    key_gradient_mK, value_gradient_mV = _over_blocks(queries.query.shape[0], mask, add, start)
    key_gradient_ref, value_gradient_ref = gradient_refs
    key_gradient_ref[...] = (key_gradient_mK * setting.factor).astype(key_gradient_ref.dtype)
    value_gradient_ref[...] = value_gradient_mV.astype(value_gradient_ref.dtype)


PLACES: Any = Place  # its fields are letters of axes here, not arrays
QUERY_AXES = Queries("BLHK", PLACES("BL", "BL"))
KEY_AXES = Keys("BMHK", "BMHV", PLACES("BM", "BM"))
FORWARD = Kernel(_forward_kernel, "L", (QUERY_AXES, KEY_AXES, "BLHV", "BHL"))
QUERY_GRADIENT = Kernel(
    _query_kernel, "L", (QUERY_AXES, KEY_AXES, ("BHL", "BLHV", "BLHV"), "BLHK", "BHL")
)
KEY_GRADIENTS = Kernel(
    _key_kernel, "M", (QUERY_AXES, KEY_AXES, ("BHL", "BHL", "BLHV"), "BMHK", "BMHV")
)


def _over_blocks(
    length: int, mask: Callable[[Any], Array], add: Callable[[Any, Array, Any], Any], start: Any
) -> Any:
    """Calls `add(slice, its mask, carry)` for each block of a side that a program sees whole.

    A block whose mask allows nothing is skipped; it would add zeros.
    """
    block = _block(length)

    def one(number: Any, carry: Any) -> Any:
        at = pl.ds(number * block, block)
        mask_lm = mask(at)
        allowed = mask_lm.astype(jnp.int32).max() > 0
        return jax.lax.cond(allowed, lambda: add(at, mask_lm, carry), lambda: carry)

    return jax.lax.fori_loop(0, length // block, one, start)


def _place(refs: Place, at: Any) -> Place:
    """The place of the positions of a block, with an axis for the batch."""
    return Place(refs.segments[at][None], refs.positions[at][None])


def _mask(query: Place, key: Place, setting: Setting) -> Array:
    """Which query may attend to which key, `[l, m]`."""
    mask_lm = mask_of(setting.patterns, query, key)
    return mask_lm.reshape(query.segments.shape[1], key.segments.shape[1])


def _scores(query_lK: Array, key_mK: Array, mask_lm: Array, setting: Setting) -> Array:
    """The scores of a block, `[l, m]`."""
    return jnp.where(mask_lm, _product(query_lK, key_mK.T) * setting.factor, MASKED)


def _product(left: Array, right: Array) -> Array:
    return jnp.dot(left, right, preferred_element_type=jnp.float32)
