"""Elastic weights: a run that starts from another one keeps what mattered there.

The penalty is weight * sum_j F_j (theta_j - theta_j^0)^2, beside the loss of a subword: theta^0 are
the weights at the start, and F_j, the diagonal of the Fisher information, is the mean over rows of
the other run's training text of the squared gradient of the log likelihood.
Source: Kirkpatrick et al. 2017, equation 3; for translation Saunders and Byrne 2020, section 2.3.1.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.model.interfaces import LossSums, Params
from transformer_jax.text.batches import Batch


class Anchor(NamedTuple):
    """What holds the weights; trees of arrays as the parameters are."""

    params: Params
    fisher: Params


def penalty_gradient(anchor: Anchor, params: Params, weight: float) -> Params:
    """The gradient of the penalty."""
    pulls = anchor.fisher, params, anchor.params
    return jax.tree.map(lambda f, new, old: 2 * weight * f * (new - old), *pulls)


def squared_gradients(
    loss_fn: Callable[[Params, Batch], LossSums], params: Params, batch: Batch
) -> Params:
    """The squared gradients of each row's loss, summed over the rows.

    It is that of the likelihood if the loss has no smoothing; LossSums.nats has no gradient.
    """

    def add(total: Params, row: Batch) -> tuple[Params, None]:
        one = jax.tree.map(lambda x: x[None], row)
        grads = jax.grad(lambda params: loss_fn(params, one).smoothed_nats)(params)
        return jax.tree.map(lambda sum_, g: sum_ + g * g, total, grads), None

    zero = jax.tree.map(jnp.zeros_like, params)
    total: Params = jax.lax.scan(add, zero, batch)[0]
    return total
