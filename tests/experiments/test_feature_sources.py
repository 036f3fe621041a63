"""Sources that are not text: pictures, speech and time series."""

import gzip
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

from experiments import digit_grids, pictures, short_demo, speech, time_series
from experiments.digit_grids import grid_of, grids, share_on_cells, text_of
from experiments.judging import FAILS
from experiments.pictures import CYRILLIC, drawn, in_cells, look_alike, noisy, swapped
from experiments.speech import SPEAKERS, UNHEARD, Spoken, found_digits, samples_of, strings
from experiments.time_series import (
    HORIZON,
    NLINEAR,
    PAST,
    SHUFFLED,
    Kept,
    Trained,
    count_of,
    read_series,
)
from tests.fixtures.cases import first_quick, full
from transformer_jax.errors import DataError
from transformer_jax.evaluation.attention import Attention
from transformer_jax.model.axes import unboxed
from transformer_jax.text.pictures import patches

# Pictures, and grids of digits -------------------------------------------------------------------


def test_look_alike_letters_are_drawn_alike():
    line = "The old man accepts a box."
    other = look_alike(line)
    assert other != line and len(other) == len(line)
    assert sum(a != b for a, b in zip(line, other, strict=True)) == 4
    np.testing.assert_array_equal(drawn(other), drawn(line))
    for latin, cyrillic in CYRILLIC.items():
        np.testing.assert_array_equal(drawn(latin), drawn(cyrillic), err_msg=latin)


def test_a_line_fits_into_its_picture():
    picture = drawn("Äpfel, Jacques?")
    assert picture.shape[0] == pictures.HEIGHT and (picture < 128).any()
    assert (picture[0] == 255).all(), "nothing is cut off above"
    assert drawn("x", 13).shape[1] >= drawn("x").shape[1]
    assert drawn("").shape == (pictures.HEIGHT, 1)


def test_each_patch_has_a_letter():
    line = "Wolf jagt."
    picture = in_cells(line)
    for n, letter in enumerate(line):
        cell = picture[:, pictures.WIDTH * n : pictures.WIDTH * (n + 1)]
        np.testing.assert_array_equal(cell, in_cells(letter))
        assert (cell.min() < 128) == (letter != " ")
    np.testing.assert_array_equal(in_cells(look_alike(line)), picture)


def test_changes_are_what_they_say():
    assert swapped("one three seven eight a nine") == "one three seven egiht a nine"
    changed = noisy(np.full((16, 2_000), 128, np.uint8), 0)
    assert changed.std() == pytest.approx(pictures.NOISE, rel=0.05)
    np.testing.assert_array_equal(changed, noisy(np.full((16, 2_000), 128, np.uint8), 0))


def test_a_grid_shows_its_digits_row_by_row():
    images = np.zeros((10, 8, 8))
    images[:, 0, 0] = range(10)
    numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    grid = grid_of(images, numbers)
    np.testing.assert_array_equal(
        grid[::8, ::8], (255 - 255 * np.arange(1, 10).reshape(3, 3) / 16).astype(np.uint8)
    )
    assert (grid[1::8] == 255).all()
    assert text_of(list(range(10)), numbers[:3]) == "one two three"


def test_the_test_has_digits_that_training_never_has(monkeypatch):
    monkeypatch.setattr(digit_grids, "SIZES", {"train": 500, "test": 50})
    labels = [0] * 1_797
    train, test = ({n for one in grids(name, labels) for n in one} for name in ("train", "test"))
    assert max(train) < 1_400 <= min(test)


def test_attention_is_summed_over_each_digit_s_patches():
    """A picture in which only one digit is not white says which patches are that digit's."""
    weights_NHLM = np.zeros((2, 1, 10, 36), np.float32)
    for cell in range(9):
        pixels = np.full((24, 24), 1.0)
        down, across = divmod(cell, 3)
        pixels[8 * down : 8 * down + 8, 8 * across : 8 * across + 8] = 0
        own = (patches(pixels, 4, 4) == 0).all(1)
        assert own.sum() == 4
        weights_NHLM[-1, 0, cell, own] = 0.2
        weights_NHLM[-1, 0, cell, ~own] = 0.2 / 32
    cross = Attention(weights_NHLM, ["\u2581one"] * 9 + ["</s>"], [""] * 36, (1,))
    np.testing.assert_allclose(share_on_cells(cross), 0.8, rtol=1e-6)


# Speech ------------------------------------------------------------------------------------------

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
    names = {name for split in speech.SIZES for one in strings(split) for name in one.names}
    lengths = {name: 100 + 10 * n for n, name in enumerate(sorted(names))}
    samples = {name: np.full(length, length, "<i2") for name, length in lengths.items()}
    speech.write_text(tmp_path, samples)
    [first, _] = strings("test")
    found, rate = soundfile.read(tmp_path / "test" / "0.wav", dtype="int16")
    want = np.concatenate([samples[name] for name in first.names])
    assert rate == 8_000
    np.testing.assert_array_equal(found, want)
    assert (tmp_path / "test.words").read_text().splitlines()[0] == first.text
    [joins, _] = speech.joins_of(samples)
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


def test_a_string_is_read_as_words():
    one = Spoken((3, 0, 9), "theo", (1, 2, 3))
    assert one.text == "three zero nine" and one.names[1] == "0_theo_2.wav"


def test_weights_are_those_where_words_begin():
    weights_NHLM = np.zeros((2, 2, 4, 8))
    weights_NHLM[-1, :, [0, 2]] = LOOKS[:, None] * [[[0.5], [1.5]]]
    pieces = ["\u2581one", "wo", "\u2581two", "</s>"]
    cross = Attention(weights_NHLM, pieces, ["0.00 s"] * 8, (1, 2))
    np.testing.assert_allclose(speech.weights_of_words(cross), LOOKS)


def test_a_digit_is_found_if_the_largest_weight_is_in_its_recording():
    assert found_digits(LOOKS, [0, 0.16, 0.32]) == [True, True]
    assert found_digits(LOOKS, [0, 0.05, 0.32]) == [False, True]


def test_a_join_is_where_the_weights_change_hands():
    assert speech.estimated_joins(LOOKS) == pytest.approx([3 * 0.04])


# Time series -------------------------------------------------------------------------------------


def test_the_parts_follow_one_another_and_are_standardized_by_the_first(tmp_path):
    path = tmp_path / "a.csv.gz"
    hours = range(14_600)
    with gzip.open(path, "wt") as file:
        file.write("date,a,b\n" + "".join(f"x,{n},{n % 7}\n" for n in hours))
    series = read_series(path)
    assert [count_of(part) for part in series] == [8_209, 2_785, 2_785]
    np.testing.assert_allclose(series.train.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(series.train.std(0), 1, atol=1e-4)
    np.testing.assert_array_equal(series.valid[:PAST], series.train[-PAST:])
    np.testing.assert_array_equal(series.test[:PAST], series.valid[-PAST:])
    past, future = time_series.windows(series.test, np.array([0, count_of(series.test) - 1]))
    np.testing.assert_array_equal(past[1], series.test[:PAST, 1])
    np.testing.assert_array_equal(future[2], series.test[-HORIZON:, 0])


def params_of(name: str) -> tuple:
    model = time_series.MODELS[name]()
    params = unboxed(model.init(jax.random.key(0), jnp.zeros((2, PAST)), None)["params"])
    return model, params


@pytest.mark.parametrize("name", first_quick(time_series.MODELS, 1))
def test_a_series_that_is_higher_is_predicted_higher(name):
    """By the mean, the last value, or both parts of a decomposition."""
    model, params = params_of(name)
    past = jnp.asarray(np.random.default_rng(0).normal(size=(3, PAST)), jnp.float32)
    compute = jax.jit(lambda x: model.apply({"params": params}, x, None))
    one, other = compute(past), compute(past + 5)
    assert one.shape == (3, HORIZON)
    np.testing.assert_allclose(other - one, 5, atol=1e-3)


def test_the_mean_around_an_hour_is_that_of_25():
    model, params = params_of("DLinear")
    series = np.random.default_rng(0).normal(size=PAST).astype(np.float32)
    padded = np.concatenate([[series[0]] * 12, series, [series[-1]] * 12])
    mean = np.array([padded[n : n + 25].mean() for n in range(PAST)])
    kernels = [params[f"Line_{n}"]["Dense_0"]["kernel"] for n in (0, 1)]
    want = (series - mean) @ kernels[0] + mean @ kernels[1] * 2
    params["Line_1"]["Dense_0"]["kernel"] *= 2
    got = model.apply({"params": params}, series[None], None)[0]
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_the_error_counts_every_window_and_takes_the_past_in_order():
    part = np.arange(600, dtype=np.float32)[:, None] % 9
    order = np.arange(PAST)[::-1]
    pasts = []

    def predict(params, past):
        pasts.append(past)
        return np.zeros((len(past), HORIZON))

    past, future = time_series.windows(part, np.arange(count_of(part)))
    assert time_series.error_of(predict, None, part, order) == pytest.approx((future**2).mean())
    np.testing.assert_array_equal(np.concatenate(pasts), past[:, ::-1])


def test_training_keeps_the_best_step(monkeypatch):
    monkeypatch.setattr(time_series, "STEPS", 30)
    monkeypatch.setattr(time_series, "VALID_EVERY", 10)
    draw = np.random.default_rng(0)
    hours = np.sin(np.arange(1_100) * 2 * np.pi / 24)[:, None] + 0.1 * draw.normal(size=(1_100, 1))
    parts = [hours[:700], hours[200:760], hours[400:]]
    series = time_series.Series(*(part.astype(np.float32) for part in parts))
    found = time_series.train(NLINEAR, series, 1e-2, 0, np.arange(PAST))
    assert found.step == 30 and found.test < 0.4
    worse = time_series.train(NLINEAR, series, 10.0, 0, np.arange(PAST))
    assert worse.valid > found.valid


@pytest.mark.parametrize(
    "line, encoder, shuffled, want",
    [
        ([0.374, 0.375, 0.3745], [0.376, 0.377, 0.378], [], ["holds", "holds", "not run"]),
        ([0.374, 0.375, 0.3745], [0.399, 0.400, 0.401], [], ["holds", FAILS, "not run"]),
        ([0.374, 0.375, 0.3745], [0.330, 0.331, 0.332], [0.34] * 3, ["holds", FAILS, "holds"]),
        ([0.39, 0.391, 0.3905], [0.380, 0.385, 0.400], [0.3] * 3, [FAILS, "not decided", FAILS]),
        ([0.374, 0.375], [], [], ["not run"] * 3),
        ([], [], [], ["not run"] * 3),
    ],
)
def test_time_series_verdicts(line, encoder, shuffled, want):
    found = {"last value": Trained(0, 1.3, 0)}
    encoders = {time_series.ENCODER: encoder, time_series.ENCODER + SHUFFLED: shuffled}
    for name, errors in {NLINEAR: line, **encoders}.items():
        worse, rate = time_series.RATES[name.removesuffix(SHUFFLED)][:2]
        for seed, error in enumerate(errors):
            found[time_series.label_of(name, rate, seed)] = Trained(0, error, 150)
            found[time_series.label_of(name, worse, 0)] = Trained(0, 9, 150)
    assert list(time_series.verdicts(time_series.rows_of(found)).values()) == want
    *_, table = time_series.parts_of(found)
    assert len(table.rows) == 1 + bool(line) + bool(encoder) + bool(shuffled)


def test_the_mean_of_a_day_is_that_of_each_hour():
    hours = np.arange(PAST) % 24 + 100.0 * (np.arange(PAST) // 24)
    days = [(PAST - 24 * n) // 24 - 1 for n in range(7)]
    want = [hour % 24 + 100 * np.mean(days) for hour in range(HORIZON)]
    np.testing.assert_allclose(time_series.same_hours(hours[None]), [want])


def test_what_was_measured_is_not_measured_again(tmp_path):
    asked = []

    def ask():
        asked.append(1)
        return np.float32(0.5), 0.25, 150

    assert Kept(tmp_path, "ab")("a", ask) == Kept(tmp_path, "ab")("a", ask) == (0.5, 0.25, 150)
    assert len(asked) == 1
    with pytest.raises(DataError, match="was measured on another series"):
        Kept(tmp_path, "cd")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x,1\n" * 14_399, "has not 14,400 hours"),
        ("x,1\n" * 14_400, "a column that never changes"),
        ("x,nan\n" * 14_400, "has not 14,400 hours of numbers"),
        ("x,one\n" * 3, "is no gzip of a table"),
        ("x," + 200_000 * "1" + "\n", "is no gzip of a table"),
        ("", "has not 14,400 hours"),
        (None, "is no gzip of a table"),
    ],
)
def test_another_file_is_refused(rows, message, tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(b"date,a" if rows is None else gzip.compress(f"date,a\n{rows}".encode()))
    with pytest.raises(DataError, match=message):
        read_series(path)


def test_a_file_without_its_line_of_names_is_refused(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"2016-07-01 00:00:00,1\n" * 14_401))
    with pytest.raises(DataError, match="no line of names"):
        read_series(path)
    content = bytearray(path.read_bytes())
    content[40] ^= 0x5A
    path.write_bytes(content)
    with pytest.raises(DataError, match="is no gzip of a table"):
        read_series(path)


# Their texts -------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    short_demo.write_split(tmp_path / "new", "a", {"en": ["x", 1], "de": ["y", 2]})
    assert (tmp_path / "new" / "a.de").read_text() == "y\n2\n"
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError):
        short_demo.write_split(tmp_path, "b", {"en": ["x"], "de": ["y"]})
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
