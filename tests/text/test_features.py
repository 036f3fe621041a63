"""Source lines that name files: which files, what counts, and how they become batches."""

import dataclasses
import sys

import numpy as np
import pytest
from PIL import Image

from tests import tiny_runs as runs
from tests.fixtures.cases import refused
from tests.fixtures.encoded import rows_of
from tests.text.test_encoded import Characters
from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text.batches import TrainSource, packed_batch, packed_sentences
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.encoded import encode_corpus
from transformer_jax.text.features import KINDS, FeatureReader, feature_count
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.packing import plan_rows
from transformer_jax.text.vocabulary import UNK

COLUMNS = (3, 5, 2, 4)  # of each picture: positions of 1 pixel


def draw(path, columns: int, first: int = 0) -> None:
    pixels = np.arange(first, first + 2 * columns, dtype=np.uint8).reshape(2, columns)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inside").mkdir()
    for number, columns in enumerate(COLUMNS):
        draw(tmp_path / "inside" / f"{number}.png", columns, 20 * number)
    runs.write_lines(tmp_path / "train.files", [f"inside/{n}.png" for n in range(4)])
    runs.write_lines(tmp_path / "train.en", ["a", "bc", "def", "g"])
    return tmp_path


def data_of(folder, **changes) -> DataConfig:
    given = {"src": "files", "tgt": "en", "valid": ("train",), "patch_height": 2, "patch_width": 1}
    return DataConfig(path=str(folder), **{"src_kind": "pictures", **given, **changes})


def expected(number: int) -> np.ndarray:
    columns = COLUMNS[number]
    pixels = np.arange(20 * number, 20 * number + 2 * columns).reshape(2, columns)
    return pixels.T / 127.5 - 1


def test_every_kind_says_how_many_numbers_a_position_has():
    data = DataConfig(mel_bands=7, stacked_frames=3, patch_height=5, patch_width=4)
    found = {kind: feature_count(dataclasses.replace(data, src_kind=kind)) for kind in KINDS}
    assert found == {"text": 0, "speech": 21, "pictures": 20}


@pytest.fixture
def encoded(folder, tmp_path):
    read = FeatureReader(data_of(folder), folder)
    pairs = open_corpus(data_of(folder)).split("train")
    return encode_corpus(pairs, Characters(), tmp_path / "cache", "key", read=read)


@pytest.fixture
def plan(encoded):
    return plan_rows(encoded.src_lengths(), encoded.tgt_lengths(), 10, 8, seed=0)


def test_files_become_rows_of_a_batch(encoded, plan):
    assert encoded.src_ids.dtype == np.float16
    assert encoded.src_lengths().tolist() == list(COLUMNS)
    np.testing.assert_allclose(encoded.src(1), expected(1), atol=1e-3)
    batch = packed_batch(encoded, plan, np.arange(len(plan)))
    found = {}
    for row, pairs in enumerate(rows_of(plan)):
        for segment, pair in enumerate(pairs, start=1):
            own = batch.src.segments[row] == segment
            found[pair] = batch.src.features[row, own]
            np.testing.assert_array_equal(batch.src.positions[row, own], range(COLUMNS[pair]))
            assert (batch.src.ids[row, own] == UNK).all()
    assert len(found) == 4
    for number, numbers in found.items():
        np.testing.assert_allclose(numbers, expected(number), atol=1e-3)
    assert not batch.src.features[batch.src.segments == 0].any()
    alone = packed_sentences([encoded.src(n) for n in range(2)], rows=3, length=6)
    np.testing.assert_array_equal(alone.features[1, :5], encoded.src(1))
    np.testing.assert_array_equal(alone.segments.sum(1), [3, 5, 0])
    np.testing.assert_array_equal(alone.positions[0], range(6))


def test_masks_are_those_of_the_row_s_number_in_the_stream(encoded, plan):
    seen = []

    def masks(source, rows):
        seen.append(rows.tolist())
        return source._replace(features=-source.features)

    plain, masked = (TrainSource(encoded, plan, 2, 0, None, own) for own in (None, masks))
    np.testing.assert_array_equal(masked[3].src.features, -plain[3].src.features)
    own = TrainSource(encoded, plan, 2, 0, np.array([1]), masks)[3]
    assert seen == [[6, 7], [7]]
    np.testing.assert_array_equal(own.src.features[0], masked[3].src.features[1])


def test_what_the_files_have_counts(folder):
    before = open_corpus(data_of(folder)).fingerprint("train")
    assert open_corpus(data_of(folder)).fingerprint("train") == before
    assert open_corpus(data_of(folder, patch_width=2)).fingerprint("train") != before
    draw(folder / "inside" / "2.png", 2, 99)
    assert open_corpus(data_of(folder)).fingerprint("train") != before


@pytest.mark.parametrize(
    "line, message",
    [
        ("../a.png", "line 2 of the split, '../a.png': not in the folder"),
        ("/etc/hostname", "line 2 of the split, '/etc/hostname': not in the folder"),
        ("inside/none.png", "line 2 of the split, .*none.png.: no such file"),
        ("inside", "line 2 of the split, .*inside.: no such file"),
        ("train.en", "line 2 of the split, .*train.en: not a picture"),
        ("inside/small.png", "line 2 of the split, .*small.png: too small, it has one source"),
        ("x" * 300, "line 2 of the split, .*no such file"),
        ("a\0b", "line 2 of the split, .*no such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(folder, line, message):
    draw(folder / "inside" / "small.png", 1)
    reader = FeatureReader(data_of(folder), folder)
    with pytest.raises(DataError, match=message):
        reader(["inside/0.png", line], 0)
    with pytest.raises(DataError, match=message.replace("line 2 ", "line 12 ")):
        reader([line], 11)
    with pytest.raises(DataError, match="^" + message.replace("line 2 of the split, ", "")):
        reader([line])


@pytest.mark.parametrize(
    "kind, package, install",
    [("speech", "soundfile", "pip install soundfile"), ("pictures", "PIL", "pip install pillow")],
)
def test_a_missing_package_is_one_line(folder, monkeypatch, kind, package, install):
    monkeypatch.setitem(sys.modules, package, None)
    with refused(DataError, install):
        FeatureReader(data_of(folder, src_kind=kind), folder)(["inside/0.png"])


def test_a_link_out_of_the_folder_is_named(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "inside" / "0.png").rename(elsewhere / "0.png")
    (folder / "linked").symlink_to(elsewhere)
    with refused(DataError, f"a link leads to {elsewhere}/0.png"):
        FeatureReader(data_of(folder), folder)(["linked/0.png"])


def test_a_blank_line_has_no_positions_and_any_file_is_read_without_a_folder(folder):
    blank, one = FeatureReader(data_of(folder))(["  ", str(folder / "inside" / "0.png")])
    assert blank.shape == (0, 2) and one.shape == (3, 2)


def test_pairs_hold_the_names(folder):
    assert open_corpus(data_of(folder)).split("train")[0] == Pair("inside/0.png", "a")
