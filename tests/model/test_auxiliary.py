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
from transformer_jax.config.train import TrainConfig
from transformer_jax.model.outputs.auxiliary import (
    agreement,
    alignment,
    auxiliary_weights,
    avoidance,
    coverage,
    fertility,
)
from transformer_jax.text.vocabulary import EOS
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


def test_fertility_is_the_distance_of_a_source_subword_s_sum_from_1():
    batch = lay_out(PAIRS, PACKED, SRC_LENGTH, TGT_LENGTH)
    weights_BLM = watched_weights(batch)
    want = 0.0
    for row, weights_LM in enumerate(weights_BLM):
        for place in np.flatnonzero(batch.src.segments[row]):
            own = batch.tgt.segments[row] == batch.src.segments[row, place]
            if batch.src.ids[row, place] != EOS:
                want += (1 - weights_LM[own, place].sum()) ** 2
    weights_BLM[batch.tgt.segments == 0] = 0.3  # of padding, which does not count
    found = fertility(jnp.asarray(weights_BLM, jnp.float32), batch)
    assert found == pytest.approx(want, rel=1e-5) and want > 1


def test_a_permutation_has_no_loss_of_fertility():
    batch = lay_out(random_pairs(0, [(4, 4)]), [[0]], 4, 4)
    weights_BLM = jnp.eye(4)[jnp.array([[2, 0, 1, 3]])]
    assert fertility(weights_BLM, batch) == 0
    twice_BLM = weights_BLM[:, jnp.array([0, 0, 2, 3])]
    assert fertility(twice_BLM, batch) == 1 + 1, "a word read twice, and one not at all"


def linked_batch(seed=0):
    """The packed batch with random links within its sentences; some positions have none."""
    batch = lay_out(PAIRS, PACKED, 35, TGT_LENGTH)  # more than 32 source positions
    draw = np.random.default_rng(seed)
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


def test_avoidance_is_the_log_of_the_weight_that_is_not_on_linked_places():
    batch, linked_BLM = linked_batch()
    weights_BLM = 0.9 * watched_weights(batch)
    want = -np.log(1 - (weights_BLM * linked_BLM).sum(-1)).sum()
    found = avoidance(jnp.asarray(weights_BLM, jnp.float32), batch)
    assert found == pytest.approx(want, rel=1e-5) and want > 1
    only = jnp.asarray(linked_BLM / np.maximum(linked_BLM.sum(-1, keepdims=True), 1), jnp.float32)
    assert jnp.isfinite(avoidance(only, batch)) and avoidance(only, batch) > 20


def test_agreement_is_the_trace_of_the_product_of_both_directions():
    """Pair by pair in float64; padding has weights on padding, which do not count."""
    batch = lay_out(PAIRS, PACKED, SRC_LENGTH, TGT_LENGTH)
    forward_BLM = watched_weights(batch)
    reverse_BML = watched_weights(batch.swapped(), seed=1)
    want = 0.0
    most = 0
    for row, (A_LM, B_ML) in enumerate(zip(forward_BLM, reverse_BML, strict=True)):
        for segment in range(1, batch.tgt.segments[row].max() + 1):
            own_L, own_M = (side.segments[row] == segment for side in (batch.tgt, batch.src))
            A, B = A_LM[own_L][:, own_M], B_ML[own_M][:, own_L]
            assert np.trace(A @ B) <= min(A.shape)
            want = want + np.trace(A @ B)
            most = most + min(A.shape)
    found = agreement(jnp.asarray(forward_BLM), jnp.asarray(reverse_BML), batch)
    assert found == pytest.approx(want, rel=1e-5) and 5 < want < most
    other = agreement(jnp.asarray(reverse_BML), jnp.asarray(forward_BLM), batch.swapped())
    assert other == pytest.approx(want, rel=1e-5), "neither direction is the first"


def test_agreement_of_the_same_words_is_their_number_and_of_the_words_beside_them_none():
    """Three target and four source subwords."""
    batch = lay_out(random_pairs(0, [(4, 3)]), [[0]], 4, 3)
    A_LM = np.eye(4)[[2, 0, 3]]  # the source subword of each target subword
    assert agreement(jnp.asarray([A_LM]), jnp.asarray([A_LM.T]), batch) == 3
    beside_ML = np.roll(A_LM.T, 1, axis=1)
    assert agreement(jnp.asarray([A_LM]), jnp.asarray([beside_ML]), batch) == 0
    even = jnp.full((1, 3, 4), 1 / 4), jnp.full((1, 4, 3), 1 / 3)
    assert agreement(*even, batch) == pytest.approx(1)
    with pytest.raises(ValueError, match="a batch with links has no other"):
        batch._replace(links=np.zeros((1, 3, 1), np.uint32)).swapped()


def test_a_weight_of_zero_turns_a_loss_off():
    assert auxiliary_weights(TrainConfig()) == {}
    assert auxiliary_weights(TrainConfig(coverage_weight=0.5)) == {"coverage": 0.5}
    both = {"coverage": 0.5, "alignment": 0.05}
    assert auxiliary_weights(TrainConfig(coverage_weight=0.5, alignment_weight=0.05)) == both


WEIGHT = 0.7


@functools.cache
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
    plain, before = gradients(0.0)
    both, sums = gradients(WEIGHT)
    got = jax.tree.map(lambda a, b: (a - b) / WEIGHT, both, plain)
    flat_got, flat_want = (jax.flatten_util.ravel_pytree(tree)[0] for tree in (got, want))
    assert relative_error(flat_got, flat_want) < 1e-4
    assert np.linalg.norm(flat_want) > 1e-2
    assert before.auxiliary == {} and sums.smoothed_nats == before.smoothed_nats
    assert sums.auxiliary["coverage"] == pytest.approx(float(WEIGHT * value), rel=1e-6)
    whole = float(sums.smoothed_nats + WEIGHT * value)
    assert sums.objective == pytest.approx(whole, rel=1e-6)


def test_micro_batches_add_up():
    one, sums = gradients(WEIGHT)
    two, sums_of_two = gradients(WEIGHT, micro_batches=2)
    want = float(sums.auxiliary["coverage"])
    assert sums_of_two.auxiliary["coverage"] == pytest.approx(want, rel=1e-6)
    flat, flat_of_two = (jax.flatten_util.ravel_pytree(tree)[0] for tree in (one, two))
    assert relative_error(flat_of_two, flat) < 1e-5


def test_a_model_that_does_not_watch_is_refused():
    loss_fn = make_loss_fn(tiny_model(), 0.1, auxiliary={"coverage": 1.0})
    batch = lay_out(PAIRS, PACKED, SRC_LENGTH, TGT_LENGTH)
    with pytest.raises(ValueError, match="coverage needs a model with watch=True"):
        jax.eval_shape(loss_fn, random_params(tiny_model()), batch)


SETTINGS = {"train__steps": 12, "train__checkpoint_every": 5, "train__valid_every": 12}
FULL_CONTEXT = {"train__alignment_context": "full"}
TWICE = {"train__consistency_weight": 2.0}
BUILT_IN = {
    "data__path": None,
    "data__source": "grammar",
    "data__pairs": 300,
    "data__alignments": True,
}


@pytest.mark.slow("trains three runs and continues them")
@pytest.mark.parametrize(
    ("name", "weight", "others", "most"),
    [
        ("coverage", 0.5, {"train__hard_attention": "reinforce"}, 1),
        ("alignment", 0.3, {**BUILT_IN, "train__data_workers": 1, **FULL_CONTEXT, **TWICE}, 5),
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
    if TWICE.keys() <= others.keys():
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
    assert metrics(killed) == metrics(whole)
    got, want = (arrays(path / "checkpoints" / "12") for path in (killed, whole))
    for leaf in want:
        np.testing.assert_array_equal(got[leaf], want[leaf], err_msg=leaf)
    assert train(killed, **settings | {f"train__{name}_weight": 1.0}) == 2
    assert f"train.{name}_weight" in capsys.readouterr().err
