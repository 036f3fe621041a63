"""The output's bias against dense formulas; tests/training/test_loss.py has the loss itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import (
    VOCABULARY,
    lay_out,
    model_inputs,
    random_pairs,
    relative_error,
    tiny_and_params,
)
from transformer_jax.model.outputs.cross_entropy import LossSettings

BATCH = lay_out(random_pairs(3, [(9, 7), (4, 5), (2, 3)]), [[0], [1, 2]], 18, 16)
REAL = BATCH.tgt.segments != 0


def test_the_loss_and_its_gradients_are_those_of_the_biased_logits():
    model, params = tiny_and_params(output_bias=True, num_layers=1)
    smoothing = 0.1
    settings = LossSettings(smoothing, VOCABULARY, "float32", 16, 1)

    def blockwise(params):
        sums, _ = model.apply({"params": params}, BATCH, None, settings, method="loss")
        return sums.smoothed_nats

    def dense(params):
        logits = model.apply({"params": params}, *model_inputs(BATCH))[..., :VOCABULARY]
        log_probs = jax.nn.log_softmax(logits)
        own = jnp.take_along_axis(log_probs, BATCH.tgt.ids[..., None], -1)[..., 0]
        nats = -(1 - smoothing) * own - smoothing * log_probs.mean(-1)
        return jnp.where(REAL, nats, 0.0).sum()

    (got, grads), (want, expected) = (
        jax.jit(jax.value_and_grad(function))(params) for function in (blockwise, dense)
    )
    assert float(got) == pytest.approx(float(want), rel=1e-6)
    assert np.abs(grads["output_bias"][:VOCABULARY]).min() > 0
    assert not grads["output_bias"][VOCABULARY:].any()
    logits = jax.jit(model.apply)({"params": params}, *model_inputs(BATCH))
    assert (logits[..., VOCABULARY:] <= -1e8).all()
    for name in ("output_bias", "embedding", "decoder_0"):
        pairs = zip(jax.tree.leaves(grads[name]), jax.tree.leaves(expected[name]), strict=True)
        assert max(relative_error(*pair) for pair in pairs) < 1e-5, name
