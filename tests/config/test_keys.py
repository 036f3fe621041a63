"""The schema's keys: every number has limits, and every default is one of its key's choices."""

import dataclasses
import subprocess
import sys

import pytest

from tests.fixtures.errors import refused
from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.keys import key, keys_of
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.errors import ConfigError

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


def test_a_misspelt_rule_is_an_error():
    section = dataclasses.make_dataclass("Section", [("size", int, key(1, atleast=1))])
    with pytest.raises(TypeError, match="atleast"):
        list(keys_of(section))


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


def test_a_config_whose_choices_are_the_defaults_is_checked_without_jax(in_checkout):
    """The registries are in modules that import JAX, which takes seconds."""
    code = (
        "import sys; from transformer_jax.config import changes, checks, files, schema;"
        "checks.check(changes.with_values(schema.Config(), {'data.source': 'grammar'}));"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
