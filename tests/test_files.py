"""Files that are there whole or not at all."""

import os

import pytest

from transformer_jax.files import is_temporary, write_atomically


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_a_kill_leaves_is_told_from_what_is_whole(tmp_path, monkeypatch):
    left = []

    def killed(descriptor: int) -> None:
        left.extend(path for path in tmp_path.rglob("*") if path.is_file())

    monkeypatch.setattr(os, "fsync", killed)
    write_atomically(tmp_path / "folder" / "file", b"new")
    assert [is_temporary(path) for path in left] == [True]
    assert not is_temporary(tmp_path / "folder" / "file")
