"""Wait-k: what is not read yet changes nothing, in training, packed rows and search."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import (
    lay_out,
    model_inputs,
    random_pairs,
    random_params,
    tiny_and_params,
    tiny_model,
)
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.patterns import waiting_place
from transformer_jax.model.interfaces import Place
from transformer_jax.model.layers.dropout import hashed

SOURCE, TARGET = 9, 7
PAIRS = random_pairs(5, [(4, 3), (SOURCE, TARGET)])


@pytest.mark.parametrize("k", [1, 3, SOURCE])
@pytest.mark.parametrize("decoder", ["transformer", "average"])
def test_a_target_position_depends_on_the_source_subwords_that_are_read_and_no_others(k, decoder):
    """The second sentence of a packed row; position t, from 0, sees the first k + t subwords."""
    model, params = tiny_and_params(wait_k=k, decoder=decoder)
    apply = jax.jit(lambda batch: model.apply({"params": params}, *model_inputs(batch)))
    batch = lay_out(PAIRS, [[0, 1]], 16, 12)
    own, written = batch.src.segments[0] == 2, batch.tgt.segments[0] == 2
    before = np.asarray(apply(batch))[0, written]
    for changed in range(SOURCE):
        ids = np.array(batch.src.ids)
        ids[0, np.flatnonzero(own)[changed]] += 1
        after = np.asarray(apply(batch._replace(src=batch.src._replace(ids=ids))))[0, written]
        moved = (after != before).any(-1)
        assert moved.tolist() == [changed < k + t for t in range(TARGET)]


@pytest.mark.parametrize(
    "memory", first_quick(["coverage", "coverage_gru", "coverage_embedding"], 1)
)
def test_a_memory_begins_anew_in_each_sentence_whatever_the_row_s_k(memory):
    """A sentence of a packed row has the logits that it has alone, in training too."""
    model, params = tiny_and_params(wait_k=2, wait_k_max=6, attention_memory=memory, num_layers=1)
    key = {"dropout": hashed(jax.random.key(2))}
    run = jax.jit(lambda sides, rows: model.apply({"params": params}, *sides, rows, rngs=key))
    packed, alone = (lay_out(PAIRS, [numbers] * 6, 16, 12) for numbers in ([0, 1], [1]))
    got, want = (
        np.asarray(run(model_inputs(batch), np.arange(6)))[:, own]
        for batch, own in (
            (packed, packed.tgt.segments[0] == 2),
            (alone, alone.tgt.segments[0] == 1),
        )
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert np.abs(want - want[:1]).max() > 1e-3, "rows have different k"


def test_each_row_of_a_step_waits_for_a_k_of_its_own():
    """Equal rows: each has the logits of a model with one k, whatever rows are beside it.

    The first layer, whose weights are watched, computes equation 1; the second uses the kernel.
    """
    smallest, largest, rows = 2, 3, 8
    plain = tiny_model(wait_k=smallest, wait_k_max=largest)
    fused = dataclasses.replace(plain.config, attention_kernel="fused")
    model = plain.clone(config=fused, watch=True)
    params = {"params": random_params(model)}
    batch = lay_out(PAIRS, [[0, 1]] * rows, 16, 12)
    real = batch.tgt.segments[0] != 0
    one = jax.tree.map(lambda x: x[:1], batch)
    of_k = {
        k: np.asarray(jax.jit(own.apply)(params, *model_inputs(one)))[0, real]
        for k in range(smallest, largest + 1)
        for own in [plain.for_search(None, False, k)]
    }
    apply = jax.jit(
        lambda rows_B, key: model.apply(params, *model_inputs(batch), rows_B, rngs={"dropout": key})
    )

    def drawn(rows_B: list[int], seed: int) -> list[int]:
        key = hashed(jax.random.key(seed))
        logits = np.asarray(apply(np.array(rows_B), key))[:, real]
        errors = {k: abs(logits - want).max((1, 2)) for k, want in of_k.items()}
        ks = [min(errors, key=lambda k: errors[k][row]) for row in range(rows)]
        assert all(errors[k][row] < 1e-5 for row, k in enumerate(ks))
        return ks

    first = drawn([*range(rows)], 1)
    assert drawn([*range(rows)], 1) == first and drawn([*range(rows)], 2) != first
    others = [3, 0, 7, 2, 5, 1, 4, 6]
    assert drawn(others, 1) == [first[row] for row in others]
    without = np.asarray(jax.jit(plain.apply)(params, *model_inputs(one)))[0, real]
    np.testing.assert_allclose(without, of_k[smallest], atol=1e-5)


def test_every_k_is_drawn_equally_often():
    config = ModelConfig(wait_k=3, wait_k_max=7)
    place = Place(np.ones((5_000, 1), np.int32), np.zeros((5_000, 1), np.int32))
    draws = [
        3 + np.asarray(waiting_place(config, place, np.uint32(word), np.arange(5_000)).positions)
        for word in (0, 123_456_789)
    ]
    for ks in draws:
        assert np.unique(ks).tolist() == [3, 4, 5, 6, 7]
        np.testing.assert_allclose(np.bincount(ks[:, 0])[3:], 1_000, atol=5 * 800**0.5)
    assert 0.15 < (draws[0] == draws[1]).mean() < 0.25, "steps are independent"
