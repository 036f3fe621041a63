"""The reference of keys: every key has a meaning, and docs/keys.md is what the command prints."""

import pytest

from tests.tiny_runs import command
from transformer_jax.config.schema import KEYS
from transformer_jax.model.sides.choices import ENCODERS


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


def test_a_prefix_of_no_key_suggests_the_nearest(capsys):
    assert command("keys", "decode.beem_size") == 2
    assert "Did you mean decode.beam_size?" in capsys.readouterr().err
