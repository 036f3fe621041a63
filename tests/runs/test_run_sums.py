"""What a change of a run's config or vocabulary by hand does."""

import json

import pytest

from tests.fixtures.cases import refused
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.errors import RunError
from transformer_jax.runs import run_sums
from transformer_jax.runs.run_folder import RunFolder

CONFIG = with_values(Config(), {"data.path": "corpus", "seed": 3})


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.claim(CONFIG, "abc")
    folder.vocabulary_file.write_bytes(b"pieces")
    folder.seal()
    return folder


GONE = object()
SHORT = '{"files": {"vocabulary.model": "%s"}, "config": {}, "mutable": []}' % ("a" * 63)


def change(run: RunFolder, name: str, value: object = GONE) -> None:
    """Changes a key of config.json by hand, or removes it."""
    tree = json.loads(run.config_file.read_text())
    *sections, last = name.split(".")
    own = tree[sections[0]] if sections else tree
    own[last] = value
    if value is GONE:
        del own[last]
    run.config_file.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("name", "value", "section"),
    [
        ("model.positions", "none", "section model is"),
        ("model.positions", GONE, "section model is"),  # although it has a default
        ("train.warmup_steps", 5, "section train is"),
        ("data.max_length", 5, "section data is"),
        ("vocabulary.size", 5_000, "section vocabulary is"),
        ("seed", 4, "key seed is"),
    ],
    ids=lambda x: "gone" if x is GONE else None,
)
def test_a_change_of_an_immutable_key_by_hand_is_refused_naming_the_section(
    name, value, section, run
):
    change(run, name, value)
    for use in (run.read_config, lambda: run.check(CONFIG)):
        with pytest.raises(RunError, match=rf"{run.config_file} was changed: its {section} not "):
            use()


def test_all_changed_sections_are_named(run):
    change(run, "model.d_ff", 8)
    change(run, "seed", 4)
    with pytest.raises(RunError, match="its section model and key seed are not"):
        run.read_config()


def test_mutable_keys_and_the_layout_of_the_file_may_change(run):
    values = {name: 7 for name, key in KEYS.items() if key.mutable and key.kind is int}
    assert len(values) > 5
    for name, value in values.items():
        change(run, name, value)
    tree = json.loads(run.config_file.read_text())
    run.config_file.write_text(json.dumps(tree, sort_keys=True, indent=4))
    assert run.read_config() == with_values(CONFIG, values)


def test_a_run_of_an_earlier_version_has_no_sums_and_is_accepted(run, caplog):
    run.sums_file.unlink()
    change(run, "seed", 4)
    assert run.read_config().seed == 4 and not caplog.text


def test_a_later_version_with_other_keys_accepts_the_sums(run, monkeypatch):
    """As if it had a key that this one has not, and another set of mutable keys."""
    change(run, "model.positions")
    change(run, "decode.max_length")
    with monkeypatch.context() as patch:
        mutable = {name: key for name, key in KEYS.items() if name != "train.remat"}
        patch.setattr(run_sums, "KEYS", mutable)
        run.seal()
    assert run.read_config() == CONFIG


def test_a_run_that_a_later_version_continues_stays_the_same_run(run, monkeypatch):
    """Its config has one more key then, and checkpoints of before must not look foreign."""
    change(run, "model.positions")
    with monkeypatch.context() as patch:
        known = {name: key for name, key in KEYS.items() if name != "model.positions"}
        patch.setattr(run_sums, "KEYS", known)
        run.seal()
    before = json.loads(run.sums_file.read_text())
    again = RunFolder(run.path)
    again.claim(CONFIG, "abc")
    again.seal()
    after = json.loads(run.sums_file.read_text())
    assert after["config"] != before["config"] and after["run"] == before["run"]


def test_a_kill_while_a_run_is_claimed_again_leaves_a_folder_that_loads(run):
    change(run, "model.positions")  # as in an earlier version: `claim` adds it to the section
    run.seal()
    longer = with_values(CONFIG, {"train.steps": 7})
    run.claim(longer, "abc")  # and killed before `seal`
    assert run.read_config() == longer


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": 3}', "[" * 100_000, None, SHORT])
def test_damaged_sums_are_one_line(content, run):
    run.sums_file.unlink()
    if content is None:
        run.sums_file.mkdir()
    else:
        run.sums_file.write_text(content)
    with refused(RunError, f"{run.sums_file} is damaged"):
        run.read_config()
