"""Parquet files with a column `translation` as sequences of pairs."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import tiny_runs as runs
from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text.corpora import Corpus, Pair, open_corpus
from transformer_jax.text.parquet_corpus import ParquetPairs

PAIRS = [Pair(f"source {i} é", f"Ziel {i}\u2028ß" if i % 3 else "") for i in range(25)]
TEXTS = pa.struct([("de", pa.string()), ("fr", pa.string()), ("en", pa.string())])


def write(path: Path, pairs: list[Any], kind: Any = TEXTS, group: int = 4, **how: Any) -> Path:
    """A file of (en, de) pairs, or of any values, and another column."""
    rows = [
        {"en": one[0], "de": one[1], "fr": "x"} if isinstance(one, tuple) else one for one in pairs
    ]
    columns = {"id": list(range(len(rows))), "translation": pa.array(rows, kind)}
    pq.write_table(pa.table(columns), path, row_group_size=group, **how)
    return path


def corpus(folder: Path, seed: int = 0, **changes: Any) -> Corpus:
    return open_corpus(DataConfig(source="parquet", path=str(folder), seed=seed, **changes))


@pytest.mark.parametrize("group", [1, 4, 25, 100])
def test_pairs_are_read_by_position_whatever_the_row_groups_are(tmp_path, group):
    pairs = ParquetPairs(write(tmp_path / "a.parquet", PAIRS, group=group), "en", "de")
    assert len(pairs) == 25 and list(pairs) == PAIRS
    indices = [24, 0, 3, 4, 4, 23, 7]
    assert pairs.items(indices) == [PAIRS[i] for i in indices]
    assert pairs[-1] == PAIRS[-1] and pairs[2:9] == PAIRS[2:9]
    assert pairs.items(np.array(indices)) == [PAIRS[i] for i in indices]
    with pytest.raises(IndexError):
        pairs[25]


def test_one_row_group_is_in_memory_and_ascending_places_read_each_once(tmp_path, monkeypatch):
    pairs = ParquetPairs(write(tmp_path / "a.parquet", PAIRS), "en", "de")
    read = ParquetPairs._read
    groups = list[int]()
    monkeypatch.setattr(
        ParquetPairs, "_read", lambda self, group: (groups.append(group), read(self, group))
    )
    assert [pairs[i] for i in range(25)] == PAIRS
    assert groups == list(range(7))
    assert [len(texts) for texts in pairs._texts] == [1, 1], "the last group has one row"


def test_a_stem_is_a_file_or_its_shards_or_a_pattern(tmp_path):
    folder = tmp_path / "with [brackets]"
    folder.mkdir()
    for n in range(3):
        write(folder / f"train-{n:05}-of-00003.parquet", PAIRS[8 * n : 8 * n + 8])
    write(folder / "validation-00000-of-00001.parquet", PAIRS[:3])
    write(folder / "test.parquet", PAIRS[3:5])
    found = corpus(folder)
    assert list(found.split("train")) == PAIRS[:24]
    assert (list(found.split("valid")), list(found.split("test"))) == (PAIRS[:3], PAIRS[3:5])
    assert list(found.split("train-00001*")) == PAIRS[8:16]
    assert list(found.split("train[6:18]")) == PAIRS[6:18]
    both = corpus(folder, train=("test", "train-*0[02]-of*"))
    assert list(both.split("train")) == PAIRS[3:5] + PAIRS[:8] + PAIRS[16:24]
    assert found.describe() == f"Parquet files in {folder}, en→de"
    assert list(corpus(folder, src="de", tgt="en").split("test")) == [
        Pair(tgt, src) for src, tgt in PAIRS[3:5]
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train", "train-0-of-1"], "train.parquet and train-0-of-1.parquet are all in"),
        (["valid", "validation", "train"], "valid.parquet and validation.parquet are all in"),
        (["train-0-of-3", "train-2-of-3"], r"2 of its 3 files are there \(numbers 0, 2\)"),
        (["train-0-of-1", "train-1-of-2"], "belong to different sets of shards"),
        (["train-0-of-2-ab", "train-0-of-2-cd"], "belong to different sets of shards"),
    ],
)
def test_files_of_which_it_is_unclear_whether_they_are_the_stem_s_are_refused(
    names, message, tmp_path
):
    for name in names:
        write(tmp_path / f"{name}.parquet", PAIRS[:3])
    with pytest.raises(DataError, match=message) as caught:
        corpus(tmp_path).split("train")
    assert "\n" not in str(caught.value)
    if len(names) < 3:
        every = corpus(tmp_path, train=("train*",), valid=("train*",))
        assert len(every.split("train")) == 6  # a pattern takes what it names


def test_shards_may_have_a_hash_and_be_numbered_from_one(tmp_path):
    for n in (1, 2):
        write(tmp_path / f"train-{n}-of-2-0a1b.parquet", PAIRS[n : n + 1])
    assert list(corpus(tmp_path, valid=("train",)).split("train")) == PAIRS[1:3]


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.parquet")
    with pytest.raises(DataError, match="train.parquet is a pipe or a device"):
        corpus(tmp_path, valid=("train",)).split("train")


LARGE = pa.struct([(one, pa.large_string()) for one in ("en", "de")])


def test_the_fingerprint_is_of_the_texts_alone(tmp_path):
    write(tmp_path / "plain.parquet", PAIRS)
    write(tmp_path / "groups.parquet", PAIRS, group=7, compression="gzip")
    write(tmp_path / "large.parquet", [{"en": src, "de": tgt} for src, tgt in PAIRS], LARGE)
    for n, part in enumerate((PAIRS[:9], PAIRS[9:])):
        write(tmp_path / f"shards-{n}-of-2.parquet", part)
    write(tmp_path / "other.parquet", [*PAIRS[:-1], Pair("source 2", "4 é")])
    write(tmp_path / "moved.parquet", [Pair("a", "b c")])
    write(tmp_path / "space.parquet", [Pair("a b", "c")])
    found = corpus(tmp_path, train=("plain",), valid=("plain",))
    same = {found.fingerprint(stem) for stem in ("plain", "groups", "large", "shards")}
    others = {found.fingerprint(stem) for stem in ("other", "moved", "space")}
    swapped = corpus(tmp_path, train=("plain",), valid=("plain",), src="de", tgt="en")
    assert len(same) == 1
    assert len({*same, *others, swapped.fingerprint("plain")}) == 5


def test_without_validation_files_pairs_are_cut_off_as_from_text_files(tmp_path):
    write(tmp_path / "train.parquet", PAIRS * 8)
    for suffix, texts in zip(("en", "de"), zip(*PAIRS * 8, strict=True), strict=True):
        runs.write_lines(tmp_path / f"train.{suffix}", texts)
    found = corpus(tmp_path, seed=3)
    text = open_corpus(DataConfig(path=str(tmp_path), seed=3))
    for name, count in (("train", 190), ("valid", 10)):
        assert list(found.split(name)) == list(text.split(name))
        assert len(found.split(name)) == count
    assert "no valid.parquet: validation pairs cut off the training text" in found.describe()


INTEGERS = pa.struct([("en", pa.string()), ("de", pa.int32())])


@pytest.mark.parametrize(
    ("rows", "kind", "changes", "message"),
    [
        ([("a", "b")], TEXTS, {"tgt": "cs"}, "has 'de', 'fr', 'en', and not 'cs'. Set data.src"),
        (["a ||| b"], pa.string(), {}, "has values of type string. Write it again"),
        ([{"en": "a", "de": 1}], INTEGERS, {}, "translation.de holds int32, not strings"),
        ([("a", "b")] * 6 + [("a", None)], TEXTS, {}, r"row 6 \(from 0\): translation.de is null"),
        ([("a", "b")] * 5 + [None], TEXTS, {}, r"row 5 \(from 0\): translation.en is null"),
        ([], TEXTS, {}, "is empty. Give a file with one sentence pair per row"),
    ],
)
def test_wrong_columns_and_rows_are_one_line(tmp_path, rows, kind, changes, message):
    path = write(tmp_path / "train.parquet", rows, kind)
    with pytest.raises(DataError, match=message) as caught:
        corpus(tmp_path, valid=("train",), **changes).split("train")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_column_or_file_is_one_line(tmp_path):
    pq.write_table(pa.table({"en": ["a"], "de": ["b"]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="has no column 'translation', only 'en', 'de'. Write it"):
        corpus(tmp_path).split("train")
    twice = pa.table([pa.array([{"en": "a", "de": "b"}])] * 2, names=["translation"] * 2)
    pq.write_table(twice, tmp_path / "two.parquet")
    with pytest.raises(DataError, match="has several columns 'translation'"):
        corpus(tmp_path, train=("two",), valid=("two",)).split("train")
    with pytest.raises(DataError, match=r"dev.parquet: no such file.*there: train.parquet"):
        corpus(tmp_path, valid=("dev",)).split("valid")
    with pytest.raises(DataError, match="is not a folder. Give the folder of the Parquet files"):
        corpus(tmp_path / "no")


def test_text_that_is_not_utf8_is_one_line(tmp_path):
    raw = pa.array([b"ok", b"f\xfcr"]).cast(pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    struct = pa.StructArray.from_arrays([texts, pa.array(["a", "b"])], ["en", "de"])
    pq.write_table(pa.table({"translation": struct}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="cannot be read as a Parquet file: .*UTF8"):
        corpus(tmp_path).split("train")


def test_damaged_files_are_one_line_or_give_the_pairs(tmp_path):
    """Bytes are changed or cut off everywhere; page checksums find changed texts."""
    path = write(tmp_path / "a.parquet", PAIRS, group=9, write_page_checksum=True)
    whole = path.read_bytes()
    damaged = 0
    for place in range(0, len(whole), 7):
        for content in (whole[:place], whole[:place] + b"\xa5" + whole[place + 1 :]):
            path.write_bytes(content)
            try:
                assert list(ParquetPairs(path, "en", "de")) == PAIRS
            except DataError as error:
                damaged += 1
                assert "\n" not in str(error) and str(path) in str(error)
    assert damaged > len(whole) / 7
