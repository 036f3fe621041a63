"""The kernel of the loss against `loss_and_gradient`.

Pallas interprets it here; tests/parallel divides it over a mesh.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.model.kernels.fused_loss import fused_loss_and_gradient
from transformer_jax.model.outputs.cross_entropy import LossSettings, loss_and_gradient

REAL_SIZE, PADDED = 2_400, 2_432  # 19 turns of 128 columns
DRAW = np.random.default_rng(7)
SHAPE = (2, 2, 8)  # 32 positions, which two programs of the kernel share
LOGITS = jnp.asarray(4 * DRAW.normal(size=(*SHAPE, PADDED)) + 20, jnp.float32)
TARGETS = jnp.asarray(DRAW.integers(0, REAL_SIZE, SHAPE))
REAL = jnp.asarray(DRAW.random(SHAPE) < 0.7)
# At some positions the target is the most probable subword, so that some are correct.
LOGITS = LOGITS.at[:, 0, jnp.arange(8), TARGETS[0, 0]].set(60.0)


def settings(smoothing, dtype="float32"):
    return LossSettings(smoothing, REAL_SIZE, dtype, block=1, replicas=2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sums_and_gradient_are_those_of_the_equation(smoothing):
    sums, gradient = loss_and_gradient(LOGITS, TARGETS, REAL, smoothing, REAL_SIZE)
    found = jax.jit(lambda: fused_loss_and_gradient(LOGITS, TARGETS, REAL, settings(smoothing)))()
    assert 0 < sums.correct < sums.tokens
    for one, wanted in zip(found[0][:4], sums[:4], strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5)
    np.testing.assert_allclose(found[1], gradient, atol=1e-5)
    assert not np.any(np.asarray(found[1])[..., REAL_SIZE:])


def test_the_gradient_has_the_type_of_the_products():
    _, gradient = fused_loss_and_gradient(LOGITS, TARGETS, REAL, settings(0.1, "bfloat16"))
    assert gradient.dtype == jnp.bfloat16
