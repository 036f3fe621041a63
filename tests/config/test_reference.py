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


def test_keys_under_a_prefix_are_listed_with_type_default_range_and_meaning(capsys):
    assert command("keys", "model.num") == 0
    lines = capsys.readouterr().out.splitlines()
    names = [name for name in KEYS if name.startswith("model.num")]
    assert len(names) > 3 and [line.split(":")[0] for line in lines[::2]] == names
    n = lines.index("model.num_heads: int = 8  at least 1, at most 1000000; immutable")
    assert lines[n + 1].strip() == KEYS["model.num_heads"].meaning
    assert (
        lines[2]
        == "model.num_encoder_layers: int or none = none  at least 1, at most 1000; immutable"
    )


def test_choices_of_a_registry_and_intervals_are_listed(capsys):
    assert command("keys", "model.encoder") == 0
    assert f"{', '.join(ENCODERS)}; immutable" in capsys.readouterr().out
    assert command("keys", "train.label_smoothing") == 0
    assert "float = 0.1  at least 0, below 1; immutable" in capsys.readouterr().out
    assert command("keys", "data.test") == 0
    assert "list of str = test  mutable" in capsys.readouterr().out


def test_a_prefix_of_no_key_suggests_the_nearest(capsys):
    assert command("keys", "decode.beem_size") == 2
    assert "Did you mean decode.beam_size?" in capsys.readouterr().err
