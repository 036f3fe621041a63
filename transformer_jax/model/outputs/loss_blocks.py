"""A loss over the vocabulary, and its gradient, for one block of rows at a time.

The gradient is computed with the loss, so that no logits are kept or computed twice.

Dimension key
  B batch   L target length   C components of a mixture   V vocabulary, padded   D d_model
  N blocks   R replicas, which hold different rows   b rows of one replica in one block
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.axes import BATCH, VOCABULARY, constrain
from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.layers.matrix_products import settled, sum_type
from transformer_jax.model.outputs.cross_entropy import LossSettings


class Parts(NamedTuple):
    """What a loss is differentiated by."""

    x: Array  # what makes the logits, [B, L, D] or [B, L, C, D]
    table_VD: Array  # the output embedding, float32
    others: Any = ()  # a tree of arrays [B, ...]


class BlockLoss(NamedTuple):
    """The loss of a block, whose arrays begin with [R, b]."""

    sums: LossSums
    logits_gradient: Array  # of sums.objective
    gradients: Any = ()  # the same by `others`
    of_positions: Any = ()  # a tree of arrays: what a caller wants to know of each position


# ((x, others, fixed) of a block, the table in the products' type, settings) -> its loss.
OfBlock = Callable[[tuple[Array, Any, Any], Array, LossSettings], BlockLoss]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def loss_by_blocks(
    parts: Parts, fixed: Any, of_block: OfBlock, settings: LossSettings
) -> tuple[LossSums, Any]:
    """The sums of the loss, and `BlockLoss.of_positions` of the whole batch.

    Only `smoothed_nats` is differentiable, by the parts in reverse mode; its gradient is that of
    `objective`.

    Args:
      parts: what the loss is differentiated by.
      fixed: the other arrays, a tree of `[batch, ...]`.
      of_block: the loss of a block.
      settings: `settings.replicas` must divide the batch size.
    """
    cast_VD = parts.table_VD.astype(settings.dtype)  # once, not in each block

    def add(total: LossSums, block: Any) -> tuple[LossSums, Any]:
        found = of_block(block, cast_VD, settings)
        return jax.tree.map(jnp.add, total, found.sums), found.of_positions

    sums, of_positions = jax.lax.scan(add, _no_sums(settings), _blocks(parts, fixed, settings))
    return sums, jax.tree.map(_joined, of_positions)


def _forward(
    parts: Parts, fixed: Any, of_block: OfBlock, settings: LossSettings
) -> tuple[tuple[LossSums, Any], Parts]:
    dtype = settings.dtype
    wide = sum_type(dtype)
    cast_VD = parts.table_VD.astype(dtype)
    rows = "RbLC"[: parts.x.ndim]  # the axes of x in a block, before the features
    # On one device [D, V], so that the smaller factor is the one that a CPU has to transpose. On
    # several [V, D], as the gradients of lookups in it are: XLA adds them and sends the sum.
    several = settings.replicas > 1
    table_product = f"{rows}V,{rows}D->RVD" if several else f"{rows}D,{rows}V->RDV"

    def add(total: tuple[LossSums, Array], block: Any) -> tuple[tuple[LossSums, Array], Any]:
        """The sums and the table's gradient with those of one more block, and what it keeps."""
        found = of_block(block, cast_VD, settings)
        gradient = settled(found.logits_gradient.astype(dtype))
        left, right = block[0].astype(dtype), gradient
        if several:
            left, right = right, left
        of_table = jnp.einsum(table_product, left, right, preferred_element_type=wide)
        of_x = jnp.einsum(f"{rows}V,VD->{rows}D", gradient, cast_VD, preferred_element_type=wide)
        total = jax.tree.map(jnp.add, total, (found.sums, of_table))
        return total, (found.of_positions, of_x, found.gradients)

    blocks = _blocks(parts, fixed, settings)
    # Summed over the replicas once, after the last block.
    V, D = parts.table_VD.shape
    if several:
        zeros = constrain(jnp.zeros((settings.replicas, V, D), wide), BATCH, VOCABULARY, None)
    else:
        zeros = constrain(jnp.zeros((1, D, V), wide), BATCH, None, VOCABULARY)
    (sums, of_table), kept = jax.lax.scan(add, (_no_sums(settings), zeros), blocks)
    of_positions, of_x, of_others = jax.tree.map(_joined, kept)
    # Without `settled`, XLA for a CPU joins product and transpose if there is one block, and it has
    # no fast product of bfloat16 for that.
    of_table_VD = of_table.sum(0) if several else settled(of_table.sum(0)).T
    return (sums, of_positions), Parts(of_x, of_table_VD, of_others)


def _backward(
    of_block: OfBlock, settings: LossSettings, gradients: Parts, cotangents: tuple[LossSums, Any]
) -> tuple[Parts, None]:
    scale = cotangents[0].smoothed_nats
    return jax.tree.map(lambda gradient: gradient * scale, gradients), None


loss_by_blocks.defvjp(_forward, _backward)


def _blocks(parts: Parts, fixed: Any, settings: LossSettings) -> Any:
    """(x, others, fixed) as blocks `[N, R, b, ...]`; each replica keeps its own rows.

    There are the fewest blocks of at most `settings.block` positions; a row is not divided.
    """
    replicas = settings.replicas
    per_replica = parts.x.shape[0] // replicas
    max_rows = settings.block // math.prod(parts.x.shape[1:-1])  # rows in a block
    counts = [n for n in range(1, per_replica + 1) if per_replica % n == 0]
    blocks = min((n for n in counts if per_replica // n <= max_rows), default=per_replica)

    def split(x_B: Array) -> Array:
        x_RNb = x_B.reshape(replicas, blocks, per_replica // blocks, *x_B.shape[1:])
        x_RNb = constrain(x_RNb, BATCH, *(None,) * (x_RNb.ndim - 1))
        return x_RNb.swapaxes(0, 1)

    return jax.tree.map(split, (parts.x, parts.others, fixed))


def _joined(x_NRb: Array) -> Array:
    return x_NRb.swapaxes(0, 1).reshape(-1, *x_NRb.shape[3:])


def _no_sums(settings: LossSettings) -> LossSums:
    zero = jnp.zeros((), sum_type(settings.dtype))
    return LossSums(zero, zero, zero, zero, dict.fromkeys(settings.on_logits, zero))
