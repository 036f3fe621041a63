"""Strings of spoken digits: who speaks in which split, and what attention finds in them."""

import tarfile

import numpy as np
import pytest
import soundfile

from experiments import speech
from experiments.speech import (
    SPEAKERS,
    UNHEARD,
    Spoken,
    estimated_joins,
    found_digits,
    joins_of,
    samples_of,
    strings,
    weights_of_words,
    write_text,
)
from transformer_jax.errors import DataError
from transformer_jax.evaluation.attention import Attention

# Four positions of 40 ms for each of two words.
LOOKS = np.array([[0.1, 0.6, 0.2, 0.1, 0, 0, 0, 0], [0, 0, 0, 0.1, 0, 0.5, 0.4, 0]])


def test_the_tests_have_recordings_that_training_never_has():
    heard = {name for split in ("train", "valid") for one in strings(split) for name in one.names}
    tested = {name for one in strings("test") for name in one.names}
    unheard = {one.speaker for one in strings("unheard")}
    assert not heard & tested and unheard == {UNHEARD}
    assert {one.speaker for one in strings("train")} == set(SPEAKERS) and len(heard) > 2_200
    assert {len(one.digits) for one in strings("test")} == {3, 4, 5, 6}


def test_recordings_are_joined_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(speech, "SIZES", {"train": 3, "valid": 1, "test": 2, "unheard": 1})
    lengths = {name: 100 + 10 * n for n, name in enumerate(sorted(_names()))}
    samples = {name: np.full(length, length, "<i2") for name, length in lengths.items()}
    write_text(tmp_path, samples)
    [first, _] = strings("test")
    found, rate = soundfile.read(tmp_path / "test" / "0.wav", dtype="int16")
    want = np.concatenate([samples[name] for name in first.names])
    assert rate == 8_000
    np.testing.assert_array_equal(found, want)
    assert (tmp_path / "test.words").read_text().splitlines()[0] == first.text
    [joins, _] = joins_of(tmp_path, samples)
    assert joins[0] == 0 and joins[-1] == pytest.approx(len(want) / 8_000)
    assert joins[1] == lengths[first.names[0]] / 8_000


def test_a_damaged_archive_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(speech, "SIZES", {"test": 1})
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(DataError, match=r"a.tar.gz has no recording \d_"):
        samples_of(path)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:-8] + b"1234" + whole[-4:], b"text"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not a whole .tar.gz"):
            samples_of(path)


def _names():
    return {name for split in speech.SIZES for one in strings(split) for name in one.names}


def test_a_string_is_read_as_words():
    one = Spoken((3, 0, 9), "theo", (1, 2, 3))
    assert one.text == "three zero nine" and one.names[1] == "0_theo_2.wav"


def test_weights_are_those_where_words_begin():
    weights_NHLM = np.zeros((2, 2, 4, 8))
    weights_NHLM[-1, :, [0, 2]] = LOOKS[:, None] * [[[0.5], [1.5]]]
    pieces = ["\u2581one", "\u2581t", "\u2581two", "</s>"]
    pieces[1] = "wo"
    cross = Attention(weights_NHLM, pieces, ["0.00 s"] * 8, (1, 2))
    np.testing.assert_allclose(weights_of_words(cross), LOOKS)


def test_a_digit_is_found_if_the_largest_weight_is_in_its_recording():
    assert found_digits(LOOKS, [0, 0.16, 0.32]) == [True, True]
    assert found_digits(LOOKS, [0, 0.05, 0.32]) == [False, True]


def test_a_join_is_where_the_weights_change_hands():
    assert estimated_joins(LOOKS) == pytest.approx([3 * 0.04])
