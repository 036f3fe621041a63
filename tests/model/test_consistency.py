"""R-Drop against float64 NumPy, and the two passes that it compares."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from tests.fixtures.references import along_a_direction, softmax_by_hand
from tests.fixtures.tiny import (
    VOCABULARY,
    lay_out,
    model_inputs,
    random_pairs,
    random_params,
    relative_error,
    tiny_and_params,
    tiny_model,
)
from transformer_jax.model.outputs.cross_entropy import CONSISTENCY, LossSettings
from transformer_jax.model.outputs.loss_blocks import Parts
from transformer_jax.model.outputs.softmax_output import projected_loss

B, L, D, V = 4, 5, 6, 12  # V is padded
REAL_V = 9
DRAW = np.random.default_rng(3)
X, AGAIN = DRAW.normal(size=(2, B, L, D))
TABLE = DRAW.normal(size=(V, D))
REAL = DRAW.random((B, L)) < 0.7
SETTINGS = LossSettings(0.1, REAL_V, "float32", 2048, 1)


def divergence_by_hand(x, again, table):
    total = 0.0
    for b, i in np.argwhere(REAL):
        p, q = (softmax_by_hand(one[b, i] @ table[:REAL_V].T, True) for one in (x, again))
        total += (p * np.log(p / q)).sum() + (q * np.log(q / p)).sum()
    return total / 4


def narrow(*arrays):
    return tuple(map(jnp.float32, arrays))


@pytest.mark.parametrize(("block", "replicas"), [(2048, 1), (10, 1), (10, 2)])
def test_the_gradient_is_that_of_the_mean_cross_entropy_and_the_divergence(block, replicas):
    settings = SETTINGS._replace(block=block, replicas=replicas, auxiliary=((CONSISTENCY, 3.0),))
    targets = DRAW.integers(0, REAL_V, (B, L))

    def objective_by_hand(x, again, table):
        nats = 0.0
        for one in (x, again):
            for b, i in np.argwhere(REAL):
                log_p = np.log(softmax_by_hand(one[b, i] @ table[:REAL_V].T, True))
                nats -= 0.9 * log_p[targets[b, i]] + 0.1 * log_p.mean()
        return nats / 2 + 3 * divergence_by_hand(x, again, table)

    def total(x, again, table):
        twice = jnp.concatenate([targets, targets], axis=1), jnp.concatenate([REAL, REAL], axis=1)
        sums = projected_loss(Parts(jnp.concatenate([x, again], 1), table), *twice, settings)
        return sums.objective, sums

    arrays = (X, AGAIN, TABLE)
    made = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))
    (value, sums), gradients = made(*narrow(*arrays))
    assert float(value) == pytest.approx(objective_by_hand(*arrays), rel=1e-5)
    gap = 3 * divergence_by_hand(*arrays)
    assert float(sums.auxiliary[CONSISTENCY]) == pytest.approx(gap, rel=1e-5)
    assert float(total(*narrow(*arrays))[0]) == pytest.approx(float(value), rel=1e-6)
    slope, want = along_a_direction(lambda at: objective_by_hand(*at), gradients, arrays, 1e-5)
    assert slope == pytest.approx(want, rel=1e-4)
    assert not np.any(gradients[0][~REAL]) and not np.any(gradients[2][REAL_V:])


def test_the_divergence_of_bfloat16_is_summed_in_float32():
    settings = SETTINGS._replace(dtype="bfloat16", block=10, auxiliary=((CONSISTENCY, 1.0),))
    twice = jnp.zeros((B, 2 * L), jnp.int32), jnp.concatenate([REAL, REAL], axis=1)
    exact = [np.asarray(jnp.asarray(one, jnp.bfloat16), np.float64) for one in (X, AGAIN, TABLE)]
    x, table = jnp.concatenate(narrow(*exact[:2]), axis=1), jnp.float32(exact[2])
    gap = jax.jit(projected_loss, static_argnums=3)(Parts(x, table), *twice, settings)
    gap = gap.auxiliary[CONSISTENCY]
    assert gap.dtype == jnp.float32
    assert float(gap) == pytest.approx(divergence_by_hand(*exact), rel=1e-5)


BATCH = lay_out(random_pairs(0, [(9, 7), (4, 5), (2, 3), (6, 8)]), [[0, 2], [1, 3]], 16, 16)
WITH = SETTINGS._replace(vocabulary_size=VOCABULARY, auxiliary=((CONSISTENCY, 3.0),))
ROWS = jnp.arange(2)
KEYS = {"dropout": jax.random.key(5)}


def loss_of(model, params, settings):
    apply = functools.partial(model.apply, method="loss", rngs=KEYS)
    return jax.jit(lambda params: apply({"params": params}, BATCH, ROWS, settings)[0])(params)


@pytest.mark.slow("compiles four outputs")
@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("remat", [False, True])
def test_the_loss_is_the_mean_of_two_passes_and_how_far_they_differ(remat, output_bias):
    model = tiny_model(dropout=0.3, num_layers=1, output_bias=output_bias).clone(remat=remat)
    params = random_params(model)

    def logits_of_both(model):
        _, target = model_inputs(BATCH)
        both = []
        for _ in range(2):
            encoded = model.encode(BATCH.src, ROWS)
            x, _ = model.decode(encoded, BATCH.src, target, ROWS)
            both.append(model.out().logits(x, model.given(None, encoded, BATCH.src, target)))
        return both

    apply = functools.partial(model.apply, method=logits_of_both, rngs=KEYS)
    both = jax.jit(apply)({"params": params})
    real = np.asarray(BATCH.tgt.segments) != 0
    logs = [log_softmax(np.asarray(x, np.float64)[..., :VOCABULARY], axis=-1) for x in both]
    targets = np.asarray(BATCH.tgt.ids)[..., None]
    nats = [-np.take_along_axis(x, targets, -1)[..., 0][real].sum() for x in logs]
    gap = ((np.exp(logs[0]) - np.exp(logs[1])) * (logs[0] - logs[1])).sum(-1)[real].sum() / 4
    assert abs(nats[0] - nats[1]) > 1e-3 and gap > 1e-2
    sums = loss_of(model, params, WITH)
    assert float(sums.nats) == pytest.approx(sum(nats) / 2, rel=1e-5)
    assert float(sums.tokens) == real.sum()
    assert float(sums.auxiliary[CONSISTENCY]) == pytest.approx(3 * gap, rel=1e-4)
    assert float(sums.objective) == pytest.approx(float(sums.smoothed_nats) + 3 * gap, rel=1e-5)


def test_without_dropout_both_passes_are_the_same():
    model, params = tiny_and_params(num_layers=1)
    sums = loss_of(model, params, WITH)
    plain = loss_of(model, params, WITH._replace(auxiliary=()))
    assert float(sums.auxiliary[CONSISTENCY]) == 0
    assert relative_error(sums.smoothed_nats, plain.smoothed_nats) < 1e-6
