"""Encoded corpora: their content, a cache that is never wrong, writers that do not collide."""

import concurrent.futures
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.errors import DataError
from transformer_jax.files import cache_folder
from transformer_jax.text import encoded as module
from transformer_jax.text.encoded import ARRAYS, EncodedPairs, encode_corpus
from transformer_jax.text.vocabulary import EOS, Sizes, both_sides

PAIRS = [(f"{'ab ' * (i % 5)}", f"{'xyz ' * ((3 * i) % 7)}{i}") for i in range(50)] + [("", "")]


class Characters:
    """A vocabulary of characters that counts its calls; ids reach `size` - 1."""

    def __init__(self, size: int = 5_000, digest: str = "characters"):
        self.size = size
        self.digest = digest
        self.calls = 0
        self.target = self
        self.sizes = both_sides(size)

    def encode_lines(self, lines, dropout=None):
        self.calls += 1
        return [np.array([self.size - 1 - ord(c) for c in line], np.int32) for line in lines]


def want(line: str, size: int = 5_000) -> list[int]:
    """Character ids and EOS."""
    return [size - 1 - ord(c) for c in line] + [EOS]


def check(got: EncodedPairs, pairs=PAIRS, size: int = 5_000) -> None:
    """Every sentence of `got` is the pairs' sentence."""
    assert len(got) == len(pairs)
    for i, (src, tgt) in enumerate(pairs):
        assert (got.src(i).tolist(), got.tgt(i).tolist()) == (want(src, size), want(tgt, size))
    assert got.src_lengths().tolist() == [len(src) + 1 for src, _ in pairs]
    assert got.tgt_lengths().tolist() == [len(tgt) + 1 for _, tgt in pairs]


def files_of(cache: Path) -> dict[str, Path]:
    """The files of the one entry of a cache, by name."""
    (entry,) = cache.glob("*.json")
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    assert json.loads(entry.read_text())["folder"] == folder.name
    return {"entry": entry} | {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize("chunk", [1, 7, 51, 1_000])
def test_sentences_are_the_vocabulary_s_with_eos_whatever_the_chunks(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK_PAIRS", chunk)
    check(encode_corpus(PAIRS, Characters(), tmp_path, "key"))


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "int32")])
def test_ids_take_two_bytes_where_they_fit(tmp_path, size, dtype):
    got = encode_corpus(PAIRS, Characters(size), tmp_path, "key")
    check(got, size=size)
    assert (got.src_ids.dtype, got.tgt_ids.dtype) == (dtype, dtype)
    assert got.src(0).dtype == np.int32


@pytest.mark.parametrize("sizes", [(70_000, 5_000), (5_000, 70_000)])
def test_sides_with_vocabularies_of_different_sizes_have_one_type(tmp_path, sizes):
    src, tgt = map(Characters, sizes)
    src.target, src.sizes = tgt, Sizes(*sizes)
    pairs = [("ab", "xyz"), ("", "b")]
    got = encode_corpus(pairs, src, tmp_path, "key")
    assert [got.src(i).tolist() for i in (0, 1)] == [want(s, sizes[0]) for s, _ in pairs]
    assert [got.tgt(i).tolist() for i in (0, 1)] == [want(t, sizes[1]) for _, t in pairs]


@pytest.mark.parametrize("pairs", [[], [("", "")]])
def test_a_corpus_of_nothing(tmp_path, pairs):
    for _ in range(2):
        check(encode_corpus(pairs, Characters(), tmp_path, "key"), pairs)


def test_pairs_count_from_the_end_too_and_end(tmp_path):
    got = encode_corpus(PAIRS, Characters(), tmp_path, "key")
    assert got.tgt(-2).tolist() == want(PAIRS[-2][1])
    for i in (len(PAIRS), -len(PAIRS) - 1):
        with pytest.raises(IndexError):
            got.src(i)


def test_offsets_of_more_than_2_31_subwords_do_not_wrap(tmp_path):
    huge = 2**31 - 1
    offsets = module._offsets([np.array([huge, 5]), np.array([7, huge])])
    assert offsets.tolist() == [0, huge, huge + 5, huge + 12, 2 * huge + 12]
    ids = np.broadcast_to(np.uint16(9), offsets[-1])  # takes no memory
    got = EncodedPairs(ids, offsets, ids, offsets)
    assert got.src_lengths().tolist() == got.tgt_lengths().tolist() == [huge, 5, 7, huge]
    assert got.src(1).tolist() == [9] * 5 and got.tgt(2).tolist() == [9] * 7
    small = encode_corpus(PAIRS, Characters(), tmp_path, "key")
    assert (small.src_offsets.dtype, small.tgt_offsets.dtype) == (np.int64, np.int64)


# The cache ------------------------------------------------------------------------------------


def test_a_second_call_maps_what_the_first_wrote(tmp_path):
    vocabulary = Characters()
    encode_corpus(PAIRS, vocabulary, tmp_path, "key")
    calls = vocabulary.calls
    got = encode_corpus(PAIRS, vocabulary, str(tmp_path), "key")
    check(got)
    assert vocabulary.calls == calls
    assert isinstance(got.src_ids, np.memmap) and not got.src_ids.flags.writeable
    assert got.folder == files_of(tmp_path)["src_ids"].parent
    assert got.folder.stat().st_mode & 0o777 == 0o755, "other users can read it"


def test_other_text_or_another_vocabulary_is_another_entry(tmp_path):
    other = [("a", "b")]
    check(encode_corpus(PAIRS, Characters(), tmp_path, "key"))
    check(encode_corpus(other, Characters(), tmp_path, "other"), other)
    check(encode_corpus(PAIRS, Characters(4_000, "other"), tmp_path, "key"), size=4_000)
    check(encode_corpus(PAIRS, Characters(), tmp_path, "key"))
    assert len(list(tmp_path.glob("*.json"))) == 3


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink, lambda path: path.write_text("")])
@pytest.mark.parametrize("name", ARRAYS)
def test_a_damaged_entry_is_written_again(tmp_path, name, damage):
    encode_corpus(PAIRS, Characters(), tmp_path, "key")
    before = files_of(tmp_path)[name].read_bytes()
    damage(files_of(tmp_path)[name])
    check(encode_corpus(PAIRS, Characters(), tmp_path, "key"))
    assert files_of(tmp_path)[name].read_bytes() == before


@pytest.mark.parametrize(
    "content", ["", "[]", "null", '{"folder": "x"}', '{"folder": "../..", "files": {}}']
)
def test_an_entry_of_another_form_is_written_again_and_deletes_nothing(tmp_path, content):
    cache = tmp_path / "a" / "cache"
    first = encode_corpus(PAIRS, Characters(), cache, "key")
    files_of(cache)["entry"].write_text(content)
    second = encode_corpus(PAIRS, Characters(), cache, "key")
    check(second)
    check(first)
    assert first.folder.exists() and second.folder != first.folder


def test_an_entry_never_points_outside_the_cache(tmp_path):
    cache = tmp_path / "cache"
    encode_corpus(PAIRS, Characters(), cache, "key")
    entry = files_of(cache)["entry"]
    content = json.loads(entry.read_text())
    victim = tmp_path / content["folder"]
    victim.mkdir()
    (cache / f"{entry.stem}.").mkdir()  # without it the path below would lead nowhere
    entry.write_text(json.dumps(content | {"folder": f"{entry.stem}./../../{victim.name}"}))
    check(encode_corpus(PAIRS, Characters(), cache, "key"))
    assert victim.exists()


def test_the_files_are_numpy_s_and_the_entry_has_their_sums(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECK_BYTES", 100)
    got = encode_corpus(PAIRS, Characters(), tmp_path, "key")
    files = json.loads(files_of(tmp_path)["entry"].read_text())["files"]
    for name in ARRAYS:
        path = got.folder / f"{name}.npy"
        assert np.array_equal(np.load(path, allow_pickle=False), getattr(got, name))
        content = path.read_bytes()
        assert files[name] == {"bytes": len(content), "crc32": zlib.crc32(content)}


@pytest.mark.parametrize("damaged", [False, True])
def test_writers_at_the_same_time_all_get_the_corpus(tmp_path, damaged):
    if damaged:
        truncate(Path(encode_corpus(PAIRS, Characters(), tmp_path, "key").folder) / "src_ids.npy")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = [
            pool.submit(encode_corpus, PAIRS, Characters(), tmp_path, "key") for _ in range(24)
        ]
    for call in calls:
        check(call.result())
    reader = Characters()
    check(encode_corpus(PAIRS, reader, tmp_path, "key"))
    assert reader.calls == 0


def test_who_comes_second_takes_the_first_s_and_leaves_no_folder(tmp_path):
    class Overtaken(Characters):
        def encode_lines(self, lines, dropout=None):
            if not self.calls:
                self.calls = 1
                self.first = encode_corpus(PAIRS, Characters(), tmp_path, "key")
            return super().encode_lines(lines)

    vocabulary = Overtaken()
    got = encode_corpus(PAIRS, vocabulary, tmp_path, "key")
    check(got)
    assert got.folder == vocabulary.first.folder == files_of(tmp_path)["src_ids"].parent


def test_a_failed_encoding_leaves_nothing(tmp_path):
    class Failing(Characters):
        def encode_lines(self, lines, dropout=None):
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        encode_corpus(PAIRS, Failing(), tmp_path, "key")
    assert list(tmp_path.iterdir()) == []
    check(encode_corpus(PAIRS, Characters(), tmp_path, "key"))


def test_the_error_of_an_unwritable_folder_names_it_and_the_fix(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/cache: .*TRANSFORMER_JAX_CACHE"):
        encode_corpus(PAIRS, Characters(), tmp_path / "file" / "cache", "key")


def test_the_environment_names_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TRANSFORMER_JAX_CACHE", raising=False)
    assert cache_folder() == Path("/home/somebody/.cache/transformer_jax")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/transformer_jax")
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "own"))
    check(encode_corpus(PAIRS, Characters(), None, "key"))
    assert files_of(tmp_path / "own").keys() == {"entry", *ARRAYS}
