"""Wait-k: what is not read yet changes nothing, in training, packed rows and search."""

import functools

import jax
import numpy as np
import pytest

from tests.fixtures.tiny import lay_out, model_inputs, random_pairs, random_params, tiny_model
from transformer_jax.config.checks import check
from transformer_jax.config.schema import Config, ModelConfig
from transformer_jax.errors import ConfigError

SOURCE, TARGET = 9, 7
PAIRS = random_pairs(5, [(4, 3), (SOURCE, TARGET)])


@functools.cache
def forward(**changes):
    model = tiny_model(num_layers=2, **changes)
    params = random_params(model)
    return jax.jit(lambda batch: model.apply({"params": params}, *model_inputs(batch)))


@pytest.mark.parametrize("k", [1, 3, SOURCE])
@pytest.mark.parametrize("decoder", ["transformer", "average"])
def test_a_target_position_depends_on_the_source_subwords_that_are_read_and_no_others(k, decoder):
    """The second sentence of a packed row; position t, from 0, sees the first k + t subwords."""
    apply = forward(wait_k=k, decoder=decoder)
    batch = lay_out(PAIRS, [[0, 1]], 16, 12)
    own, said = batch.src.segments[0] == 2, batch.tgt.segments[0] == 2
    before = np.asarray(apply(batch))[0, said]
    for changed in range(SOURCE):
        ids = np.array(batch.src.ids)
        ids[0, np.flatnonzero(own)[changed]] += 1
        after = np.asarray(apply(batch._replace(src=batch.src._replace(ids=ids))))[0, said]
        moved = (after != before).any(-1)
        assert moved.tolist() == [changed < k + t for t in range(TARGET)]


def test_who_waits_for_the_end_is_a_model_with_a_one_way_encoder():
    batch = lay_out(PAIRS, [[0, 1]], 16, 12)
    real = batch.tgt.segments[0] != 0
    late, later, never = (
        np.asarray(forward(**changes)(batch))[0, real]
        for changes in ({"wait_k": SOURCE}, {"wait_k": 50}, {})
    )
    np.testing.assert_array_equal(late, later)
    assert np.abs(late - never).max() > 0.01, "its encoder reads both ways"


@pytest.mark.parametrize("changes", [{"encoder": "recurrent"}, {"decoder": "convolutional"}])
def test_attention_that_always_sees_everything_is_refused(changes):
    with pytest.raises(ConfigError, match="model.wait_k=3 is for attention that can leave out"):
        check(Config(model=ModelConfig(wait_k=3, **changes)))
