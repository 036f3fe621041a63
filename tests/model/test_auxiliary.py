"""Auxiliary losses: against loops, in packed rows, in the gradient, and in a whole run."""

import functools
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
from tests.training.test_resume import assert_same_run
from transformer_jax.config.train import TrainConfig
from transformer_jax.model.outputs.auxiliary import (
    alignment,
    avoidance,
    coverage,
    fertility,
)
from transformer_jax.model.outputs.objectives import loss_weights
from transformer_jax.text.vocabulary import EOS
from transformer_jax.training.step import accumulated_gradients, make_loss_fn

LENGTHS = [(9, 7), (3, 9), (10, 2), (5, 5), (1, 1), (7, 8)]
PACKED = [[0, 1], [2, 4], [3], [5]]
SRC_LENGTH, TGT_LENGTH = 13, 17
PAIRS = random_pairs(0, LENGTHS)
BATCH = lay_out(PAIRS, PACKED, SRC_LENGTH, TGT_LENGTH)


def watched_weights(batch):
    """Random weights over the source of each target position's own sentence; also on padding."""
    draw = np.random.default_rng(0)
    same_BLM = batch.tgt.segments[:, :, None] == batch.src.segments[:, None, :]
    raw_BLM = draw.exponential(size=same_BLM.shape) * same_BLM
    return raw_BLM / np.maximum(raw_BLM.sum(-1, keepdims=True), 1e-9)


def sentences():
    """(row, booleans of its target positions, booleans of its source positions) of each pair."""
    for row, segments_L in enumerate(BATCH.tgt.segments):
        for segment in range(1, segments_L.max() + 1):
            yield row, segments_L == segment, BATCH.src.segments[row] == segment


def test_coverage_is_the_overlap_with_earlier_positions_of_the_sentence():
    weights_BLM = watched_weights(BATCH)
    want = 0.0
    for row, own_L, _ in sentences():
        own_LM = weights_BLM[row, own_L]
        for position in range(1, len(own_LM)):
            want += np.minimum(own_LM[position], own_LM[:position].sum(0)).sum()
    found = coverage(jnp.asarray(weights_BLM, jnp.float32), BATCH)
    assert found == pytest.approx(want, rel=1e-5) and want > 1


def test_fertility_is_the_distance_of_a_source_subword_s_sum_from_1():
    weights_BLM = watched_weights(BATCH)
    want = 0.0
    for row, own_L, own_M in sentences():
        sums_M = weights_BLM[row, own_L].sum(0)
        want += ((1 - sums_M[own_M & (BATCH.src.ids[row] != EOS)]) ** 2).sum()
    weights_BLM[BATCH.tgt.segments == 0] = 0.3  # of padding, which does not count
    found = fertility(jnp.asarray(weights_BLM, jnp.float32), BATCH)
    assert found == pytest.approx(want, rel=1e-5) and want > 1


def linked_batch():
    """The packed batch with random links within its sentences; some positions have none."""
    batch = lay_out(PAIRS, PACKED, 35, TGT_LENGTH)  # more than 32 source positions
    draw = np.random.default_rng(0)
    same_BLM = batch.tgt.segments[:, :, None] == batch.src.segments[:, None, :]
    same_BLM &= (batch.tgt.segments != 0)[:, :, None]
    linked_BLM = same_BLM & (draw.random(same_BLM.shape) < 0.3)
    bits = np.zeros((*linked_BLM.shape[:2], 2), np.uint32)
    for b, position, place in zip(*np.nonzero(linked_BLM), strict=True):
        bits[b, position, place // 32] |= np.uint32(1 << place % 32)
    return batch._replace(links=bits), linked_BLM


def test_alignment_is_the_cross_entropy_between_links_and_weights():
    batch, linked_BLM = linked_batch()
    weights_BLM = watched_weights(batch)
    want = 0.0
    for weights_M, linked_M in zip(
        weights_BLM.reshape(-1, 35), linked_BLM.reshape(-1, 35), strict=True
    ):
        for place in np.flatnonzero(linked_M):
            want -= np.log(weights_M[place]) / linked_M.sum()
    assert (linked_BLM.sum(-1) > 1).any() and want > 1
    found = alignment(jnp.asarray(weights_BLM, jnp.float32), batch)
    assert found == pytest.approx(want, rel=1e-5)


def test_alignment_is_zero_where_all_weight_is_on_the_only_link_and_finite_where_none_is():
    batch = lay_out(random_pairs(0, [(3, 3)]), [[0]], 3, 4)
    batch = batch._replace(links=np.array([[[0b001], [0b100], [0b000], [0b000]]], np.uint32))
    right = jnp.array([[[1.0, 0, 0], [0, 0, 1.0], [0.2, 0.5, 0.3], [0, 1.0, 0]]])
    assert alignment(right, batch) == 0
    wrong = right[:, :, ::-1]
    assert alignment(wrong, batch) == pytest.approx(2 * -np.log(1e-9), rel=1e-5)
    assert jnp.isfinite(jax.grad(alignment)(wrong, batch)).all()
    with pytest.raises(ValueError, match="needs a batch with links"):
        alignment(right, batch._replace(links=None))
    with pytest.raises(ValueError, match="those of one direction"):
        batch.swapped()


def test_avoidance_is_the_log_of_the_weight_that_is_not_on_linked_places():
    batch, linked_BLM = linked_batch()
    weights_BLM = 0.9 * watched_weights(batch)
    want = -np.log(1 - (weights_BLM * linked_BLM).sum(-1)).sum()
    found = avoidance(jnp.asarray(weights_BLM, jnp.float32), batch)
    assert found == pytest.approx(want, rel=1e-5) and want > 1
    only = jnp.asarray(linked_BLM / np.maximum(linked_BLM.sum(-1, keepdims=True), 1), jnp.float32)
    assert jnp.isfinite(avoidance(only, batch)) and avoidance(only, batch) > 20


def test_a_weight_of_zero_turns_a_loss_off():
    assert loss_weights(TrainConfig()) == {}
    assert loss_weights(TrainConfig(coverage_weight=0.5)) == {"coverage": 0.5}
    both = {"coverage": 0.5, "alignment": 0.05}
    assert loss_weights(TrainConfig(coverage_weight=0.5, alignment_weight=0.05)) == both


WEIGHT = 0.7
MODEL = tiny_model(num_layers=2).clone(watch=True)
PARAMS = random_params(MODEL, seed=2)


@functools.cache
def gradients(weight):
    """The gradient as one vector, and the sums of the loss."""
    loss_fn = make_loss_fn(MODEL, 0.1, auxiliary={"coverage": weight} if weight else None)
    compute = jax.jit(accumulated_gradients, static_argnums=(0, 4))
    found, sums = compute(loss_fn, PARAMS, BATCH, jax.random.key(0), 1)
    return jax.flatten_util.ravel_pytree(found)[0], sums


def test_the_gradient_is_that_of_the_weighted_sum():
    """The loss of the watched weights is differentiated on its own, through `decode`."""

    def alone(params):
        return coverage(MODEL.apply({"params": params}, method=watched), BATCH)

    def watched(model):
        source, target = model_inputs(BATCH)
        return model.decode(model.encode(source), source, target)[1]

    value, own = jax.jit(jax.value_and_grad(alone))(PARAMS)
    want = jax.flatten_util.ravel_pytree(own)[0]
    plain, before = gradients(0.0)
    both, sums = gradients(WEIGHT)
    assert relative_error((both - plain) / WEIGHT, want) < 1e-4
    assert np.linalg.norm(want) > 1e-2
    assert before.auxiliary == {} and sums.smoothed_nats == before.smoothed_nats
    assert sums.auxiliary["coverage"] == pytest.approx(float(WEIGHT * value), rel=1e-6)
    whole = float(sums.smoothed_nats + WEIGHT * value)
    assert sums.objective == pytest.approx(whole, rel=1e-6)


def test_a_model_that_does_not_watch_is_refused():
    loss_fn = make_loss_fn(tiny_model(), 0.1, auxiliary={"coverage": 1.0})
    with pytest.raises(ValueError, match="coverage needs a model with watch=True"):
        jax.eval_shape(loss_fn, PARAMS, BATCH)


SETTINGS = {"train__steps": 12, "train__checkpoint_every": 5, "train__valid_every": 12}
ALIGNED = {"data__path": None, "data__source": "grammar", "data__pairs": 300}
ALIGNED |= {"data__alignments": True, "train__alignment_context": "full"}
TWICE = "train__consistency_weight"


@pytest.mark.slow("trains three runs and continues them")
@pytest.mark.parametrize(
    ("name", "weight", "others", "most"),
    [
        ("coverage", 0.5, {"train__hard_attention": "reinforce"}, 1),
        ("alignment", 0.3, ALIGNED | {TWICE: 2.0}, 5),
    ],
)
def test_a_run_trains_on_it_logs_it_and_continues_bit_for_bit(
    tmp_path, capsys, name, weight, others, most
):
    """Step 5 is inside the window of steps 4 to 6, so its checkpoint holds a part of the sum."""
    whole = tmp_path / "whole"
    settings = {**SETTINGS, **others, f"train__{name}_weight": weight}
    assert train(whole, **settings) == 0
    losses = [r[f"{name}_loss_per_token"] for r in metrics(whole) if r["kind"] == "train"]
    assert all(0 < loss < most for loss in losses) and len(losses) == 4
    if TWICE in others:
        gaps = [r["consistency_loss_per_token"] for r in metrics(whole) if r["kind"] == "train"]
        assert all(gap > 0 for gap in gaps)
    saved = arrays(whole / "checkpoints" / "12")
    assert [name for name in saved if "auxiliary" in name]
    baselines = [float(saved[name]) for name in saved if "baseline" in name]
    assert len(baselines) == ("train__hard_attention" in others)
    assert all(6 < baseline < 6.6 for baseline in baselines), "it starts at log 400, which is 5.99"

    killed = shutil.copytree(whole, tmp_path / "killed")
    for step in ("10", "12"):
        shutil.rmtree(killed / "checkpoints" / step)
    assert train(killed, **settings) == 0
    assert_same_run(killed, whole, "12")
    assert train(killed, **settings | {f"train__{name}_weight": 1.0}) == 2
    assert f"train.{name}_weight" in capsys.readouterr().err
