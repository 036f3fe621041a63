"""The loss of a block of logits and its gradient in one kernel, for a GPU.

Without it XLA reads the logits, the largest array of a step, three times: for their maximum, for
the sum of their exponentials, and for the gradient. Here a program of the kernel holds a few
positions. It reads their logits once from memory, and a second time from the GPU's cache. The
kernel is written in Pallas, as in fused_attention.py.

Dimension key
  R replicas, which hold different rows   b rows of one replica   L target length
  V vocabulary, padded   N positions of a device   n positions of a program   c columns of one turn

A program is one instance of the kernel, a turn one iteration of its loop.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import get_abstract_mesh

from transformer_jax.model.axes import BATCH, mesh_axes
from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.outputs.cross_entropy import (
    PAD_LOGIT,
    LossSettings,
    Statistics,
    loss_sums,
)

ELEMENTS = 2_048  # logits that a program reads in one turn


def fused_loss_and_gradient(
    logits_RbLV: Array, targets_RbL: Array, real_RbL: Array, settings: LossSettings
) -> tuple[LossSums, Array]:
    """The sums and the gradient of `loss_and_gradient`, the gradient in the settings' type.

    Args:
      logits_RbLV: with the vocabulary in one piece; the padding's entries are ignored.
      targets_RbL: subwords to predict.
      real_RbL: booleans, False = padding.
      settings: smoothing, size of the vocabulary and type.

    Source: Vaswani et al. 2017, section 5.4; Szegedy et al. 2015, section 7.
    """
    weights_RbL = real_RbL.astype(jnp.float32)
    find = functools.partial(_of_device, settings=settings)
    if get_abstract_mesh().size > 1:
        # The compiler cannot divide a kernel: each device calls it for its own rows.
        rows = mesh_axes(BATCH)
        find = jax.shard_map(find, in_specs=(rows,) * 3, out_specs=rows, check_vma=False)
    statistics, gradient_RbLV = find(logits_RbLV, targets_RbL, weights_RbL)
    return loss_sums(statistics, weights_RbL, settings.smoothing), gradient_RbLV


def _of_device(
    logits_RbLV: Array, targets_RbL: Array, weights_RbL: Array, settings: LossSettings
) -> tuple[Statistics, Array]:
    columns = logits_RbLV.shape[-1]
    positions = targets_RbL.size
    turn = math.gcd(columns, ELEMENTS)
    own = math.gcd(positions, ELEMENTS // turn)
    every = pl.BlockSpec((own, columns), lambda n: (n, 0))
    one: Any = pl.BlockSpec((own,), lambda n: (n,))
    of_each: Any = jax.ShapeDtypeStruct((positions,), jnp.float32)
    run = functools.partial(
        pl.pallas_call,
        functools.partial(_loss_kernel, settings=settings, turn=turn),
        grid=(positions // own,),
        in_specs=[every, one, one],
        out_specs=[Statistics(one, one, one, one), every],
        out_shape=[
            Statistics(of_each, of_each, of_each, of_each),
            jax.ShapeDtypeStruct((positions, columns), settings.dtype),
        ],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        name="loss_kernel",
    )
    statistics, gradient_NV = jax.lax.platform_dependent(
        logits_RbLV.reshape(positions, columns),
        targets_RbL.reshape(positions),
        weights_RbL.reshape(positions),
        cuda=run(),
        default=run(interpret=True),
    )
    statistics = jax.tree.map(lambda x: x.reshape(targets_RbL.shape), statistics)
    return statistics, gradient_NV.reshape(logits_RbLV.shape)


def _loss_kernel(
    logits_ref: Any, targets_ref: Any, weights_ref: Any, *result_refs: Any, **static: Any
) -> None:
    """A few positions: their statistics in a first walk over the columns, then the gradient."""
    settings, turn = static["settings"], static["turn"]
    statistics_refs, gradient_ref = result_refs
    own, columns = logits_ref.shape
    size, smoothing = settings.vocabulary_size, settings.smoothing
    target_n1, weight_n1 = targets_ref[...][:, None], weights_ref[...][:, None]

    def read(number: Any) -> tuple[Array, Array, Array]:
        column_1c = (number * turn + jnp.arange(turn))[None]
        logits_nc = logits_ref[:, pl.ds(number * turn, turn)].astype(jnp.float32)
        return logits_nc, column_1c, column_1c < size

    def add(number: Any, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        highest_n, sum_n, target_n, total_n = carry
        logits_nc, column_1c, real_1c = read(number)
        masked_nc = jnp.where(real_1c, logits_nc, PAD_LOGIT)
        higher_n = jnp.maximum(highest_n, masked_nc.max(axis=1))
        sum_n = sum_n * jnp.exp(highest_n - higher_n)
        sum_n += jnp.exp(masked_nc - higher_n[:, None]).sum(axis=1)
        target_n += jnp.where(column_1c == target_n1, logits_nc, 0.0).sum(axis=1)
        total_n += jnp.where(real_1c, logits_nc, 0.0).sum(axis=1)
        return higher_n, sum_n, target_n, total_n

    def write(number: Any, carry: None) -> None:
        logits_nc, column_1c, real_1c = read(number)
        softmax_nc = jnp.exp(logits_nc - log_normalizer_n[:, None])
        smoothed_nc = jnp.where(column_1c == target_n1, 1.0 - smoothing, 0.0) + smoothing / size
        gradient_nc = jnp.where(real_1c, softmax_nc - smoothed_nc, 0.0) * weight_n1
        gradient_ref[:, pl.ds(number * turn, turn)] = gradient_nc.astype(gradient_ref.dtype)

    zeros_n = jnp.zeros((own,), jnp.float32)
    start = jnp.full((own,), PAD_LOGIT, jnp.float32), zeros_n, zeros_n, zeros_n
    highest_n, sum_n, target_n, total_n = jax.lax.fori_loop(0, columns // turn, add, start)
    log_normalizer_n = highest_n + jnp.log(sum_n)
    jax.lax.fori_loop(0, columns // turn, write, None)
    found = Statistics(highest_n, log_normalizer_n, target_n, total_n / size)
    for ref, value in zip(statistics_refs, found, strict=True):
        ref[...] = value
