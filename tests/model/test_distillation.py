"""Word-level distillation against float64 NumPy, and how a batch has what a teacher predicts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.references import along_a_direction, softmax_by_hand
from tests.fixtures.tiny import lay_out, random_pairs, tiny_and_params
from transformer_jax.model.outputs.cross_entropy import DISTILLATION, LossSettings
from transformer_jax.model.outputs.loss_blocks import Parts
from transformer_jax.model.outputs.softmax_output import projected_loss
from transformer_jax.text.batches import Batch, TrainSource
from transformer_jax.text.encoded import EncodedPairs, Taught
from transformer_jax.text.packing import plan_rows
from transformer_jax.text.vocabulary import EOS

B, L, D, V, K = 4, 5, 6, 12, 3  # V is padded
REAL_V = 9
DRAW = np.random.default_rng(5)
X, TABLE = DRAW.normal(size=(B, L, D)), DRAW.normal(size=(V, D))
REAL = DRAW.random((B, L)) < 0.7
TARGETS = DRAW.integers(0, REAL_V, (B, L))
WANTED = jnp.int32(TARGETS), jnp.array(REAL)
IDS = np.array([DRAW.permutation(REAL_V)[:K] for _ in range(B * L)]).reshape(B, L, K)
SHARES = DRAW.dirichlet(np.ones(K), (B, L)) * REAL[..., None]
TAUGHT = Taught(jnp.int32(IDS), jnp.float32(SHARES))
SETTINGS = LossSettings(0.1, REAL_V, "float32", 2048, 1, ((DISTILLATION, 0.5),))


def by_hand(x, table):
    """The smoothed cross entropy of the text, and half of that of the teacher's predictions."""
    text = taught = 0.0
    for b, i in np.argwhere(REAL):
        log_p = np.log(softmax_by_hand(x[b, i] @ table[:REAL_V].T, True))
        text -= 0.9 * log_p[TARGETS[b, i]] + 0.1 * log_p.mean()
        taught -= sum(q * log_p[k] for k, q in zip(IDS[b, i], SHARES[b, i], strict=True))
    return text, 0.5 * taught


@pytest.mark.parametrize(("block", "replicas"), [(2048, 1), (5, 2)])
def test_the_gradient_is_that_of_both_cross_entropies(block, replicas):
    settings = SETTINGS._replace(block=block, replicas=replicas)

    def total(x, table):
        sums = projected_loss(Parts(x, table), *WANTED, settings, TAUGHT)
        return sums.objective, sums

    made = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
    (value, sums), gradients = made(jnp.float32(X), jnp.float32(TABLE))
    text, taught = by_hand(X, TABLE)
    assert float(sums.smoothed_nats) == pytest.approx(text, rel=1e-5)
    assert float(sums.auxiliary[DISTILLATION]) == pytest.approx(taught, rel=1e-5)
    assert float(value) == pytest.approx(text + taught, rel=1e-5)
    slope, want = along_a_direction(lambda at: sum(by_hand(*at)), gradients, (X, TABLE), 1e-5)
    assert slope == pytest.approx(want, rel=1e-4)
    assert not np.any(gradients[0][~REAL]) and not np.any(gradients[1][REAL_V:])


def test_the_objective_reads_what_the_batch_has_of_the_teacher():
    """A teacher that is sure of the text adds the plain cross entropy."""
    batch: Batch = lay_out(random_pairs(0, [(9, 7), (4, 5)]), [[0, 1]], 16, 16)
    model, params = tiny_and_params(num_layers=1)
    settings = SETTINGS._replace(vocabulary_size=model.sizes.target)
    sure = batch.tgt.ids[..., None], jnp.float32(batch.tgt.segments != 0)[..., None]
    given = batch._replace(taught=Taught(*sure))
    sums, _ = model.apply({"params": params}, given, None, settings, method="loss")
    assert float(sums.auxiliary[DISTILLATION]) == pytest.approx(float(sums.nats) / 2, rel=1e-5)


def test_the_predictions_of_a_subword_stay_beside_it():
    """Predictions that spell the subword, in rows of several pairs that are drawn at random."""
    lengths = DRAW.integers(2, 9, (2, 30))
    offsets = [np.concatenate([[0], np.cumsum(own)]) for own in lengths]
    src, tgt = (DRAW.integers(4, 900, own[-1]).astype(np.uint16) for own in offsets)
    src[offsets[0][1:] - 1] = tgt[offsets[1][1:] - 1] = EOS
    shares = np.stack([tgt / 1024, np.ones(len(tgt))], 1).astype(np.float16)
    taught = Taught(np.stack([tgt, tgt + 1], 1).astype(np.uint16), shares)
    pairs = EncodedPairs(src, offsets[0], tgt, offsets[1], taught=taught)
    plan = plan_rows(*lengths, 24, 20, 1, 20)
    source = TrainSource(pairs, plan, 4, 1)
    for batch in (source[0], source[3]):
        real = batch.tgt.segments != 0
        want = np.where(real[..., None], batch.tgt.ids[..., None] + np.arange(2), 0)
        np.testing.assert_array_equal(batch.taught.ids, want)
        own = np.float16(batch.tgt.ids / 1024)
        np.testing.assert_array_equal(batch.taught.probabilities[..., 0], np.where(real, own, 0))
    assert batch.taught.ids.dtype == np.int32 and batch.taught.probabilities.dtype == np.float32
    without = TrainSource(dataclasses.replace(pairs, taught=None), plan, 4, 1)[3]
    assert without.taught is None
    np.testing.assert_array_equal(without.tgt.ids, batch.tgt.ids)
