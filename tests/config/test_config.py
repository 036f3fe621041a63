"""The schema, its way through ConfigDicts and JSON, what check refuses, and the presets."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict, config_flags

from transformer_jax.config.checks import AT_LEAST, CHOICES, INTERVALS, check
from transformer_jax.config.files import load_config, split_overrides
from transformer_jax.config.schema import (
    KEYS,
    Config,
    Key,
    default_config_dict,
    free_differences,
    from_config_dict,
    from_json,
    identity_differences,
    nearest_key,
    to_config_dict,
    to_dict,
    to_json,
    value_at,
    with_absolute_paths,
    with_values,
)
from transformer_jax.errors import ConfigError

ROOT = Path(__file__).parents[2]
PRESETS = sorted(f"configs/{path.name}" for path in (ROOT / "configs").glob("*.py"))
GOOD = {"data.source": "grammar"}  # the smallest diff that makes the defaults a config that can be

# Each diff, and what its error must say: key, value, what is allowed or the mend.
BAD: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"model.num_layers": 0}, ("model.num_layers=0 is below 1", "default is 6")),
    ({"model.d_model": -8}, ("model.d_model=-8 is below 1", "default is 512")),
    ({"model.num_heads": 0}, ("model.num_heads=0 is below 1",)),
    ({"model.d_k": 0}, ("model.d_k=0 is below 1", "default is None")),
    ({"model.d_v": -1}, ("model.d_v=-1 is below 1",)),
    ({"model.d_ff": 0}, ("model.d_ff=0 is below 1",)),
    ({"model.dropout": 1.0}, ("model.dropout=1.0 is not in [0, 1)", "paper uses 0.1")),
    ({"model.dropout": -0.1}, ("model.dropout=-0.1 is not in [0, 1)",)),
    ({"model.dropout": math.nan}, ("model.dropout=nan is not in [0, 1)",)),
    ({"model.norm": "pots"}, ("model.norm='pots'", "valid choices: 'post', 'pre'", "mean 'post'")),
    ({"model.positions": "rotary"}, ("model.positions='rotary'", "'sinusoidal', 'learned'")),
    ({"model.dtype": "float16"}, ("model.dtype='float16'", "'float32', 'bfloat16'")),
    ({"model.max_positions": 0}, ("model.max_positions=0 is below 1",)),
    ({"model.num_heads": 7}, ("model.d_model=512", "model.num_heads=7", "set model.d_k")),
    ({"model.d_model": 511, "model.d_k": 64}, ("model.d_model=511 is odd", "'learned'")),
    (
        {"model.positions": "learned", "model.max_positions": 100},
        ("model.max_positions=100 is too small for data.max_length=128", "lower the second"),
    ),
    (
        {"model.positions": "learned", "model.max_positions": 200},
        (
            "model.max_positions=200 is too small for train.row_length=256",
            "model.max_positions=200 is too small for decode.max_length=512",
        ),
    ),
    ({"data.source": "file"}, ("data.source='file'", "valid choices", "mean 'files'")),
    ({"data.source": "files"}, ("data.path is not set", "--config.data.path=FOLDER")),
    ({"data.source": "tfds"}, ("data.name is not set", "--config.data.name=wmt14_translate")),
    ({"data.tgt": "fr"}, ("data.tgt='fr'", "'en' and 'de'", "data.source='files'")),
    ({"data.src": "de"}, ("data.src='de', data.tgt='de'",)),
    (
        {"data.source": "files", "data.path": "x", "data.src": "de"},
        ("data.src='de', data.tgt='de' must be two different suffixes",),
    ),
    (
        {"data.source": "files", "data.path": "x", "data.src": ""},
        ("data.src=''", "such as 'en' and 'de'"),
    ),
    ({"data.train": ()}, ("data.train is empty", "('train',)")),
    ({"data.valid": ()}, ("data.valid is empty", "('valid',)")),
    ({"data.train": ("a,b",)}, ("data.train holds 'a,b'", "repeat the flag")),
    ({"data.valid": ("",)}, ("data.valid holds ''",)),
    ({"data.pairs": 0}, ("data.pairs=0 is below 1",)),
    ({"data.max_length": 1}, ("data.max_length=1 is below 2",)),
    ({"data.max_length": 257}, ("data.max_length=257 is above train.row_length=256", "Lower")),
    ({"vocabulary.size": 260}, ("vocabulary.size=260 is below 261", "256 bytes")),
    ({"vocabulary.kind": "word"}, ("vocabulary.kind='word'", "'bpe', 'unigram'")),
    ({"vocabulary.normalization": "nfc"}, ("vocabulary.normalization='nfc'", "'identity'")),
    ({"vocabulary.max_lines": 0}, ("vocabulary.max_lines=0 is below 1",)),
    ({"train.steps": 0}, ("train.steps=0 is below 1", "100000 (base)")),
    ({"train.tokens_per_batch": 0}, ("train.tokens_per_batch=0 is below 1",)),
    ({"train.row_length": 1}, ("train.row_length=1 is below 2",)),
    ({"train.rows_multiple": 0}, ("train.rows_multiple=0 is below 1",)),
    ({"train.label_smoothing": 1.0}, ("train.label_smoothing=1.0 is not in [0, 1)", "0.1")),
    ({"train.schedule": "cosin"}, ("train.schedule='cosin'", "mean 'cosine'")),
    ({"train.peak_learning_rate": 0.0}, ("train.peak_learning_rate=0.0 is not in (0, 3.4e+38)",)),
    ({"train.peak_learning_rate": math.inf}, ("train.peak_learning_rate=inf",)),
    ({"train.warmup_steps": 0}, ("train.warmup_steps=0", "at least 1")),
    ({"train.warmup_steps": 0, "train.peak_learning_rate": 1e-3}, ("train.warmup_steps=0",)),
    (
        {"train.warmup_steps": 0, "train.schedule": "linear", "train.decay_steps": 9},
        ("train.warmup_steps=0", "or set train.peak_learning_rate"),
    ),
    ({"train.warmup_steps": -1}, ("train.warmup_steps=-1 is below 0",)),
    ({"train.schedule": "linear"}, ("train.decay_steps=None", "often train.steps=100000")),
    (
        {"train.schedule": "cosine", "train.decay_steps": 4_000},
        ("train.decay_steps=4000 must be above train.warmup_steps=4000", "'cosine'"),
    ),
    ({"train.adam_b1": 1.0}, ("train.adam_b1=1.0 is not in [0, 1)", "0.9")),
    ({"train.adam_b2": 1.5}, ("train.adam_b2=1.5 is not in [0, 1)", "0.98")),
    ({"train.adam_epsilon": 0.0}, ("train.adam_epsilon=0.0 is not in (0, 3.4e+38)",)),
    ({"train.clip_norm": 0.0}, ("train.clip_norm=0.0 is not in (0, 3.4e+38)", "None turns")),
    ({"train.accumulate_steps": 0}, ("train.accumulate_steps=0 is below 1",)),
    ({"train.max_skipped": 0}, ("train.max_skipped=0 is below 1",)),
    ({"train.init_from": ""}, ("train.init_from=''", "a run's folder")),
    ({"train.log_every": 0}, ("train.log_every=0 is below 1",)),
    ({"train.valid_every": 0}, ("train.valid_every=0 is below 1",)),
    ({"train.checkpoint_every": 0}, ("train.checkpoint_every=0 is below 1",)),
    ({"train.keep_last": 0}, ("train.keep_last=0 is below 1",)),
    ({"train.data_workers": -1}, ("train.data_workers=-1 is below 0",)),
    ({"mesh.data": 0}, ("mesh.data=0", "at least 1, or -1")),
    ({"mesh.tensor": -2}, ("mesh.tensor=-2", "at least 1, or -1")),
    ({"mesh.fsdp": -1}, ("mesh.data and mesh.fsdp are both -1", "only one")),
    ({"decode.beam_size": 0}, ("decode.beam_size=0 is below 1", "greedy")),
    ({"decode.length_penalty": -0.5}, ("decode.length_penalty=-0.5 is not in [0, 3.4e+38)",)),
    ({"decode.max_extra_length": -1}, ("decode.max_extra_length=-1 is below 0",)),
    ({"decode.max_length": 1}, ("decode.max_length=1 is below 2",)),
    ({"decode.tokens_per_batch": 511}, ("decode.tokens_per_batch=511 is below decode.max_length",)),
    ({"seed": -1}, ("seed=-1 is below 0",)),
    ({"seed": 2**32}, ("seed=4294967296 is above 4294967295",)),
]

# What stands just inside the limits above.
FINE: list[dict[str, Any]] = [
    {},
    {"model.num_heads": 7, "model.d_k": 64},
    {"model.d_model": 511, "model.d_k": 64, "model.positions": "learned"},
    {"model.dropout": 0.0, "train.label_smoothing": 0.0, "decode.length_penalty": 0.0},
    {
        "model.positions": "learned",
        "model.max_positions": 128,
        "train.row_length": 128,
        "decode.max_length": 128,
    },
    {"data.src": "de", "data.tgt": "en", "data.test": ()},
    {"data.max_length": 256},
    {"vocabulary.size": 261, "seed": 2**32 - 1},
    {"train.schedule": "linear", "train.decay_steps": 4_001},
    {"train.schedule": "constant", "train.warmup_steps": 0, "train.peak_learning_rate": 1e-3},
    {"mesh.data": 1, "mesh.tensor": -1},
    {"decode.tokens_per_batch": 512, "decode.max_extra_length": 0, "decode.beam_size": 1},
]


def name_of(case: object) -> str:
    return ",".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else ""


@pytest.mark.parametrize(("diff", "said"), BAD, ids=name_of)
def test_check_names_key_value_and_mend(diff, said):
    with pytest.raises(ConfigError) as caught:
        check(with_values(Config(), GOOD | diff))
    message = str(caught.value)
    assert all(words in message for words in said), message
    assert "\n" not in message


@pytest.mark.parametrize("diff", FINE, ids=name_of)
def test_check_allows_what_stands_just_inside_the_limits(diff):
    check(with_values(Config(), GOOD | diff))


def test_check_says_all_that_is_wrong():
    with pytest.raises(ConfigError, match=r"model.dropout=2.0.*train.steps=0"):
        check(with_values(Config(), {"model.dropout": 2.0, "train.steps": 0}))


def test_every_number_has_limits_and_every_rule_has_a_key():
    ruled = CHOICES.keys() | AT_LEAST.keys() | INTERVALS.keys()
    numbers = {name for name, key in KEYS.items() if key.kind in (int, float)}
    assert numbers - ruled == {"mesh.data", "mesh.fsdp", "mesh.tensor"}
    assert ruled <= KEYS.keys()
    assert all(KEYS[name].kind is int for name in AT_LEAST)
    assert all(KEYS[name].kind is float for name in INTERVALS)


# Types and unknown keys ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"model": {"d_model": "512"}}, "model.d_model='512' is of type str; expected int."),
        ({"model": {"d_model": 512.0}}, "model.d_model=512.0 is of type float; expected int."),
        ({"model": {"d_model": True}}, "model.d_model=True is of type bool; expected int."),
        ({"model": {"d_model": None}}, "model.d_model=None is of type NoneType; expected int."),
        ({"model": {"d_k": "x"}}, "model.d_k='x' is of type str; expected int or None."),
        ({"model": {"dropout": "0.1"}}, "model.dropout='0.1' is of type str; expected float."),
        ({"model": {"tie_embeddings": 1}}, "model.tie_embeddings=1 is of type int; expected bool."),
        (
            {"data": {"train": "train"}},
            "data.train='train' is of type str; expected a list of str.",
        ),
        ({"data": {"train": [1]}}, "data.train=[1] is of type list; expected a list of str."),
        ({"seed": 0.5}, "seed=0.5 is of type float; expected int."),
        ({"model": 3}, "model=3 is not a section; expected a mapping with model.kind"),
    ],
)
def test_a_wrong_type_is_named_with_what_was_expected(tree, said):
    with pytest.raises(ConfigError) as caught:
        from_config_dict(tree)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("given_name", "nearest"),
    [
        ("model.d_modle", "model.d_model"),
        ("model.steps", "train.steps"),  # the right word in the wrong section
        ("train.num_heads", "model.num_heads"),
        ("modle.d_k", "model.d_k"),
        ("d_model", "model.d_model"),
        ("beam_sise", "decode.beam_size"),
        ("sed", "seed"),
        ("train.max_lenght", "decode.max_length"),
        ("data.max_lenght", "data.max_length"),
        ("train.warmup", "train.warmup_steps"),
        ("data.nothing_like_it", None),
        ("zebra", None),
    ],
)
def test_the_nearest_key_is_offered(given_name, nearest):
    assert nearest_key(given_name) == nearest
    with pytest.raises(ConfigError) as caught:
        with_values(Config(), {given_name: 1})
    mend = f"Did you mean {nearest}?" if nearest else "Known keys: "
    assert str(caught.value).startswith(f"{given_name} is not a key of the config. {mend}")


@pytest.mark.parametrize("tree", [{"model": {"d_modle": 1}}, {"d_modle": 1}, {"modle": {}}])
def test_an_unknown_key_of_a_config_file_is_refused(tree):
    with pytest.raises(ConfigError, match=r"d?_?modle is not a key of the config"):
        from_config_dict(tree)


def test_a_section_is_no_key():
    with pytest.raises(ConfigError, match="model is a section of the config.*model.d_model"):
        with_values(Config(), {"model": 1})


def test_an_int_serves_as_a_float_and_a_list_as_a_tuple():
    config = from_config_dict({"decode": {"length_penalty": 1}, "data": {"train": ["a", "b"]}})
    assert type(config.decode.length_penalty) is float
    assert config.data.train == ("a", "b")


# Round trips -----------------------------------------------------------------------------------


def values_of(key: Key) -> st.SearchStrategy:
    values = {
        int: st.integers(-(2**70), 2**70),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(),
        tuple: st.lists(st.text(), max_size=3).map(tuple),
    }[key.kind]
    return st.none() | values if key.optional else values


@given(st.fixed_dictionaries({}, optional={name: values_of(key) for name, key in KEYS.items()}))
def test_any_config_comes_back_from_json_dict_and_config_dict(values):
    config = with_values(Config(), values)
    assert all(value_at(config, name) == value for name, value in values.items())
    assert from_json(to_json(config)) == config
    assert from_config_dict(to_dict(config)) == config
    assert from_config_dict(to_config_dict(config)) == config


def test_a_config_without_a_key_takes_its_default():
    tree = json.loads(to_json(Config()))
    del tree["model"]["norm"], tree["mesh"]
    assert from_config_dict(tree) == Config()


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_json_that_is_no_config_is_refused(text):
    with pytest.raises(ConfigError, match="config is"):
        from_json(text)


def test_the_default_config_dict_holds_every_key_with_its_type():
    tree = default_config_dict()
    for name, key in KEYS.items():
        *sections, last = name.split(".")
        holder = tree[sections[0]] if sections else tree
        assert holder[last] == key.default
        assert issubclass(holder.get_type(last), key.kind), name
    with pytest.raises(TypeError):
        tree.model.d_k = "wide"


def test_identity_differences_name_contradicting_keys_and_no_free_one():
    old = Config()
    free = {
        "mesh.data": 2,
        "data.path": "elsewhere",
        "train.steps": 5,
        "train.accumulate_steps": 2,
        "train.remat": True,
        "decode.beam_size": 9,
        "train.checkpoint_every": 7,
    }
    assert identity_differences(old, with_values(old, free)) == []
    new = with_values(old, free | {"model.num_heads": 4, "seed": 1, "data.train": ("other",)})
    assert identity_differences(old, new) == [
        "model.num_heads: the run has 8, the config now says 4",
        "data.train: the run has ('train',), the config now says ('other',)",
        "seed: the run has 0, the config now says 1",
    ]


def test_what_shapes_the_weights_or_the_batches_is_identity():
    for name, key in KEYS.items():
        if name == "vocabulary.path":
            assert key.free, "the run has its own vocabulary, and compares contents"
        elif name.startswith(("model.", "vocabulary.")) or name == "seed":
            assert not key.free, name
        if name.startswith(("mesh.", "decode.")) or name.endswith("_every"):
            assert key.free, name
    for name in ("tokens_per_batch", "row_length", "rows_multiple", "label_smoothing", "adam_b2"):
        assert not KEYS[f"train.{name}"].free, name


def test_the_schema_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 1


# Command-line overrides ------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEYS)
def test_every_key_can_be_overridden(name):
    key = KEYS[name]
    text, value = {
        int: ("16", 16),
        float: ("0.25", 0.25),
        bool: ("false", False),
        str: ("word", "word"),
        tuple: ("('a', 'b')", ("a", "b")),
    }[key.kind]
    _, overrides = split_overrides([f"--config.{name}={text}"])
    assert overrides == {name: value}
    assert value_at(with_values(Config(), overrides), name) == value
    if key.optional:
        _, overrides = split_overrides([f"--config.{name}={text}", f"--config.{name}=none"])
        assert overrides == {name: None}


def test_every_key_can_be_overridden_through_ml_collections_too(in_checkout):
    from absl import flags

    arguments = ["", "--config=configs/wmt14.py:big", "--config.model.d_k=16", "--config.seed=3"]
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=arguments)
    values(arguments)
    config = from_config_dict(holder.value)
    assert (config.model.d_k, config.seed, config.model.d_model) == (16, 3, 1024)


@pytest.mark.parametrize(
    ("arguments", "overrides"),
    [
        (["--config.train.remat"], {"train.remat": True}),
        (["--noconfig.model.tie_embeddings"], {"model.tie_embeddings": False}),
        (["-config.seed", "3"], {"seed": 3}),
        (["--config.data.path=a=b:c"], {"data.path": "a=b:c"}),
        (["--config.data.path="], {"data.path": ""}),
        (["--config.model.positions=none"], {"model.positions": "none"}),  # a choice, not "unset"
        (["--config.data.train=a", "--config.data.train=b"], {"data.train": ("a", "b")}),
        (["--config.data.train=2013"], {"data.train": ("2013",)}),
        (["--config.data.valid=()"], {"data.valid": ()}),
        (["--config.seed=1", "--config.seed=2"], {"seed": 2}),
        (["--config.model.d_k=none", "--config.model.d_k=8"], {"model.d_k": 8}),
    ],
)
def test_forms_of_an_override(arguments, overrides):
    assert split_overrides(["--x=1", *arguments, "y"]) == (["--x=1", "y"], overrides)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--config.model.d_k=abc", "--config.model.d_k=abc: expected int or none."),
        ("--config.model.d_model=none", "--config.model.d_model=none: expected int."),
        ("--config.model.d_model=1e3", "--config.model.d_model=1e3: expected int."),
        ("--config.model.dropout=much", "--config.model.dropout=much: expected float."),
        ("--config.train.remat=maybe", "--config.train.remat=maybe: expected true or false."),
        ("--config.data.train=a b,", "expected a list, such as ('a','b')."),
        ("--config.seed", "--config.seed needs a value: --config.seed=VALUE."),
        ("--noconfig.seed", "--noconfig.seed: only --noconfig.KEY of a true-or-false key"),
        ("--config.model.d_modle=3", "Did you mean model.d_model?"),
        ("--config.model=3", "model is a section"),
    ],
)
def test_an_override_that_cannot_be_is_one_clear_line(argument, said):
    with pytest.raises(ConfigError) as caught:
        split_overrides([argument])
    assert said in str(caught.value)


# Config files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_loads_and_differs_from_the_defaults(preset, in_checkout):
    config = load_config(preset, {"data.path": "somewhere"})
    assert config != with_values(Config(), {"data.path": "somewhere"})


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_says_paper_device_and_command(preset):
    docstring = (ROOT / preset).read_text().split('"""')[1]
    for word in (
        "Paper: ",
        "Expected",
        "Device: ",
        "python -m transformer_jax train --config=" + preset,
    ):
        assert word in docstring, word


def test_multi30k_takes_its_folder_from_the_environment(in_checkout, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", "somewhere")
    assert load_config("configs/multi30k.py").data.path == "somewhere/multi30k"
    monkeypatch.delenv("TRANSFORMER_JAX_DATA")
    assert load_config("configs/multi30k.py").data.path == "data/multi30k"


def test_the_paper_s_recipe_is_whole(in_checkout):
    """Sections 5 and 6.1, table 3's rows base and big; the numbers are the paper's."""
    base = load_config("configs/wmt14.py")
    model, train, decode = base.model, base.train, base.decode
    assert (model.num_layers, model.d_model, model.d_ff, model.num_heads) == (6, 512, 2048, 8)
    assert (model.d_k, model.d_v, model.dropout, model.norm) == (None, None, 0.1, "post")
    assert (model.positions, model.tie_embeddings) == ("sinusoidal", True)
    assert (train.steps, train.tokens_per_batch, train.warmup_steps) == (100_000, 25_000, 4_000)
    assert (train.schedule, train.peak_learning_rate) == ("rsqrt", None)
    assert (train.adam_b1, train.adam_b2, train.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (train.label_smoothing, train.clip_norm) == (0.1, None)
    assert (train.keep_last, train.checkpoint_every) == (20, 1_400)
    assert (decode.beam_size, decode.length_penalty, decode.max_extra_length) == (4, 0.6, 50)
    assert (base.vocabulary.size, base.vocabulary.kind) == (37_000, "bpe")
    assert (base.data.source, base.data.name) == ("tfds", "wmt14_translate/de-en")
    assert (base.data.src, base.data.tgt, base.data.valid) == ("en", "de", ("validation",))

    big = load_config("configs/wmt14.py:big")
    model, train = big.model, big.train
    assert (model.num_layers, model.d_model, model.d_ff, model.num_heads) == (6, 1024, 4096, 16)
    assert (model.dropout, train.steps, train.checkpoint_every) == (0.3, 300_000, 600)

    french = load_config("configs/wmt14.py:en-fr,big")
    assert (french.model.dropout, french.vocabulary.size, french.data.tgt) == (0.1, 32_000, "fr")
    assert french.data.name == "wmt14_translate/fr-en"
    assert french == load_config("configs/wmt14.py:big,en-fr")
    assert load_config("configs/wmt14.py:base,en-fr").model.dropout == 0.1


@pytest.mark.parametrize(
    "argument", ["huge", "big,base", "en-de,en-fr", "big,,en-de", "big;en-de", ""]
)
def test_an_argument_of_wmt14_that_cannot_be_lists_the_choices(argument, in_checkout):
    said = (
        f"configs/wmt14.py:{argument}: valid choices are one of base, big and one of en-de, en-fr"
    )
    with pytest.raises(ConfigError, match=f"^{said}"):
        load_config(f"configs/wmt14.py:{argument}")


@pytest.mark.parametrize(
    ("content", "argument", "said"),
    [
        ("def get_config(): return 1 +", "", r"preset.py, line 1: SyntaxError: invalid syntax"),
        ("x = 1\ny = x / 0", "", r"preset.py, line 2: ZeroDivisionError: division by zero"),
        ("def f(): return 1 / 0\ndef get_config(): return f()", "", r"preset.py, line 1: Zero"),
        ("import nowhere_at_all", "", r"preset.py, line 1: ModuleNotFoundError: .*nowhere_at_all"),
        ("x = 1", "", r"preset.py has no function get_config"),
        ("def get_config(): return None", "", r"get_config returned NoneType, not a ConfigDict"),
        ("def get_config(): return {}", ":big", r"takes no argument: --config=.*preset.py\.$"),
        ("def get_config(size): return {}", "", r"needs one: --config=.*preset.py:ARGUMENT"),
        ("def get_config(): return {'modle': 1}", "", r"modle is not a key.*mean model|Known keys"),
        ("def get_config(): return {'model': {'d_model': 7}}", "", r"model.d_model=7 is not div"),
    ],
)
def test_a_config_file_that_fails_is_one_clear_line(content, argument, said, tmp_path):
    path = tmp_path / "preset.py"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(f"{path}{argument}")
    assert "\n" not in str(caught.value)


def test_a_misspelt_key_in_a_config_file_is_refused(tmp_path):
    path = tmp_path / "preset.py"
    path.write_text(
        "from transformer_jax.config.schema import default_config_dict\n"
        "def get_config():\n"
        "    config = default_config_dict()\n"
        "    config.model.d_modle = 3\n"
        "    return config\n"
    )
    with pytest.raises(ConfigError, match="model.d_modle is not a key.*Did you mean model.d_model"):
        load_config(str(path))


def test_a_missing_config_file_names_the_nearest(in_checkout):
    with pytest.raises(
        ConfigError, match="configs/dmeo.py: there is no such file.*configs/demo.py"
    ):
        load_config("configs/dmeo.py")


def test_a_partial_config_file_is_a_diff_against_the_defaults(tmp_path):
    path = tmp_path / "preset.py"
    path.write_text("def get_config(): return {'data': {'source': 'grammar'}}")
    assert load_config(str(path)) == with_values(Config(), GOOD)
    config = load_config(str(path), {"model.d_k": 16, "data.train": ("a",)})
    assert (config.model.d_k, config.data.train) == (16, ("a",))
    assert isinstance(to_config_dict(config), ConfigDict)


# Between two calls of `train` -------------------------------------------------------------------


def test_free_keys_that_differ_are_told_with_both_values():
    old = Config()
    new = with_values(old, {"train.steps": 7, "mesh.fsdp": 2, "model.d_ff": 32})
    assert free_differences(old, new) == [
        "train.steps is 7 (was 100000)",
        "mesh.fsdp is 2 (was 1)",
    ]
    assert free_differences(old, old) == []


def test_paths_hold_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")

    def absolute(path: str) -> str | None:
        return with_absolute_paths(with_values(Config(), {"data.path": path})).data.path

    assert absolute("data/text") == str(tmp_path / "data" / "text")
    assert absolute("~/text") == "/home/somebody/text"
    assert absolute("/data") == "/data"
    assert absolute("gs://bucket/tfds") == "gs://bucket/tfds"
    assert with_absolute_paths(Config()) == Config()
