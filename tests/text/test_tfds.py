"""TFDS data sets, read and prepared without TensorFlow."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests import tiny_runs as runs
from tests.fixtures.cases import refused
from tests.text.tfds_fixture import serve_as_wmt, write_wmt14_archives, write_wmt14_like
from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text import by_position, tfds_corpus
from transformer_jax.text.corpora import Pair, open_corpus

ROOT = Path(__file__).parents[2]
NAME = "wmt14_translate/de-en"
PAIRS = {
    "train": [(f"Satz {i}, größer", f"sentence {i}\u2028 bigger") for i in range(30)],
    "validation": [("Haus", "house"), ("", "an empty side stays"), (" Leer ", "space\t")],
    "test": [("Baum", "tree")],
}


def config(folder: Path, **changes) -> DataConfig:
    """A config of the small data set, English to German."""
    data = {"source": "tfds", "path": str(folder), "name": NAME, "valid": ("validation",)}
    return DataConfig(**data | changes)


def run(program: str, tmp_path: Path, *arguments: Path) -> subprocess.CompletedProcess:
    """Runs a program where a TensorFlow is installed that cannot be imported."""
    package = tmp_path / "site" / "tensorflow" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("raise RuntimeError('TensorFlow is imported')")
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )


def english_first(pairs: list[tuple[str, str]]) -> list[Pair]:
    return sorted(Pair(english, german) for german, english in pairs)


@pytest.fixture(scope="module", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """TFDS leaves an empty folder for every builder of a data set that is not prepared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        patch.setenv("TMPDIR", tempfile.gettempdir())
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TFDS folder with PAIRS, to read only."""
    folder = tmp_path_factory.mktemp("tfds")
    write_wmt14_like(folder, PAIRS)
    return folder


# Reading -------------------------------------------------------------------------------------


def test_the_splits_are_what_was_written(folder):
    corpus = open_corpus(config(folder))
    for name, split in [("train", "train"), ("valid", "validation"), ("test", "test")]:
        assert len(corpus.split(name)) == len(PAIRS[split])
        assert sorted(corpus.split(name)) == english_first(PAIRS[split])
        assert list(corpus.split(name)) == list(corpus.split(split))
    assert NAME in corpus.describe() and str(folder) in corpus.describe()


def test_pairs_are_read_by_position_as_tfds_decodes_them(folder, monkeypatch):
    monkeypatch.setattr(by_position, "TOGETHER", 7)
    corpus = open_corpus(config(folder, src="de", tgt="en"))
    examples = corpus.builder.as_data_source("train")
    want = [Pair(example["de"].decode(), example["en"].decode()) for example in examples]
    pairs = corpus.split("train")
    assert list(pairs) == [pairs[i] for i in range(30)] == want
    assert (pairs[-1], pairs[5:3:-1], pairs[30:]) == (want[-1], want[5:3:-1], [])


def test_several_splits_and_parts_of_one_are_joined_in_order(folder):
    corpus = open_corpus(config(folder, train=("validation", "train[:10]", "test")))
    parts = [list(corpus.split(name)) for name in ("validation", "train[:10]", "test")]
    assert [len(part) for part in parts] == [3, 10, 1]
    assert list(corpus.split("train")) == sum(parts, [])


def test_the_fingerprint_is_of_content_and_direction(folder, tmp_path):
    settings = [{}, {"train": ("train[:29]",)}, {"train": ("train", "test")}]
    settings.append({"src": "de", "tgt": "en"})
    prints = [open_corpus(config(folder, **one)).fingerprint("train") for one in settings]
    assert len({*prints, open_corpus(config(folder)).fingerprint("test")}) == 5
    write_wmt14_like(tmp_path, PAIRS)
    assert open_corpus(config(tmp_path)).fingerprint("train") == prints[0]


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (12, str.swapcase),  # one that the fingerprint reads
        (29, str.swapcase),  # the last
        (13, lambda line: line + "!"),  # one that it does not read
    ],
)
def test_the_fingerprint_of_a_large_split_reads_a_sample_and_the_size(
    folder, tmp_path, monkeypatch, place, change
):
    monkeypatch.setattr(tfds_corpus, "SAMPLE", 5)  # examples 0, 6, 12, 18, 24 and the last
    corpus = open_corpus(config(folder))
    old = corpus.split("train")[place]
    pairs = [(de, change(en)) if en == old.src else (de, en) for de, en in PAIRS["train"]]
    write_wmt14_like(tmp_path, PAIRS | {"train": pairs})
    changed = open_corpus(config(tmp_path))
    assert changed.split("train")[place] == Pair(change(old.src), old.tgt)
    assert changed.fingerprint("train") != corpus.fingerprint("train")
    assert changed.fingerprint("test") == corpus.fingerprint("test")


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"name": None}, ["data.name is not set", NAME]),
        ({"name": "wmt14_translat/de-en"}, ["has no 'wmt14_translat'", "but wmt14_translate"]),
        ({"name": "qqq"}, ["data.name='qqq'", "has no 'qqq'"]),
        ({"name": "not a name"}, ["has no 'not a name'"]),
        ({"name": "community:qqq/de"}, ["has no 'community'"]),
        ({"name": "huggingface:wmt14/de-en"}, ["has no 'huggingface'"]),
        ({"name": "wmt14_translate/de-fr"}, ["TFDS has wmt14_translate/cs-en:1.0.0, de-en:1.0.0"]),
        ({"name": f"{NAME}:9.9.9"}, ["TFDS has wmt14_translate/cs-en:1.0.0"]),
        ({"src": "fr"}, ["data.src='fr' is not in wmt14_translate/de-en, which has de, en"]),
        ({"tgt": "fr"}, ["data.tgt='fr' is not in"]),
        (
            {"name": "wmt14_translate/fr-en", "tgt": "fr"},
            ["is not prepared in", "fr-en/1.0.0", "data.path", "prepare --config="],
        ),
        ({"train": ("training",)}, ["has no split 'training', only train, validation, test"]),
        ({"train": ("train", "dev")}, ["has no split 'dev'"]),
        ({"train": ("train[:x]",)}, ["has no split 'train[:x]'"]),
        ({"train": ("train[:0]",)}, ["'train[:0]'", "no examples"]),
        ({"train": ()}, ["data.train is empty"]),
    ],
)
def test_mistakes_are_one_line_that_says_where(folder, changes, want):
    with refused(DataError, *want):
        open_corpus(config(folder, **changes)).split("train")


def test_a_folder_may_be_under_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert len(open_corpus(config(folder, path=f"~/{folder.name}")).split("test")) == 1


def test_without_a_path_the_default_folder_is_searched(monkeypatch, tmp_path):
    from tensorflow_datasets.core import constants

    monkeypatch.setattr(constants, "DATA_DIR", str(tmp_path / "default"))
    with pytest.raises(DataError, match=f"not prepared in {tmp_path / 'default'}/wmt14_translate"):
        open_corpus(config(tmp_path, path=None))


@pytest.mark.parametrize("damage", ["missing", "cut", "halved", "junk"])
def test_damaged_shards_are_named(tmp_path, damage):
    shard = write_wmt14_like(tmp_path, PAIRS) / "wmt14_translate-train.array_record-00000-of-00001"
    content = shard.read_bytes()
    kept = {"cut": content[:-1], "halved": content[: len(content) // 2], "junk": b"?" * (1 << 17)}
    shard.unlink()
    if damage in kept:
        shard.write_bytes(kept[damage])
    corpus = open_corpus(config(tmp_path))
    with refused(DataError, f"{shard.parent} is damaged ", "prepare --config"):
        corpus.split("train")
    assert len(corpus.split("test")) == 1


def test_files_that_only_tensorflow_reads_are_refused(tmp_path):
    folder = write_wmt14_like(tmp_path, PAIRS)
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(DataError, match=f"^{folder} holds tfrecord files, which only TensorFlow"):
        open_corpus(config(tmp_path))


# Preparing -----------------------------------------------------------------------------------

GERMAN = {
    "europarl": [(f"Europa {i}", f"Europe {i}") for i in range(600)],
    "commoncrawl": [("Netz", "web"), ("", "skipped by TFDS")],
    "newscommentary": [("Meinung\u2028!", "opinion")],
    "newstest2013": [("Haus", "house"), ("Baum", "tree")],
    "newstest2014": [("Prüfung", "test"), ("eins", "one"), ("A &amp; B", "A &amp; B")],
}

PREPARE = """
import resource, sys
from pathlib import Path
from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.tfds_corpus import prepare
assert "tensorflow_datasets" not in sys.modules  # half a second, for those who need it
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from tensorflow_datasets.core import shuffle
shuffle.MAX_MEM_BUFFER_SIZE = 100  # bytes: the sorting goes to disk, as the real data's does
from tests.text.tfds_fixture import serve_as_wmt
archives, folder = map(Path, sys.argv[1:])
data = DataConfig(source="tfds", path=str(folder), name="wmt14_translate/de-en")
try:
    open_corpus(data)
except DataError as error:
    print(error)
with serve_as_wmt(archives):
    print(prepare(data))
corpus = open_corpus(data)
print(len(list(corpus.split("train"))), len(corpus.fingerprint("train")))
"""


def assert_prepared(data):
    corpus = open_corpus(data)
    train = GERMAN["europarl"] + GERMAN["commoncrawl"][:1] + GERMAN["newscommentary"]
    assert sorted(corpus.split("train")) == english_first(train)
    assert sorted(corpus.split("validation")) == english_first(GERMAN["newstest2013"])
    assert sorted(corpus.split("test")) == english_first(GERMAN["newstest2014"])


def test_prepare_downloads_unpacks_sorts_and_writes_without_tensorflow(tmp_path):
    write_wmt14_archives(tmp_path / "wmt", GERMAN)
    done = run(PREPARE, tmp_path, tmp_path / "wmt", tmp_path / "data")
    # Standard output has the results alone: what TFDS prints goes to standard error.
    error, *others = done.stdout.splitlines()
    assert others == [f"{tmp_path}/data/wmt14_translate/de-en/1.0.0", "602 64"], done.stderr
    assert error.startswith("wmt14_translate/de-en is not prepared in ")
    assert_prepared(config(tmp_path / "data"))


def test_prepare_uses_the_archives_in_the_manual_folder(tmp_path, monkeypatch, capsys):
    from tensorflow_datasets.core.download import checksums
    from tensorflow_datasets.translate import wmt, wmt14

    write_wmt14_archives(tmp_path / "wmt", GERMAN)
    manual = tmp_path / "data" / "downloads" / "manual"
    manual.mkdir(parents=True)
    # TFDS knows the real archives' checksums; the test registers those of the small ones.
    urls = {url for subset in wmt.DATASET_MAP.values() for url in subset._urls}
    known = {}
    for archive in (tmp_path / "wmt").rglob("*.t*"):
        if archive.is_file():
            moved = archive.rename(manual / archive.name)
            known |= {
                url: checksums.compute_url_info(moved) for url in urls if url.endswith(moved.name)
            }
    monkeypatch.setattr(wmt14.Wmt14Translate, "url_infos", known)
    data = config(tmp_path / "data")
    folder = tfds_corpus.prepare(data)
    assert folder == str(tmp_path / "data" / "wmt14_translate" / "de-en" / "1.0.0")
    assert capsys.readouterr().out == ""
    assert_prepared(data)
    assert tfds_corpus.prepare(data) == folder  # and what is there stays


def refuse(url: str, **_):
    """What requests raises where no server answers, without TFDS's minutes of retrying."""
    raise requests.ConnectionError(f"{url}: Connection refused")


@pytest.mark.parametrize(
    ("trouble", "want"),
    [
        ("missing", ["training-parallel-europarl-v7.tgz", "404"]),
        ("broken", ["extracting", "could not be opened"]),
        ("by hand", ["require a manual download"]),
        ("offline", ["training-parallel-", "Connection refused"]),
        ("other", ["training-parallel-europarl-v7.tgz", "wrong checksum"]),
    ],
)
def test_prepare_says_what_failed_and_the_way_round(tmp_path, monkeypatch, trouble, want):
    write_wmt14_archives(tmp_path / "wmt", GERMAN)
    archive = tmp_path / "wmt" / "wmt13" / "training-parallel-europarl-v7.tgz"
    manual = tmp_path / "data" / "downloads" / "manual"
    manual.mkdir(parents=True)
    data = config(tmp_path / "data")
    server = serve_as_wmt(tmp_path / "wmt")
    if trouble == "missing":
        archive.unlink()
    elif trouble == "broken":
        archive.write_bytes(b"<html>503</html>")
    elif trouble == "by hand":
        data = config(tmp_path / "data", name="wmt14_translate/cs-en", tgt="cs")
    elif trouble == "other":
        archive.rename(manual / archive.name)
        server = contextlib.nullcontext()  # TFDS knows the sums of the real addresses
    if trouble in ("offline", "other"):
        monkeypatch.setattr("tensorflow_datasets.core.download.downloader._open_url", refuse)
    with server, pytest.raises(DataError) as error:
        tfds_corpus.prepare(data)
    message = str(error.value)
    assert all(part in message for part in [*want, str(manual)]), message
    assert "\n" not in message and ".." not in message


# The command -------------------------------------------------------------------------------------


def test_the_data_set_is_prepared_and_standard_output_stays_empty(
    tmp_path, monkeypatch, capsys, caplog
):
    asked = []

    def folder_of(data):
        asked.append((data.name, data.tgt))
        return "/tfds/wmt14_translate"

    monkeypatch.setattr(tfds_corpus, "prepare", folder_of)
    data = {"data.source": "tfds", "data.name": "wmt14_translate/fr-en", "data.tgt": "fr"}
    preset = runs.write_preset(tmp_path / "preset.py", data)
    with caplog.at_level("INFO"):
        assert runs.command("prepare", f"--config={preset}") == 0
    assert asked == [("wmt14_translate/fr-en", "fr")]
    assert "wmt14_translate/fr-en is prepared in /tfds/wmt14_translate" in caplog.text
    assert capsys.readouterr().out == ""
