"""Files that are written completely or not at all."""

import math
import os
from typing import NamedTuple

import pytest

from tests.fixtures.cases import full
from transformer_jax.errors import DataError
from transformer_jax.files import (
    cache_folder,
    in_the_way,
    is_temporary,
    kept,
    read_table,
    write_atomically,
    write_csv,
)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
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


class Scored(NamedTuple):
    """A row of a table."""

    row: str
    seed: int
    loss: float
    bleu: float
    steps: int


ROWS = [Scored("base", 0, 5.0, 20.0, 10), Scored("base", 1, 5.0, 22.0, 10)]
CSV = {"ranges": {"bleu": (0, 100), "seed": (0, 9), "steps": (1, 99)}}


def test_rows_of_a_table_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "table.csv"
    assert read_table(path, Scored) == []
    rows = [Scored("a, b", 0, math.nan, 1.5, 1), *ROWS]
    write_csv(path, Scored._fields, rows)
    assert '"a, b",0,nan,1.5,1' in path.read_text()
    assert repr(read_table(path, Scored, **CSV)) == repr(rows)  # NaN is not itself
    # As Excel saves it.
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert repr(read_table(path, Scored, **CSV)) == repr(rows)
    path.write_text(path.read_text().replace("nan", ""))
    with pytest.raises(DataError, match="line 2: loss='' is not of type float"):
        read_table(path, Scored, **CSV)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"loss", b"ppl", "line 1: its columns are not row, "),
        (b"22.0", b"twenty", "line 3: bleu='twenty' is not of type float"),
        (b"base,1,", b"base,", "line 3: it has 4 cells, but .* 5"),
        (b"base,1,", b"base,1,,", "line 3: it has 6 cells"),
        (b"base,1,", b"base\n", "line 3: it has 1 cells"),
        (b"base,1,", b"bas\xe9,1,", "line 3: not UTF-8"),
        (b"base,1,", b"b" * 200_000 + b",1,", "line 3: field larger"),
        (b"base,1,", b"base,0,", "lines 2 and 3: both are of row"),
        (b"base,1,", b"base,-1,", "line 3: seed='-1' is not of its range"),
        (b"20.0,10", b"20.0,100", "line 2: steps='100' is not of"),
        (b"base,1,5.0,", b"base,1,inf,", "line 3: loss='inf' is not of its range"),
        (b"22.0", b"-5", "line 3: bleu='-5' is not of its range"),
        (b"row,seed,loss,bleu,steps\n", b"", "line 1: its columns are not"),
    ],
)
def test_a_broken_table_is_refused_naming_the_line(old, new, message, tmp_path):
    path = tmp_path / "table.csv"
    write_csv(path, Scored._fields, ROWS)
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(DataError, match=f"^{path}, {message}") as error:
        read_table(path, Scored, **CSV)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_what_is_no_table_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match=f"^{path}, line [12]: not UTF-8"):
        read_table(path, Scored)
    with pytest.raises(DataError, match=f"^{tmp_path} cannot be read: Is a directory"):
        read_table(tmp_path, Scored)


def test_a_file_is_written_where_its_link_leads(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"new"
