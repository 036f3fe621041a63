"""What may change between two calls of `train`, and paths that are valid everywhere."""

from tests.fixtures.cases import other_value
from transformer_jax.config.changes import (
    immutable_differences,
    mutable_differences,
    of_other_direction,
    with_absolute_paths,
    with_values,
)
from transformer_jax.config.schema import KEYS, Config, value_at


def test_differences_name_both_values_and_mutable_keys_are_apart():
    old = Config()
    mutable = {"mesh.data": 2, "train.steps": 5}
    new = with_values(old, mutable | {"model.num_heads": 4, "seed": 1, "data.train": ("other",)})
    assert mutable_differences(old, new) == [
        "train.steps is 5 (was 100000)",
        "mesh.data is 2 (was -1)",
    ]
    assert mutable_differences(old, old) == []
    assert list(immutable_differences(old, new).values()) == [
        "model.num_heads: the run has 8, the config now says 4",
        "data.train: the run has ('train',), the config now says ('other',)",
        "seed: the run has 0, the config now says 1",
    ]


def test_another_value_of_any_key_is_one_difference_of_its_kind():
    for name, key in KEYS.items():
        new = with_values(Config(), {name: other_value(name, key.default)})
        assert list(immutable_differences(Config(), new)) == [name] * (not key.mutable)
        assert len(mutable_differences(Config(), new)) == key.mutable, name


def test_what_shapes_the_weights_or_the_batches_is_immutable():
    for name, key in KEYS.items():
        if name == "vocabulary.path":
            assert key.mutable, "the run has its own vocabulary, and compares contents"
        elif name == "model.attention_kernel":
            assert key.mutable, "every kernel computes the same"
        elif name.startswith(("model.", "vocabulary.")) or name == "seed":
            assert not key.mutable, name
        intervals = name.startswith("train.") and name.endswith("_every")
        if name.startswith(("mesh.", "decode.")) or intervals:
            assert key.mutable, name
    for name in ("tokens_per_batch", "row_length", "rows_multiple", "label_smoothing", "adam_b2"):
        assert not KEYS[f"train.{name}"].mutable, name


def test_absolute_paths_are_valid_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")

    def absolute(path: str) -> str | None:
        return with_absolute_paths(with_values(Config(), {"data.path": path})).data.path

    assert absolute("data/text") == str(tmp_path / "data" / "text")
    assert absolute("~/text") == "/home/somebody/text"
    assert absolute("/data") == "/data"
    assert absolute("gs://bucket/tfds") == "gs://bucket/tfds"
    assert with_absolute_paths(Config()) == Config()
    for name in ("vocabulary.path", "train.init_from"):
        config = with_absolute_paths(with_values(Config(), {name: "run"}))
        assert value_at(config, name) == str(tmp_path / "run")


def test_the_other_direction_has_other_sides_and_starts_from_the_origin_s_other_direction():
    config = with_values(Config(), {"data.src": "fr", "train.init_from": "origin", "seed": 3})
    want = {"data.src": "de", "data.tgt": "fr", "train.init_from": "origin/reverse"}
    assert of_other_direction(config) == with_values(config, want)
    assert of_other_direction(Config()).train.init_from is None
