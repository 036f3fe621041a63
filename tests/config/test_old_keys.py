"""Keys of earlier versions, converted on nested dicts."""

import json

import pytest

from transformer_jax.config.old_keys import upgraded
from transformer_jax.config.schema import SECTIONS
from transformer_jax.config.serialization import from_json
from transformer_jax.errors import ConfigError


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_the_kind_of_the_model_becomes_its_encoder_and_its_decoder(kind):
    tree = {"model": {"d_model": 8, "kind": kind}, "seed": 1}
    model = {"d_model": 8, "encoder": kind, "decoder": kind}
    assert upgraded(tree) == {"model": model, "seed": 1}


@pytest.mark.parametrize(("scaled", "score"), [(True, "scaled_dot"), (False, "dot")])
def test_scaled_attention_becomes_a_score(scaled, score):
    assert upgraded({"model": {"scale_attention": scaled}}) == {"model": {"score": score}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"decode": {"tokens_per_batch": 10**9}}, {"decode": {"tokens_per_batch": 10**6}}),
        ({"decode": {"max_extra_length": 10**9}}, {"decode": {"max_extra_length": 10**6}}),
        ({"decode": {"max_extra_length": 50}}, {"decode": {"max_extra_length": 50}}),
    ],
)
def test_a_value_that_has_a_limit_now_is_lowered_to_it(old, new):
    assert upgraded(old) == new


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
    ],
)
def test_a_tree_without_old_keys_stays_as_it_is(tree):
    assert upgraded(tree) == tree


def test_an_old_key_beside_its_replacement_is_left_to_be_reported():
    tree = {"model": {"kind": "recurrent", "decoder": "transformer"}}
    assert upgraded(tree) == tree


def test_upgrading_does_not_change_its_argument():
    tree = {"model": {"kind": "recurrent"}, "decode": {"tokens_per_batch": 10**9}}
    upgraded(tree)
    assert tree == {"model": {"kind": "recurrent"}, "decode": {"tokens_per_batch": 10**9}}


def test_a_run_from_before_data_seed_has_the_split_of_its_seed():
    def seed(**changes):
        return from_json(json.dumps({**dict.fromkeys(SECTIONS, {}), **changes})).data.seed

    assert seed(seed=5, data={"path": "x"}) == 5
    assert seed(seed=5, data={"path": "x", "seed": 2}) == 2
    assert seed(data={"path": "x"}) == 0
