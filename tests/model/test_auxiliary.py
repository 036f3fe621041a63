"""Auxiliary losses: against loops, in packed rows, in the gradient, and in a whole run."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import (
    lay_out,
    model_inputs,
    random_pairs,
    random_params,
    relative_error,
    tiny_model,
)
from tests.tiny_runs import arrays, metrics, train
from transformer_jax.config.schema import TrainConfig
from transformer_jax.model.auxiliary import auxiliary_weights, coverage
from transformer_jax.training.step import accumulated_gradients, make_loss_fn

LENGTHS = [(9, 7), (3, 9), (10, 2), (5, 5), (1, 1), (7, 8)]
PACKED = [[0, 1], [2, 4], [3], [5]]
SRC_LENGTH, TGT_LENGTH = 13, 17
PAIRS = random_pairs(0, LENGTHS)


def watched_weights(batch, seed=0):
    """Random weights over the source of each target position's own sentence; also on padding."""
    draw = np.random.default_rng(seed)
    same_BLM = batch.tgt.segments[:, :, None] == batch.src.segments[:, None, :]
    raw_BLM = draw.exponential(size=same_BLM.shape) * same_BLM
    return raw_BLM / np.maximum(raw_BLM.sum(-1, keepdims=True), 1e-9)


def coverage_by_hand(weights_BLM, batch):
    """Sentence by sentence and position by position, in float64."""
    total = 0.0
    for row, weights_LM in enumerate(weights_BLM):
        for segment in range(1, batch.tgt.segments[row].max() + 1):
            covered_M = np.zeros(weights_LM.shape[1])
            for position in np.nonzero(batch.tgt.segments[row] == segment)[0]:
                total += np.minimum(weights_LM[position], covered_M).sum()
                covered_M += weights_LM[position]
    return total


def test_coverage_is_the_overlap_with_earlier_positions_of_the_sentence():
    batch = lay_out(PAIRS, PACKED, SRC_LENGTH, TGT_LENGTH)
    weights_BLM = watched_weights(batch)
    found = coverage(jnp.asarray(weights_BLM, jnp.float32), batch)
    assert found == pytest.approx(coverage_by_hand(weights_BLM, batch), rel=1e-5)
    assert found > 1


def test_a_word_that_is_read_twice_costs_what_is_read_again():
    """Position 0 reads word 0; position 1 reads 0.3 of it again; position 2 reads all of word 1."""
    batch = lay_out(random_pairs(0, [(2, 3)]), [[0]], 2, 4)
    weights_BLM = jnp.array([[[1.0, 0.0], [0.3, 0.7], [0.0, 1.0], [0.5, 0.5]]])
    assert coverage(weights_BLM, batch) == pytest.approx(0.3 + 0.7)


def test_a_weight_of_zero_turns_a_loss_off():
    assert auxiliary_weights(TrainConfig()) == {}
    assert auxiliary_weights(TrainConfig(coverage_weight=0.5)) == {"coverage": 0.5}


WEIGHT = 0.7


def gradients(weight, micro_batches=1):
    model = tiny_model(num_layers=2).clone(watch=True)
    loss_fn = make_loss_fn(model, 0.1, auxiliary={"coverage": weight} if weight else None)
    batch = lay_out(PAIRS, PACKED, SRC_LENGTH, TGT_LENGTH)
    params = random_params(model, seed=2)
    compute = jax.jit(accumulated_gradients, static_argnums=(0, 4))
    return compute(loss_fn, params, batch, jax.random.key(0), micro_batches)


def test_the_gradient_is_that_of_the_weighted_sum():
    """The loss of the watched weights is differentiated on its own, through `decode`."""
    model = tiny_model(num_layers=2).clone(watch=True)
    batch = lay_out(PAIRS, PACKED, SRC_LENGTH, TGT_LENGTH)
    source, target = model_inputs(batch)

    def alone(params):
        variables = {"params": params}
        encoded = model.apply(variables, source, method="encode")
        _, watched_BLM = model.apply(variables, encoded, source, target, method="decode")
        return coverage(watched_BLM, batch)

    params = random_params(model, seed=2)
    value, want = jax.jit(jax.value_and_grad(alone))(params)
    (plain, before), (both, sums) = gradients(0.0), gradients(WEIGHT)
    got = jax.tree.map(lambda a, b: (a - b) / WEIGHT, both, plain)
    flat_got, flat_want = (jax.flatten_util.ravel_pytree(tree)[0] for tree in (got, want))
    assert relative_error(flat_got, flat_want) < 1e-4
    assert np.linalg.norm(flat_want) > 1e-2
    assert before.auxiliary == {} and sums.smoothed_nats == before.smoothed_nats
    assert sums.auxiliary["coverage"] == pytest.approx(float(WEIGHT * value), rel=1e-6)
    whole = float(sums.smoothed_nats + WEIGHT * value)
    assert sums.objective == pytest.approx(whole, rel=1e-6)


def test_micro_batches_add_up():
    (one, sums), (two, sums_of_two) = gradients(WEIGHT), gradients(WEIGHT, micro_batches=2)
    want = float(sums.auxiliary["coverage"])
    assert sums_of_two.auxiliary["coverage"] == pytest.approx(want, rel=1e-6)
    flat, flat_of_two = (jax.flatten_util.ravel_pytree(tree)[0] for tree in (one, two))
    assert relative_error(flat_of_two, flat) < 1e-5


def test_a_model_that_does_not_watch_is_refused():
    loss_fn = make_loss_fn(tiny_model(), 0.1, auxiliary={"coverage": 1.0})
    batch = lay_out(PAIRS, PACKED, SRC_LENGTH, TGT_LENGTH)
    with pytest.raises(ValueError, match="coverage needs a model with watch=True"):
        jax.eval_shape(loss_fn, random_params(tiny_model()), batch)


SETTINGS = {
    "train__coverage_weight": 0.5,
    **{"train__steps": 12, "train__checkpoint_every": 5, "train__valid_every": 12},
}


def test_a_run_trains_on_it_logs_it_and_continues_bit_for_bit(tmp_path, capsys):
    """Step 5 is inside the window of steps 4 to 6, so its checkpoint holds a part of the sum."""
    whole = tmp_path / "whole"
    assert train(whole, **SETTINGS) == 0
    losses = [r["coverage_loss_per_token"] for r in metrics(whole) if r["kind"] == "train"]
    assert all(0 < loss < 1 for loss in losses) and len(losses) == 4
    assert [name for name in arrays(whole / "checkpoints" / "12") if "auxiliary" in name]

    killed = shutil.copytree(whole, tmp_path / "killed")
    for step in ("10", "12"):
        shutil.rmtree(killed / "checkpoints" / step)
    assert train(killed, **SETTINGS) == 0
    assert metrics(killed) == metrics(whole)
    got, want = (arrays(path / "checkpoints" / "12") for path in (killed, whole))
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    assert train(killed, **SETTINGS | {"train__coverage_weight": 1.0}) == 2
    assert "train.coverage_weight" in capsys.readouterr().err
