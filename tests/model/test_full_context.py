"""A second pass of the decoder that sees the whole target: what it sees, and who learns from it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import batch_of, lay_out, model_inputs, random_pairs, tiny_and_params
from transformer_jax.model.outputs.auxiliary import alignment, coverage
from transformer_jax.model.positions.choices import POSITIONS
from transformer_jax.training.step import make_loss_fn

LENGTHS = [(9, 7), (3, 9), (10, 2), (5, 5)]
PACKED = [[0, 1], [2, 3]]
BATCH = lay_out(random_pairs(0, LENGTHS), PACKED, 16, 17)
watching = functools.partial(tiny_and_params, watch=True, num_layers=1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute(model, method, params, source, target):
    variables = {"params": params}
    encoded = model.apply(variables, source, method="encode")
    found = model.apply(variables, encoded, source, target, method=method)
    return found[1] if method == "decode" else found


def weights(model, params, batch, method):
    """Watched weights of `decode`, which sees the past, or of `align`."""
    return np.asarray(compute(model, method, params, *model_inputs(batch)))


def test_each_position_sees_what_the_last_one_of_a_sentence_sees():
    """Without positions, a row of `align` is the last of `decode` with that input at the end."""
    model, params = watching(positions="none")
    length = 6
    source, target = model_inputs(batch_of((5, length), seed=1))
    ids = np.asarray(target.ids)

    @jax.jit
    def rows(ids_BL):
        sides = (jax.tree.map(lambda x: jnp.repeat(x, len(ids_BL), 0), s) for s in (source, target))
        source_B, target_B = sides
        target_B = target_B._replace(ids=ids_BL)
        encoded = model.apply({"params": params}, source_B, method="encode")
        given = (encoded, source_B, target_B)
        _, past = model.apply({"params": params}, *given, method="decode")
        return past, model.apply({"params": params}, *given, method="align")

    moved = np.stack([np.append(np.delete(ids[0], at), ids[0, at]) for at in range(length)])
    past_BLM, full_BLM = rows(moved)
    own_LM = full_BLM[-1]  # the last one is the sentence as it is
    np.testing.assert_allclose(own_LM, past_BLM[:, -1], rtol=1e-5)
    assert np.abs(own_LM - past_BLM[-1])[:-1].max(1).min() > 1e-4, "each earlier row differs"


@pytest.mark.parametrize("changes", [{}, {"positions": "t5"}, {"positions": "relative"}], ids=str)
def test_a_packed_sentence_sees_nothing_of_the_others(changes):
    model, params = watching(**changes)
    pairs = random_pairs(0, LENGTHS)
    # With empty rows, the packed batch has the shape of the other, and one program serves both.
    packed = lay_out(pairs, [*PACKED, [], []], 16, 17)
    packed_BLM = weights(model, params, packed, "align")
    alone = lay_out(pairs, [[n] for n in range(len(LENGTHS))], 16, 17)
    alone_BLM = weights(model, params, alone, "align")
    for row, numbers in enumerate(PACKED):
        for segment, number in enumerate(numbers, start=1):
            own_L, own_M = (s.segments[row] == segment for s in (BATCH.tgt, BATCH.src))
            got = packed_BLM[row][own_L][:, own_M]
            want = alone_BLM[number][: own_L.sum(), : own_M.sum()]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)


@pytest.mark.slow("compiles ten models")
@pytest.mark.parametrize("positions", [kind for kind in POSITIONS if kind != "t5"])
def test_the_order_of_what_it_sees_counts_as_in_the_first_pass(positions):
    """Two neighboring subwords change places; t5 does not see the order of what is ahead."""
    model, params = watching(positions=positions, d_k=6, relative_distance=3)
    source, target = model_inputs(batch_of((5, 6), seed=1))
    order = np.array([0, 1, 3, 2, 4, 5])
    swapped = target._replace(ids=np.asarray(target.ids)[:, order])
    one, other = (compute(model, "align", params, source, side) for side in (target, swapped))
    gap = np.abs(one - other[:, order]).max()
    assert gap < 1e-6 if positions == "none" else gap > 1e-4


def test_a_memory_of_attention_goes_on_in_the_second_pass():
    """Coverage counts from a sentence's second position on, if the pass knows where it begins."""
    model, params = watching(attention_memory="coverage")
    batch = batch_of((5, 6), seed=1)
    without = jax.tree_util.tree_map_with_path(
        lambda path, x: 0 * x if path[-1].key == "coverage" else x, params
    )
    one, other = (weights(model, own, batch, "align")[0] for own in (params, without))
    moved = np.abs(one - other).max(-1)
    assert moved[0] < 1e-6 and (moved[1:] > 1e-5).all()


@pytest.mark.slow("compiles the kernel of a second pass")
def test_the_fused_kernel_sees_the_same():
    changes = {"d_k": 16, "d_v": 16, "watched_layer": -1, "num_layers": 2}
    (plain, params), (fused, _) = (
        watching(**changes, attention_kernel=kernel) for kernel in ("plain", "fused")
    )
    want, past = (weights(plain, params, BATCH, method) for method in ("align", "decode"))
    got = weights(fused, params, BATCH, "align")
    real = BATCH.tgt.segments != 0
    np.testing.assert_allclose(got[real], want[real], rtol=1e-3, atol=1e-5)
    assert np.abs(past - want)[real].max() > 1e-2


def test_only_the_loss_of_alignment_is_about_the_second_pass():
    model, params = watching()
    same = BATCH.tgt.segments[:, :, None] == BATCH.src.segments[:, None, :]
    same &= (BATCH.tgt.segments != 0)[..., None]
    linked = same & (np.random.default_rng(0).random(same.shape) < 0.4)
    bits = (linked.astype(np.uint32) << np.arange(16, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    batch = BATCH._replace(links=bits[..., None])
    losses = {"coverage": 0.5, "alignment": 2.0}
    full, past = (
        jax.jit(make_loss_fn(model, 0.1, auxiliary=losses, full_context=on))(params, batch)
        for on in (True, False)
    )
    seen = {method: weights(model, params, BATCH, method) for method in ("decode", "align")}
    for sums, name, loss, method in (
        (full, "alignment", alignment, "align"),
        (past, "alignment", alignment, "decode"),
        (full, "coverage", coverage, "decode"),
    ):
        want = losses[name] * float(loss(seen[method], batch))
        assert sums.auxiliary[name] == pytest.approx(want, rel=1e-5)
    assert abs(full.auxiliary["alignment"] - past.auxiliary["alignment"]) > 0.1
    assert full.nats == pytest.approx(float(past.nats), rel=1e-6)
