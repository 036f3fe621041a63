"""Names of evaluations: what changes a result changes the name, and tables find the right one."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from transformer_jax.errors import DataError
from transformer_jax.runs.evaluations import (
    evaluation_path,
    find_evaluation,
    text_digest,
    write_evaluation,
)

DECODE = {"beam_size": 4, "length_penalty": 0.6}
SETTINGS = {"split": "test", "src_sha256": "a", "ref_sha256": "b", "checkpoint": "40", **DECODE}


def write(folder: Path, name: str = "test", date: str = "2026-01-01", **changes) -> Path:
    settings = SETTINGS | changes
    path = evaluation_path(folder, name, settings)
    write_evaluation(path, ["eins", "", "zwei"], settings | {"date": date})
    return path.with_suffix(".json")


def test_a_name_is_readable_and_everything_that_decides_the_result_changes_it(tmp_path):
    name = evaluation_path(tmp_path, "my test", SETTINGS).name
    assert name.startswith("my_test.40.beam4.") and len(name.split(".")[3]) == 8
    for method in ("sample", "mbr"):
        drawn = evaluation_path(tmp_path, "my test", SETTINGS | {"method": method}).name
        assert drawn.startswith(f"my_test.40.{method}.")
    for key, value in SETTINGS.items():
        other = evaluation_path(tmp_path, "my test", SETTINGS | {key: f"{value}0"})
        assert other.name != name, key
    assert evaluation_path(tmp_path, "my test", dict(reversed(SETTINGS.items()))).name == name


def test_a_text_s_digest_is_that_of_its_file():
    assert text_digest(["Zoë", ""]) == hashlib.sha256("Zoë\n\n".encode()).hexdigest()
    assert text_digest(["ab"]) != text_digest(["a", "b"])


def test_a_split_is_found_by_its_settings_and_files_of_one_s_own_are_not(tmp_path):
    assert find_evaluation(tmp_path, "test", "40", DECODE) is None
    own = write(tmp_path)
    write(tmp_path, split=None, src_sha256="c", date="2026-01-02")  # --src=elsewhere/test
    write(tmp_path, length_penalty=1.0, date="2026-01-02")
    write(tmp_path, checkpoint="40-last5", date="2026-01-02")
    write(tmp_path, name="test.40.beam4", split="test.40.beam4", date="2026-01-02")
    assert find_evaluation(tmp_path, "test", "40", DECODE) == own
    assert find_evaluation(tmp_path, "test", "40", DECODE | {"length_penalty": 1.0}) != own
    assert find_evaluation(tmp_path, "valid", "40", DECODE) is None


def test_the_newest_evaluation_of_a_split_is_found_wherever_the_folder_was_copied(tmp_path):
    """By its date; of two on one date, the one written last."""
    both = [write(tmp_path), write(tmp_path, src_sha256="changed")]
    for newest in both:
        for path in both:
            os.utime(path, (1, 2 if path == newest else 1))
        assert find_evaluation(tmp_path, "test", "40", DECODE) == newest
    newest = write(tmp_path, src_sha256="changed again", date="2026-01-03")
    os.utime(newest, (1, 1))  # copied first
    assert find_evaluation(tmp_path, "test", "40", DECODE) == newest


def test_a_part_that_has_the_name_of_its_split_is_not_the_split(tmp_path):
    whole = write(tmp_path)
    part = write(tmp_path, src_sha256="part", date="2036-01-03", is_part=True)
    assert find_evaluation(tmp_path, "test", "40", DECODE) == whole
    whole.unlink()
    assert find_evaluation(tmp_path, "test", "40", DECODE) == part


@pytest.mark.parametrize("split", ["test", "train[:10]", "[a]*"])
def test_names_that_earlier_versions_wrote_are_found(split, tmp_path):
    stem = "".join(c if c.isalnum() else "_" for c in split)
    old = tmp_path / f"{stem}.40.beam4.json"
    old.write_text(json.dumps({"bleu": 12.5, "length_penalty": 0.6}))
    assert find_evaluation(tmp_path, split, "40", DECODE) == old
    assert find_evaluation(tmp_path, split, "40", DECODE | {"length_penalty": 1.0}) is None
    assert find_evaluation(tmp_path, split, "4", DECODE) is None


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_damaged_file_of_scores_is_named(content, tmp_path):
    path = write(tmp_path)
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{path}, line 1: "):
        find_evaluation(tmp_path, "test", "40", DECODE)


def test_a_long_name_is_cut_to_what_file_systems_allow(tmp_path):
    settings = {"checkpoint": "40-last5", "beam_size": 4}
    for name in ("a" * 250, "\u00fc" * 125 + "a", "b" * 100 + "\udcff"):  # a byte that is not UTF-8
        path = evaluation_path(tmp_path, name, settings)
        write_evaluation(path, ["x"], settings | {"src_files": [name]})
        assert path.name[:60] == name[:60]
        assert find_evaluation(tmp_path, name, "40-last5", {"beam_size": 4}) is not None
