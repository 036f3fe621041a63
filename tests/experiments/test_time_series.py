"""Time series: windows, models, their control, and verdicts."""

import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import time_series
from experiments.time_series import (
    ENCODER,
    HORIZON,
    MODELS,
    NLINEAR,
    PAST,
    RATES,
    Kept,
    Series,
    count_of,
    error_of,
    label_of,
    parts_of,
    read_series,
    rows_of,
    train,
    verdicts,
    windows,
)
from transformer_jax.errors import DataError
from transformer_jax.model.axes import unboxed


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
    past, future = windows(series.test, np.array([0, count_of(series.test) - 1]))
    np.testing.assert_array_equal(past[1], series.test[:PAST, 1])
    np.testing.assert_array_equal(future[2], series.test[-HORIZON:, 0])


def params_of(name: str) -> tuple:
    model = MODELS[name]()
    params = unboxed(model.init(jax.random.key(0), jnp.zeros((2, PAST)), None)["params"])
    return model, params


@pytest.mark.parametrize("name", MODELS)
def test_a_series_that_is_higher_is_predicted_higher(name):
    """By the mean, the last value, or both parts of a decomposition."""
    model, params = params_of(name)
    past = jnp.asarray(np.random.default_rng(0).normal(size=(3, PAST)), jnp.float32)
    one, other = (model.apply({"params": params}, x, None) for x in (past, past + 5))
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

    past, future = windows(part, np.arange(count_of(part)))
    assert error_of(predict, None, part, order) == pytest.approx((future**2).mean())
    np.testing.assert_array_equal(np.concatenate(pasts), past[:, ::-1])


def test_training_keeps_the_best_step(monkeypatch):
    monkeypatch.setattr(time_series, "STEPS", 30)
    monkeypatch.setattr(time_series, "VALID_EVERY", 10)
    draw = np.random.default_rng(0)
    hours = np.sin(np.arange(1_100) * 2 * np.pi / 24)[:, None] + 0.1 * draw.normal(size=(1_100, 1))
    parts = [hours[:700], hours[200:760], hours[400:]]
    series = Series(*(part.astype(np.float32) for part in parts))
    found = train(NLINEAR, series, 1e-2, 0, np.arange(PAST))
    assert found.step == 30 and found.test < 0.4
    worse = train(NLINEAR, series, 10.0, 0, np.arange(PAST))
    assert worse.valid > found.valid


@pytest.mark.parametrize(
    "line, encoder, want",
    [
        ([0.374, 0.375, 0.3745], [0.376, 0.377, 0.378], ["holds", "holds"]),
        ([0.374, 0.375, 0.3745], [0.399, 0.400, 0.401], ["holds", "does not hold"]),
        ([0.374, 0.375, 0.3745], [0.330, 0.331, 0.332], ["holds", "does not hold"]),
        ([0.39, 0.391, 0.3905], [0.380, 0.385, 0.400], ["does not hold", "not decided"]),
        ([0.374, 0.375], [], ["holds", "not run"]),
        ([], [], ["not run", "not run"]),
    ],
)
def test_verdicts(line, encoder, want):
    found = {"last value": [0, 1.3, 0]}
    for name, errors in ((NLINEAR, line), (ENCODER, encoder)):
        rate = RATES[name][1]
        found |= {label_of(name, rate, seed): [0, x, 150] for seed, x in enumerate(errors)}
        found |= {label_of(name, RATES[name][0], 0): [0, 9, 150]} if errors else {}
    assert list(verdicts(rows_of(found)).values()) == want
    *_, table = parts_of(found)
    assert len(table.rows) == 1 + bool(line) + bool(encoder)


def test_what_was_measured_is_not_measured_again(tmp_path):
    path = tmp_path / "evidence.json"
    asked = []

    def ask():
        asked.append(1)
        return np.float32(0.5), 0.25, 150

    assert Kept(path, "ab")("a", ask) == Kept(path, "ab")("a", ask) == (0.5, 0.25, 150)
    assert len(asked) == 1
    with pytest.raises(DataError, match="was measured on another series"):
        Kept(path, "cd")


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
