"""Keys of earlier versions, converted on nested dicts."""

import copy
import json

import pytest

from transformer_jax.config.old_keys import upgraded
from transformer_jax.config.schema import SECTIONS
from transformer_jax.config.serialization import from_json
from transformer_jax.errors import ConfigError

OLD_MODEL = {"d_model": 8, "kind": "recurrent"}
NEW_MODEL = {"d_model": 8, "encoder": "recurrent", "decoder": "recurrent"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"model": OLD_MODEL, "seed": 1}, {"model": NEW_MODEL, "seed": 1}),
        ({"model": {"scale_attention": True}}, {"model": {"score": "scaled_dot"}}),
        ({"model": {"scale_attention": False}}, {"model": {"score": "dot"}}),
        ({"train": {"data_workers": 2}}, {"train": {}}),
        # A value that has a limit now is lowered to it.
        ({"decode": {"tokens_per_batch": 10**9}}, {"decode": {"tokens_per_batch": 10**6}}),
        ({"decode": {"max_extra_length": 10**9}}, {"decode": {"max_extra_length": 10**6}}),
    ],
)
def test_what_is_old_is_replaced_in_a_copy(old, new):
    before = copy.deepcopy(old)
    assert upgraded(old) == new
    assert old == before


@pytest.mark.parametrize("value", ["false", 0, None])
def test_a_value_that_an_old_key_never_had_is_refused(value):
    with pytest.raises(ConfigError, match="model.scale_attention=.* is neither true nor false"):
        upgraded({"model": {"scale_attention": value}})


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"model": {}},
        {"model": {"encoder": "transformer", "decoder": "recurrent", "score": "dot"}},
        {"model": 3, "data": None},  # not a config, which is reported later
        {"vocabulary": {"kind": "bpe"}},  # "kind" is old in "model" only
        {"decode": {"max_extra_length": 50}},
        # An old key and its replacement could disagree, which is reported later.
        {"model": {"kind": "recurrent", "decoder": "transformer"}},
    ],
)
def test_any_other_tree_stays_as_it_is(tree):
    assert upgraded(tree) == tree


def test_a_run_from_before_data_seed_has_the_split_of_its_seed():
    def seed(**changes):
        return from_json(json.dumps({**dict.fromkeys(SECTIONS, {}), **changes})).data.seed

    assert seed(seed=5, data={"path": "x"}) == 5
    assert seed(seed=5, data={"path": "x", "seed": 2}) == 2
    assert seed(data={"path": "x"}) == 0
