"""Text files, streams and the built-in corpus as sequences of pairs."""

import gzip
import io
import itertools
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fixtures.cases import refused
from transformer_jax.config.data import DataConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text import corpora, lines
from transformer_jax.text.corpora import Pair, open_corpus
from transformer_jax.text.lines import TextLines

# Each ends a line for str.splitlines, and none does here.
NOT_LINE_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file, compressed if its name ends in .gz."""
    content = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two stems, one of them compressed on one side; `b` has an empty line in the middle."""
    write(tmp_path / "a.en", "one\ntwo\n")
    write(tmp_path / "a.de.gz", "eins\nzwei\n")
    write(tmp_path / "b.en", "three\n\nfive")
    write(tmp_path / "b.de", "drei\nvier\nfünf\n")
    return tmp_path


A = [Pair("one", "eins"), Pair("two", "zwei")]
B = [Pair("three", "drei"), Pair("", "vier"), Pair("five", "fünf")]


def config(folder: Path | None, **changes) -> DataConfig:
    """A config of text files in a folder."""
    path = None if folder is None else str(folder)
    return DataConfig(**{"path": path, "train": ("a", "b"), "valid": ("b",), "test": ()} | changes)


# Lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lines.en", "lines.en.gz"])
def test_a_byte_order_mark_and_carriage_returns_are_left_out_at_their_places_only(tmp_path, name):
    path = write(
        tmp_path / name, f"\ufeffone\r\n\ufefftwo {NOT_LINE_ENDS}x\n\n \t\rthree\r\r\nfour\r"
    )
    want = ["one", f"\ufefftwo {NOT_LINE_ENDS}x", "", " \t\rthree\r", "four\r"]
    assert list(TextLines(path)) == want


def test_a_file_that_another_program_writes_over_is_the_text_that_was_read(tmp_path):
    """A map of it would end this process, or show bytes of both texts."""
    path = tmp_path / "a.en"
    path.write_text("first\nsecond\n")
    lines = TextLines(path)
    path.write_text("x\n")
    assert list(lines) == ["first", "second"]


def test_lines_that_end_with_carriage_returns_alone_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"a.en is one line with carriage returns.*tr '\\r'"):
        TextLines(write(tmp_path / "a.en", "a dog\ra cat\r"))


@given(text=st.text(st.sampled_from("aé\n\r" + NOT_LINE_ENDS), min_size=1))
def test_lines_are_those_of_python_reading_by_newline(text):
    assume("\n" in text[:-1] or "\r" not in text[:-1])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", 3)  # so that blocks end everywhere
        patch.setattr(lines, "CHECK_LINES", 2)
        got = list(TextLines(write(Path(folder) / "lines", text)))
    reference = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8", newline="\n")
    assert got == [
        line.removesuffix("\n") if not line.endswith("\r\n") else line[:-2] for line in reference
    ]


@pytest.mark.parametrize("lines_together", [1, 2, 1 << 16])
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a\nb\nf\xfcr\nd\n", 3),
        (b"\xff\xfea\x00", 1),  # UTF-16
        (b"a\n\xc3\nb", 2),  # a character cut off by the line's end
        (b"a\nb\nc\xe2\x80", 3),  # ... and by the file's
        (b"\xed\xa0\x80\n", 1),  # a surrogate
    ],
)
def test_what_is_not_utf8_is_named_by_file_and_line(
    tmp_path, monkeypatch, content, line, lines_together
):
    monkeypatch.setattr(lines, "CHECK_LINES", lines_together)
    for name in ("a.en", "a.en.gz"):
        path = write(tmp_path / name, content)
        with pytest.raises(DataError, match=rf"^{path}, line {line}: not UTF-8"):
            TextLines(path)


WHOLE = gzip.compress(b"one\ntwo\n" * 1_000, mtime=0)
BROKEN = "{path} is not a whole gzip file: .+"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.gz", WHOLE[:-9], BROKEN),
        ("not.gz", b"plain\n", BROKEN),
        ("sum.gz", WHOLE[:-8] + bytes(8), BROKEN),  # of another content
        ("bits.gz", WHOLE[:10] + bytes([255] * 8) + WHOLE[18:], BROKEN),
        ("a.en", b"", "{path} is empty"),
        ("a.en.gz", gzip.compress(b"", mtime=0), "{path} is empty"),
        ("mark.en", b"\xef\xbb\xbf", "{path} is empty"),
        ("none.en", None, "{path} cannot be read: No such file"),
        (".", None, "{path} cannot be read: Is a directory"),
    ],
)
def test_unreadable_files_are_one_line_errors(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{message.format(path=path)}") as error:
        TextLines(path)
    assert "\n" not in str(error.value)


def test_a_pipe_is_read_like_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("one\ntwo\n",))
    writer.start()
    assert list(TextLines(pipe)) == ["one", "two"]
    writer.join()


# Text files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stems", "name", "want"),
    [("ab", "b", B), ("ab", "valid", B), ("ab", "train", A + B), ("ba", "train", B + A)],
)
def test_pairs_are_read_by_position(folder, stems, name, want):
    pairs = open_corpus(config(folder, train=tuple(stems))).split(name)
    count = len(want)
    assert len(pairs) == count
    assert list(pairs) == want
    assert [pairs[i] for i in range(-count, count)] == want * 2
    assert (pairs[1:], pairs[1:2], pairs[::-1]) == (want[1:], want[1:2], want[::-1])
    assert isinstance(pairs[0], Pair)
    for place in (count, -count - 1):
        with pytest.raises(IndexError):
            pairs[place]


@pytest.mark.parametrize(
    ("stem", "want"),
    [("b[:2]", B[:2]), ("b[1:]", B[1:]), ("b[1:2]", B[1:2]), ("b[:9]", B), ("b[:]", B)],
)
def test_a_slice_of_a_stem_is_read_and_has_its_fingerprint(folder, stem, want):
    corpus = open_corpus(config(folder, train=("a", stem)))
    assert list(corpus.split("train")) == A + want
    assert corpus.fingerprint(stem) != corpus.fingerprint("b")


def test_the_config_says_which_suffix_is_the_source(folder):
    corpus = open_corpus(config(folder, src="de", tgt="en"))
    assert corpus.split("a")[0] == Pair("eins", "one")
    assert str(folder) in corpus.describe() and "de→en" in corpus.describe()


def test_a_folder_may_be_under_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert len(open_corpus(DataConfig(path=f"~/{folder.name}")).split("a")) == 2


def test_a_plain_and_a_compressed_file_of_one_stem_are_refused(folder):
    write(folder / "a.de", "un\ndeux\n")
    for use in (open_corpus(config(folder)).split, open_corpus(config(folder)).fingerprint):
        with pytest.raises(DataError, match=rf"^{folder}/a.de and a.de.gz are both there.*Remove"):
            use("train")
    (folder / "a.de.gz").unlink()
    assert open_corpus(config(folder)).split("a")[0].tgt == "un"


@pytest.mark.parametrize(
    ("changes", "split", "want"),
    [
        ({"path": None}, "train", ["data.path is not set", "--config.data.path=FOLDER"]),
        (
            {},
            "bb",
            ["bb.en: no such file", "nor bb.en.gz", "stems there with .en: b, a, short. Name"],
        ),
        ({}, "zzz", ["zzz.en: no such file", ".en: a, b, short. Name", "data.train"]),
        (
            {"tgt": "fr"},
            "a",
            ["a.fr: no such file", "nor a.fr.gz", ".de .en .xz. Rename the files"],
        ),
        ({}, "a@back-up", ["a@back-up.en: no such file", "a TAG has letters, digits"]),
        ({}, "a[:50%]", ["a[:50%].en: no such file", "Some pairs: STEM[100:200]"]),
        ({}, "sub/a", ["sub/a.en: no such file", "suffixes there: none"]),
        ({}, "test", ["data.test is empty"]),
        ({}, "folder", ["folder.en is a folder; give a regular file"]),
        ({"train": ("a", "short")}, "train", ["short.en has 2 lines", "short.de has 1."]),
        ({"train": ("a[:0]",)}, "train", ["a[:0] has no pairs: a has 2."]),
        ({}, "b[3:]", ["b[3:] has no pairs: b has 3."]),
        ({}, "c[:1]", ["c.en: no such file"]),
        ({}, "packed", ["packed.en: no such file", "Decompress packed.en.xz: of compressed"]),
    ],
)
def test_mistakes_are_one_line_that_says_where(folder, changes, split, want):
    write(folder / "short.en", "1\n2\n")
    write(folder / "short.de", "1\n")
    (folder / "folder.en").mkdir()
    write(folder / "packed.en.xz", "")
    with refused(DataError, *want):
        open_corpus(config(folder, **changes)).split(split)


def test_ten_of_many_stems_are_named(tmp_path):
    for stem in "abcdefghijk":
        write(tmp_path / f"{stem}.en", "1\n")
    with pytest.raises(DataError, match=r"with \.en: a, b, c, d, e, f, g, h, i, j, \.\.\.\. Name"):
        open_corpus(config(tmp_path)).split("zzz")


def test_an_unknown_source_is_refused():
    with pytest.raises(ConfigError, match="data.source='file' is not one of"):
        open_corpus(DataConfig(source="file"))


def test_the_fingerprint_is_of_the_content_alone(folder, tmp_path):
    corpus = open_corpus(config(folder))
    first = corpus.fingerprint("train")
    assert len(first) == 64 and int(first, 16) >= 0
    elsewhere = tmp_path / "elsewhere"
    for stem, before, pairs in (("x", "a", A), ("y", "b", B)):
        write(elsewhere / f"{stem}.s.gz", (folder / f"{before}.en").read_bytes())
        write(elsewhere / f"{stem}.t", "".join(f"{pair.tgt}\n" for pair in pairs))
    other = config(elsewhere, src="s", tgt="t", train=("x", "y"))
    assert open_corpus(other).fingerprint("train") == first


def test_the_fingerprint_sees_every_change(folder):
    stems = [("a", "b"), ("b", "a"), ("a",), ("a[:1]",), ("a[1:]",)]
    corpora = [config(folder, train=train) for train in stems]
    corpora.append(config(folder, src="de", tgt="en"))
    seen = {open_corpus(one).fingerprint("train") for one in corpora}
    write(folder / "b.de", "drei\nvier\nfünF\n")
    assert len({*seen, open_corpus(config(folder)).fingerprint("train")}) == 7


# A validation split that is cut off ------------------------------------------------------------


def write_pairs(folder: Path, count: int, stems: tuple[str, ...] = ("train",)) -> None:
    for stem, suffix in itertools.product(stems, ("en", "de")):
        lines = [f"{stem} {i} {suffix}\n" for i in range(count)]
        write(folder / f"{stem}.{suffix}", "".join(lines))


def opened(folder: Path, seed: int = 0, **changes) -> corpora.Corpus:
    return open_corpus(DataConfig(**{"path": str(folder), "seed": seed} | changes))


@pytest.mark.parametrize(
    ("pairs", "valid"), [(2, 1), (39, 1), (40, 2), (1_000, 50), (40_000, 2_000), (50_000, 2_000)]
)
def test_without_validation_files_a_sample_of_the_training_text_is_cut_off(tmp_path, pairs, valid):
    write_pairs(tmp_path, pairs)
    corpus = opened(tmp_path)
    train, held_out = list(corpus.split("train")), list(corpus.split("valid"))
    assert len(held_out) == valid
    assert sorted(train + held_out) == sorted(opened(tmp_path, valid=("train",)).split("train"))
    assert "validation pairs cut off the training text" in corpus.describe()


def test_the_sample_depends_on_the_seed_and_is_the_same_each_time(tmp_path):
    write_pairs(tmp_path, 400)
    first = list(opened(tmp_path, seed=3).split("valid"))
    # fmt: off
    places = [
        5, 59, 78, 107, 152, 196, 198, 204, 208, 209,
        210, 215, 283, 301, 316, 351, 358, 385, 389, 398,
    ]
    # fmt: on
    assert [int(pair.src.split()[1]) for pair in first] == places, "old runs need this very sample"
    assert list(opened(tmp_path, seed=4).split("valid")) != first
    asked = [(seed, name) for seed in (3, 4, 3) for name in ("train", "valid")]
    prints = [opened(tmp_path, seed).fingerprint(name) for seed, name in asked]
    assert prints[:2] == prints[4:]
    assert len({*prints, opened(tmp_path, valid=("train",)).fingerprint("train")}) == 5


def test_several_training_files_are_cut_as_one_and_one_pair_is_too_few(tmp_path):
    write_pairs(tmp_path, 30, ("a", "b"))
    corpus = opened(tmp_path, train=("a", "b"))
    assert [len(corpus.split(name)) for name in ("train", "valid", "a")] == [57, 3, 30]
    write_pairs(tmp_path, 1)
    with pytest.raises(DataError, match="has one pair, too few.*valid.en, valid.de"):
        opened(tmp_path).split("train")


def test_validation_files_that_are_there_or_named_are_used(tmp_path):
    write_pairs(tmp_path, 40, ("train", "dev", "valid"))
    for changes, stem in (({}, "valid"), ({"valid": ("dev",)}, "dev")):
        corpus = opened(tmp_path, **changes)
        assert (len(corpus.split("train")), len(corpus.split("valid"))) == (40, 40)
        assert corpus.split("valid")[0].src == f"{stem} 0 en"
        assert "cut off" not in corpus.describe()
        named = opened(tmp_path, valid=(stem,))
        assert corpus.fingerprint("valid") == named.fingerprint("valid")
    (tmp_path / "valid.de").unlink()
    with pytest.raises(DataError, match="valid.de: no such file"):
        opened(tmp_path).split("valid")
    with pytest.raises(DataError, match="deve.en: no such file"):
        opened(tmp_path, valid=("deve",)).split("valid")


@pytest.mark.parametrize("name", ["valid.en", "valid.de", "valid.en.gz", "valid.de.gz"])
def test_with_any_validation_file_the_training_text_stays_whole(name, tmp_path):
    write_pairs(tmp_path, 40)
    write(tmp_path / name, "1\n")
    assert len(opened(tmp_path).split("train")) == 40
