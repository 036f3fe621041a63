"""Does attention read numbers better than a line does? Transformer temperature, hour by hour.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.time_series

The question: the lectures name time series among what attention reads. ETTh1 (Zhou et al. 2021) has
7 columns, every hour of two years. From 336 hours the next 96 are predicted, each column alone,
with the mean squared error of standardized columns. Zeng et al. 2023 found that one linear layer
beats every Transformer of its time: 0.374 (NLinear) and 0.375 (DLinear). Nie et al. 2023 answered
with patches: about 0.375. What do a line and this project's encoder give here?

The first 8,640 hours train, the next 2,880 choose the step, the last 2,880 test, as in both papers;
each column is standardized by the mean and deviation of its training part, and every window of the
test counts. The rows: the last value repeated; the mean of the last 7 days at the same hour (added
after the runs: nothing is trained); NLinear, a matrix from 336 hours to 96 on what each hour is
above the last one; DLinear, two matrices, one for the mean over 25 hours around each hour and one
for the rest; and the encoder: 42 patches of 16 hours, 8 apart, of a window of mean 0 and variance
1, one projection to d_model 16, learned positions, 3 pre-norm layers of 4 heads with d_ff 128 and
dropout 0.3, and one matrix from all 42 outputs to 96 hours (the sizes of Nie et al. for this file;
their layers have other norms). Adam, 1,500 batches of 32 windows with 7 columns each, while the
rate falls to 0 along a cosine; the best of every 150th step by the validation error; each model has
the better of two learning rates by that error of its first seed. A control reads the same hours in
an order drawn once, but for the last: NLinear must give the same, since a matrix does not know
order, and the encoder, whose patches then mean nothing, must get worse.

The rules, written before the runs; over three seeds, by Student's t, p < 0.05. "The published line
is reached" holds if NLinear's mean error is from 0.369 to 0.380. "Attention is nearly a line" holds
if the encoder's error is below 0.39 and not below 97 % of NLinear's, and does not if it is above
0.39, or below 97 %: then attention would clearly win. Added after the runs, for what the control
was expected to do: "patches need neighbours" holds if the encoder's error is higher with the hours
in another order, and does not if it is lower.
"""

import csv
import gzip
import itertools
import logging
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN, judge
from experiments.short_demo import data_file
from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.files import blamed
from transformer_jax.model.axes import unboxed
from transformer_jax.model.interfaces import Place
from transformer_jax.model.layers.dropout import hashed
from transformer_jax.model.sides.embeddings import Projection
from transformer_jax.model.sides.transformer import TransformerEncoder
from transformer_jax.reporting.page import Heading, Part, Table, Text, write_report
from transformer_jax.tables.results import FILE, Answer, read_answers, write_answers
from transformer_jax.text.lines import file_digest
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

log = logging.getLogger("experiments.time_series")
RECORDED = "docs/results/time_series"
PAST, HORIZON = 336, 96  # hours
BORDERS = (8_640, 11_520, 14_400)  # hours after which training, validation and test end
PATCH, STRIDE = 16, 8  # hours
SMOOTHED = 25  # hours of DLinear's mean
WINDOWS, STEPS, VALID_EVERY, SEEDS = 32, 1_500, 150, (0, 1, 2)
PUBLISHED = {"NLinear": "0.374", "DLinear": "0.375", "encoder": "0.375"}  # Zeng et al.; Nie et al.
NLINEAR, DLINEAR, ENCODER, REPEATED = "NLinear", "DLinear", "encoder", "last value"
DAILY, DAYS, DAY = "mean of the same hour, 7 days", 7, 24
RATES = {NLINEAR: (5e-3, 1e-3), DLINEAR: (5e-3, 1e-3), ENCODER: (3e-3, 1e-3)}
SHUFFLED = ", hours shuffled"
NEAR, BELOW, LOW, HIGH = 0.39, 0.97, 0.369, 0.380
CONFIG = ModelConfig(
    num_layers=3,
    d_model=16,
    num_heads=4,
    d_ff=128,
    dropout=0.3,
    norm="pre",
    positions="learned",
    max_positions=(PAST - PATCH) // STRIDE + 2,
    features=PATCH,
)


# Models --------------------------------------------------------------------------------------


class Line(nn.Module):
    """A matrix from the past to the horizon, and a bias."""

    @nn.compact
    def __call__(self, past_NT: Array) -> Array:
        """`[series, HORIZON]`."""
        mean = nn.initializers.constant(1 / PAST)  # at first every hour is the mean of the past
        return nn.Dense(HORIZON, kernel_init=mean)(past_NT)


class NLinear(nn.Module):
    """A line on what each hour is above the last one (Zeng et al. 2023)."""

    @nn.compact
    def __call__(self, past_NT: Array, rows_N: Array | None) -> Array:
        """`[series, HORIZON]`."""
        last_N1 = past_NT[:, -1:]
        return Line()(past_NT - last_N1) + last_N1


class DLinear(nn.Module):
    """A line on the mean around each hour, and one on the rest (Zeng et al. 2023)."""

    @nn.compact
    def __call__(self, past_NT: Array, rows_N: Array | None) -> Array:
        """`[series, HORIZON]`."""
        around = SMOOTHED // 2
        padded_NT = jnp.pad(past_NT, ((0, 0), (around, around)), mode="edge")
        sums_NT = jnp.cumsum(jnp.pad(padded_NT, ((0, 0), (1, 0))), axis=1)
        mean_NT = (sums_NT[:, SMOOTHED:] - sums_NT[:, :-SMOOTHED]) / SMOOTHED
        return Line()(past_NT - mean_NT) + Line()(mean_NT)


class Encoder(nn.Module):
    """Patches of a window, the Transformer's encoder, and a matrix (Nie et al. 2023)."""

    def setup(self) -> None:
        """The parts."""
        self.projection = Projection(CONFIG)
        self.layers = TransformerEncoder(CONFIG, False)
        self.head = nn.Dense(HORIZON)

    def __call__(self, past_NT: Array, rows_N: Array | None) -> Array:
        """`[series, HORIZON]`."""
        mean_N1, deviation_N1 = past_NT.mean(1, keepdims=True), past_NT.std(1, keepdims=True) + 1e-5
        scaled_NT = (past_NT - mean_N1) / deviation_N1
        padded_NT = jnp.pad(scaled_NT, ((0, 0), (0, STRIDE)), mode="edge")
        first_P = jnp.arange(CONFIG.max_positions) * STRIDE
        patches_NPF = padded_NT[:, first_P[:, None] + jnp.arange(PATCH)]
        ones_NP = jnp.ones(patches_NPF.shape[:2], jnp.int32)
        place = Place(ones_NP, jnp.cumsum(ones_NP, axis=1) - 1)
        vectors = self.layers.position_vectors(place)
        x_NPD = self.layers(self.projection(patches_NPF, vectors, rows_N), place, rows_N)
        return self.head(x_NPD.reshape(len(x_NPD), -1)) * deviation_N1 + mean_N1


MODELS: dict[str, type[nn.Module]] = {NLINEAR: NLinear, DLINEAR: DLinear, ENCODER: Encoder}


# Training ------------------------------------------------------------------------------------


class Series(NamedTuple):
    """Standardized columns, float32 `[hours, columns]`."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def read_series(path: Path) -> Series:
    """The three parts of ETTh1; the last two begin with the hours of a window before them.

    Raises:
      DataError: it is no such table.
    """
    try:
        with gzip.open(path, "rt") as file:
            head, *rows = csv.reader(file)
        hours = np.array([row[1:] for row in rows][: BORDERS[-1]], np.float64)
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
        raise DataError(f"{path} is no gzip of a table with a date and numbers: {error}") from None
    if head[:1] != ["date"]:
        raise DataError(f"{path} has no line of names, which begins with date.")
    if hours.ndim < 2 or len(hours) < BORDERS[-1] or not np.isfinite(hours).all():
        raise DataError(f"{path} has not {BORDERS[-1]:,} hours of numbers.")
    train = hours[: BORDERS[0]]
    if not train.std(0).all():
        raise DataError(f"{path} has a column that never changes.")
    scaled = ((hours - train.mean(0)) / train.std(0)).astype(np.float32)
    first, second, third = BORDERS
    return Series(scaled[:first], scaled[first - PAST : second], scaled[second - PAST : third])


def windows(part: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The past `[windows * columns, PAST]` of these windows, and their future."""
    hours = numbers[:, None] + np.arange(PAST + HORIZON)
    found = part[hours].swapaxes(1, 2).reshape(-1, PAST + HORIZON)
    return found[:, :PAST], found[:, PAST:]


def count_of(part: np.ndarray) -> int:
    """Windows of a part."""
    return len(part) - PAST - HORIZON + 1


def error_of(predict: Any, params: Any, part: np.ndarray, order: np.ndarray) -> float:
    """The mean squared error over all windows and columns."""
    total = 0.0
    for first in range(0, count_of(part), WINDOWS):
        past, future = windows(part, np.arange(first, min(first + WINDOWS, count_of(part))))
        total += float(((predict(params, past[:, order]) - future) ** 2).sum())
    return total / (count_of(part) * HORIZON * part.shape[1])


class Trained(NamedTuple):
    """The best step of a training, by the validation error."""

    valid: float
    test: float
    step: float


def train(name: str, series: Series, rate: float, seed: int, order: np.ndarray) -> Trained:
    """Trains a model on the past in this order, and measures its best step."""
    model = MODELS[name]()
    params = unboxed(model.init(jax.random.key(seed), jnp.zeros((2, PAST)), None)["params"])
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, STEPS))

    @jax.jit
    def step(params: Any, state: Any, past: Array, future: Array, key: Array) -> Any:
        def loss(params: Any) -> Array:
            rows = jnp.arange(len(past))
            rngs = {"dropout": hashed(key)}
            predicted = model.apply({"params": params}, past, rows, rngs=rngs)
            return ((predicted - future) ** 2).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    predict = jax.jit(lambda params, past: model.apply({"params": params}, past, None))
    state, draw = optimizer.init(params), np.random.default_rng(seed)
    best = np.inf, params, 0
    for number in range(1, STEPS + 1):
        chosen = draw.choice(count_of(series.train), WINDOWS, replace=False)
        past, future = windows(series.train, chosen)
        key = jax.random.fold_in(jax.random.key(seed), number)
        params, state = step(params, state, past[:, order], future, key)
        if number % VALID_EVERY == 0:
            valid = error_of(predict, params, series.valid, order)
            best = min(best, (valid, params, number), key=lambda one: one[0])
    valid, params, number = best
    return Trained(valid, error_of(predict, params, series.test, order), number)


class Kept:
    """What was measured so far, by the names of trainings, in results.jsonl; it is kept there."""

    def __init__(self, folder: Path, data: str):
        """Takes its folder, and the SHA-256 of the series. Raises DataError: it has another's."""
        self.folder, self.data = folder, data
        self.found = read_answers(folder)
        if any(one.configs != [data] for one in self.found.values()):
            raise DataError(f"{folder / FILE} was measured on another series. Give another --out.")

    def __call__(self, name: str, ask: Callable[[], Sequence[float]]) -> Trained:
        """What was found under a name, or is found now."""
        if name not in self.found:
            found = Trained(*map(float, ask()))
            log.info("%s: %s", name, found)
            self.found[name] = Answer(name, [self.data], found._asdict())
            write_answers(self.folder, self.found.values())
        return Trained(**self.found[name].found)


def measure(series: Series, kept: Kept) -> None:
    """Trains every row."""
    as_it_is = np.arange(PAST)
    # The last hour stays, since NLinear takes it from every other one.
    shuffled = np.append(np.random.default_rng(0).permutation(PAST - 1), PAST - 1)

    def trained(name: str, rate: float, seed: int, order: np.ndarray, suffix: str = "") -> Trained:
        label = label_of(name + suffix, rate, seed)
        return kept(label, lambda: train(name, series, rate, seed, order))

    past, future = windows(series.test, np.arange(count_of(series.test)))
    for name, naive in ((REPEATED, past[:, -1:]), (DAILY, same_hours(past))):
        kept(name, lambda naive=naive: (0.0, ((naive - future) ** 2).mean(), 0))
    for name in MODELS:
        first = {rate: trained(name, rate, SEEDS[0], as_it_is) for rate in RATES[name]}
        rate = min(first, key=lambda rate: first[rate].valid)
        for seed in SEEDS[1:]:
            trained(name, rate, seed, as_it_is)
        for seed in SEEDS if name != DLINEAR else ():  # its means depend on the order of hours
            trained(name, rate, seed, shuffled, SHUFFLED)


def same_hours(past_NT: np.ndarray) -> np.ndarray:
    """The mean of the same hour of the last days, for each day to come: `[series, HORIZON]`."""
    days_NDH = past_NT[:, -DAYS * DAY :].reshape(-1, DAYS, DAY)
    return np.tile(days_NDH.mean(1), (1, HORIZON // DAY))


def label_of(name: str, rate: float, seed: int) -> str:
    """The name of a training."""
    return f"{name}, rate {rate:g}, seed {seed}"


# Page ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of the table: its learning rate, and each seed's training."""

    rate: float
    seeds: dict[int, Trained]

    @property
    def errors(self) -> list[float]:
        """The test errors of the seeds."""
        return [one.test for one in self.seeds.values()]


def rows_of(found: Mapping[str, Trained]) -> dict[str, Row]:
    """What the table shows: each row that was measured, at the learning rate that was chosen."""
    rows = {}
    for name in (*MODELS, *(name + SHUFFLED for name in MODELS)):
        own = []
        for rate in RATES[name.removesuffix(SHUFFLED)]:
            labels = {seed: label_of(name, rate, seed) for seed in SEEDS}
            own.append(Row(rate, {seed: found[x] for seed, x in labels.items() if x in found}))
        best = max(own, key=lambda row: len(row.seeds))
        if len(best.seeds) > 1 or SHUFFLED in name and best.seeds:
            rows[name] = best
    return rows


def verdicts(rows: Mapping[str, Row]) -> dict[str, str]:
    """The verdict on each claim."""
    near = reached = worse = NOT_RUN
    rows = {name: row for name, row in rows.items() if len(row.seeds) == len(SEEDS)}
    if NLINEAR in rows:
        mean = statistics.fmean(rows[NLINEAR].errors)
        reached = HOLDS if LOW <= mean <= HIGH else FAILS
    if {NLINEAR, ENCODER} <= {*rows}:
        line, ours = rows[NLINEAR].seeds, rows[ENCODER].seeds
        gaps = [x.test - BELOW * line[seed].test for seed, x in ours.items() if seed in line]
        both = {judge([x.test - NEAR for x in ours.values()], -1), judge(gaps, 1)}
        near = HOLDS if both == {HOLDS} else FAILS if FAILS in both else OPEN
    if {ENCODER, ENCODER + SHUFFLED} <= {*rows}:
        ours, other = rows[ENCODER].seeds, rows[ENCODER + SHUFFLED].seeds
        worse = judge([other[seed].test - x.test for seed, x in ours.items()], 1)
    return {
        "the published line is reached": reached,
        "attention is nearly a line": near,
        "patches need neighbours": worse,
    }


def parts_of(found: Mapping[str, Trained]) -> Iterator[Part]:
    """The page: verdicts and errors."""
    yield Text((__doc__ or "").strip().split("\n\n", 2)[2])
    rows = rows_of(found)
    yield Heading("Verdicts")
    yield Table(["claim", "verdict"], [[*x] for x in verdicts(rows).items()])
    yield Heading("Mean squared error of 96 hours, from 336")
    cells = []
    for name in (REPEATED, DAILY):
        if name in found:
            cells.append([name, f"{found[name].test:.4f}", "", "", ""])
    for name, row in rows.items():
        spread = f" ± {statistics.stdev(row.errors):.4f}" if len(row.errors) > 1 else ""
        steps = ", ".join(f"{one.step:.0f}" for one in row.seeds.values())
        error = f"{statistics.fmean(row.errors):.4f}{spread}"
        cells.append([name, error, PUBLISHED.get(name, ""), f"{row.rate:g}", steps])
    yield Table(["row", "error, test", "published", "learning rate", "best steps"], cells)


FLAGS = [
    Flag("out", str, "FOLDER", "where results.jsonl, table.md and the page go", default=RECORDED),
    Flag("report", bool, "", "only write the page, from FOLDER/results.jsonl"),
]


def main() -> None:
    """Measures and writes the page."""
    values = parse_experiment("time_series", __doc__ or "", FLAGS, takes_keys=False)
    out = Path(values["out"])
    if not values["report"]:
        file = data_file("ett", "ETTh1.csv.gz")
        measure(read_series(file), Kept(out, file_digest(file).hex()))
    answers = read_answers(out)
    trainings = itertools.product(MODELS, ("", SHUFFLED), SEEDS)
    known = {label_of(m + s, rate, seed) for m, s, seed in trainings for rate in RATES[m]}
    if unknown := sorted(answers.keys() - known - {REPEATED, DAILY}):
        raise DataError(f"{out / FILE}: {unknown[0]!r} is no training of this experiment.")
    if not answers:
        raise DataError(f"{out / FILE} has no results: leave --report out, or give their folder.")
    with blamed(out / FILE):
        parts = list(parts_of({name: Trained(**one.found) for name, one in answers.items()}))
    page = write_report(out, "time_series", parts)
    print((out / "table.md").read_text(), end="")
    log.info("%s", page)


if __name__ == "__main__":
    run_main(main)
