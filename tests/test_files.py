"""Files that are written completely or not at all."""

import os

import pytest

from transformer_jax.errors import DataError
from transformer_jax.files import cache_folder, in_the_way, is_temporary, kept, write_atomically


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


def test_what_is_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/nonexistent/place")
    assert in_the_way(tmp_path / "file" / "new") == f"{tmp_path}/file is a file"
    assert in_the_way(tmp_path / "link" / "new") == f"{tmp_path}/link is a link that leads nowhere"
    assert in_the_way(tmp_path / "new" / "folder") == ""


def test_a_file_left_by_a_kill_is_known_as_temporary(tmp_path, monkeypatch):
    left = []

    def killed(descriptor: int) -> None:
        left.extend(path for path in tmp_path.rglob("*") if path.is_file())

    monkeypatch.setattr(os, "fsync", killed)
    write_atomically(tmp_path / "folder" / "file", b"new")
    assert [is_temporary(path) for path in left] == [True]
    assert not is_temporary(tmp_path / "folder" / "file")


def test_what_is_kept_is_made_once_and_again_where_it_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path))
    made = []

    def make() -> bytes:
        made.append(None)
        return b"content"

    assert [kept("kind", "a", make) for _ in range(3)] == [b"content"] * 3
    assert len(made) == 1
    assert kept("kind", "b", make) == b"content" and len(made) == 2, "another name"
    for path in (tmp_path / "kind").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert kept("kind", "a", make) == b"content" and len(made) == 3, "truncated"
    assert kept("kind", "a", make) == b"content" and len(made) == 3


def test_what_cannot_be_kept_is_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "file"))
    assert kept("kind", "a", lambda: b"content") == b"content"


def test_a_cache_folder_in_the_home_of_nobody_is_refused(monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", "~nobody-has-this-name/cache")
    with pytest.raises(DataError, match="is in the home of no known user. Set TRANSFORMER_JAX_"):
        cache_folder()


def test_an_error_names_the_file_and_not_its_temporary_one(tmp_path):
    path = tmp_path / ("x" * 250)  # its temporary file's name is too long
    with pytest.raises(OSError) as caught:
        write_atomically(path, b"")
    assert caught.value.filename == str(path)
