"""R-Drop: two passes with different dropout masks should predict the same (Liang et al. 2021).

Dimension key
  B batch   L target length   V vocabulary, padded   D d_model
  R replicas, which hold different rows   b rows of one replica in one block
"""

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.cross_entropy import PAD_LOGIT, LossSettings
from transformer_jax.model.products import sum_type
from transformer_jax.model.records import LossSums
from transformer_jax.model.softmax_output import output_logits, split_rows

CONSISTENCY = "consistency"  # the name of its loss among the auxiliary losses


def divergence(
    x_BLD: Array, again_BLD: Array, table_VD: Array, real_BL: Array, settings: LossSettings
) -> Array:
    """(KL(p || q) + KL(q || p)) / 4, summed over real target positions, float32 scalar.

    p and q are the softmaxes of x E^T of both passes. The paper adds alpha times twice this to the
    sum of both cross entropies. Ours is half of its loss, beside the mean cross entropy, so alpha
    means the same. Logits are computed one block of rows at a time, and again in the backward pass.

    Args:
      x_BLD: the decoder's output of one pass `[batch, tgt_len, d_model]`.
      again_BLD: that of the other pass.
      table_VD: the output embedding, float32 `[padded vocabulary, d_model]`.
      real_BL: booleans `[batch, tgt_len]`, False = padding.
      settings: settings.replicas must divide the batch size.

    Source: Liang et al. 2021, equations 2 to 4.
    """
    cast_VD = table_VD.astype(settings.dtype)  # once, not in each block
    real_V = jnp.arange(table_VD.shape[0]) < settings.vocabulary_size

    def log_softmax(x_RbLD: Array, table_VD: Array) -> Array:
        logits_RbLV = output_logits(x_RbLD, table_VD, settings.dtype)
        return jax.nn.log_softmax(jnp.where(real_V, logits_RbLV, PAD_LOGIT))

    @jax.checkpoint
    def of_block(block: tuple[Array, Array, Array], table_VD: Array) -> Array:
        x_RbLD, again_RbLD, real_RbL = block
        p_RbLV, q_RbLV = (log_softmax(one, table_VD) for one in (x_RbLD, again_RbLD))
        both_RbL = ((jnp.exp(p_RbLV) - jnp.exp(q_RbLV)) * (p_RbLV - q_RbLV)).sum(-1)
        return jnp.where(real_RbL, both_RbL, 0.0).sum() / 4

    def add(total: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
        return total + of_block(block, cast_VD), None

    blocks = split_rows((x_BLD, again_BLD, real_BL), real_BL.shape[1], settings)
    return jax.lax.scan(add, jnp.zeros((), sum_type(settings.dtype)), blocks)[0]


def mean_sums(sums: LossSums, again: LossSums) -> LossSums:
    """The mean of the sums of two passes over the same targets."""
    return jax.tree.map(lambda one, other: (one + other) / 2, sums, again)
