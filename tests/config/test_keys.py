"""The config's keys: what they declare, the key that a name means, old keys, and their page."""

import copy
import dataclasses
import json

import pytest

from tests.fixtures.cases import refused
from tests.tiny_runs import command
from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.files import split_overrides
from transformer_jax.config.keys import key, keys_of
from transformer_jax.config.old_keys import upgraded
from transformer_jax.config.schema import KEYS, SECTIONS, Config, nearest_key
from transformer_jax.config.serialization import from_config_dict, from_json
from transformer_jax.errors import ConfigError
from transformer_jax.model.sides.choices import ENCODERS

# What keys declare -------------------------------------------------------------------------------

NOISES = {"gaussian": abs, "uniform": abs}  # a registry, as a model's module would hold it
CHOICES = [name for name, rules in KEYS.items() if rules.choices or rules.choices_of]


@dataclasses.dataclass(frozen=True)
class Noise:
    """A section whose keys show what a declaration can say."""

    kind: str = key("gaussian", choices_of=f"{__name__}:NOISES")
    scale: float | None = key(None, mutable=True, above=0, hint="None means no noise.")
    stem: str = "noise"
    files: tuple[str, ...] = ()


def test_a_declaration_gives_the_key_its_rules():
    kind, scale, stem, files = keys_of(Noise, "noise.")
    assert (kind.name, kind.kind, kind.default) == ("noise.kind", str, "gaussian")
    assert not kind.optional and not kind.mutable
    assert kind.valid_choices() == ("gaussian", "uniform")
    assert (scale.kind, scale.optional, scale.mutable, scale.above) == (float, True, True, 0)
    assert scale.hint == "None means no noise."
    assert (stem.mutable, stem.valid_choices()) == (False, ())
    assert files.kind is tuple


def test_every_number_has_limits_that_its_check_reads():
    for name, rules in KEYS.items():
        lower = [rule for rule in ("at_least", "above") if getattr(rules, rule) is not None]
        if rules.kind is int and not name.startswith("mesh."):
            assert lower == ["at_least"] and rules.below is None, name
        elif rules.kind is float:
            assert len(lower) == 1 and rules.at_most is None, name
        else:
            assert not lower and rules.below is None and rules.at_most is None, name


def test_only_strings_have_choices_and_from_one_source():
    for name in CHOICES:
        assert KEYS[name].kind is str, name
        assert not (KEYS[name].choices and KEYS[name].choices_of), name


@pytest.mark.parametrize("name", CHOICES)
def test_every_default_is_one_of_its_choices(name):
    """`check` relies on it: it does not look at choices if the value is the default."""
    assert KEYS[name].default in (None, *KEYS[name].valid_choices())


@pytest.mark.parametrize("name", CHOICES)
def test_a_value_that_is_no_choice_suggests_the_nearest_and_names_all(name):
    choices = KEYS[name].valid_choices()
    for choice in choices:
        valid = ", ".join(map(repr, choices))
        want = f"{name}='{choice}x' is not known; valid choices: {valid}. Did you mean {choice!r}?"
        with refused(ConfigError, want):
            check(with_values(Config(), {name: choice + "x"}))


# The key that a name means -----------------------------------------------------------------------


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
        ("decoder", "model.decoder"),
    ],
)
def test_the_nearest_key_is_suggested(given_name, nearest):
    assert nearest_key(given_name) == nearest
    suggestion = f"Did you mean {nearest}?" if nearest else "Known keys: "
    with refused(ConfigError, f"{given_name} is not a key of the config. {suggestion}"):
        with_values(Config(), {given_name: 1})


@pytest.mark.parametrize(
    ("section", "last", "value", "replacement"),
    [
        ("model", "kind", "recurrent", "model.encoder and model.decoder"),
        ("model", "scale_attention", False, "model.score"),
    ],
)
def test_an_old_key_names_its_replacement(section, last, value, replacement):
    name = f"{section}.{last}"
    for use in (
        lambda: split_overrides([f"--config.{name}={value}"]),
        lambda: from_config_dict({section: {last: value}}),
        lambda: with_values(Config(), {name: value}),
    ):
        with pytest.raises(ConfigError, match=f"^{name} is now {replacement}.$"):
            use()


# Keys of earlier versions, converted on nested dicts ---------------------------------------------

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


# The page of keys, which is what the command prints ----------------------------------------------


@pytest.mark.parametrize("name", KEYS)
def test_every_key_says_what_it_means(name):
    meaning = KEYS[name].meaning
    assert len(meaning) > 3 and meaning == meaning.strip() and not meaning.endswith(".")


def test_the_page_of_keys_is_up_to_date(in_checkout, capsys):
    assert command("keys", "--markdown") == 0
    page = (in_checkout / "docs" / "keys.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == page, "transformer-jax keys --markdown > docs/keys.md"


def test_keys_under_a_prefix_are_listed_with_their_meanings(capsys):
    assert command("keys", "model.num") == 0
    lines = capsys.readouterr().out.splitlines()
    names = [name for name in KEYS if name.startswith("model.num")]
    assert len(names) > 3 and [line.split(":")[0] for line in lines[::2]] == names
    assert [line.strip() for line in lines[1::2]] == [KEYS[name].meaning for name in names]


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("model.num_heads", "int = 8  at least 1, at most 1000000; immutable"),
        ("model.num_encoder_layers", "int or none = none  at least 1, at most 1000; immutable"),
        ("model.encoder", f"str = transformer  {', '.join(ENCODERS)}; immutable"),
        ("train.label_smoothing", "float = 0.1  at least 0, below 1; immutable"),
        ("data.test", "list of str = test  mutable"),
    ],
)
def test_a_key_is_listed_with_type_default_and_range(name, rules, capsys):
    assert command("keys", name) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{name}: {rules}"
