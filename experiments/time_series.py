"""Does attention read numbers better than a line does? Transformer temperature, hour by hour.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.time_series

The question: the lectures name time series among what attention reads. ETTh1 (Zhou et al. 2021) has
7 columns, every hour of two years. From 336 hours the next 96 are predicted, each column alone,
with the mean squared error of standardized columns. Zeng et al. 2023 found that one linear layer
beats every Transformer of its time: 0.374 (NLinear) and 0.375 (DLinear). Nie et al. 2023 answered
with patches: about 0.375. What do a line and this project's encoder give here?

The first 8,640 hours train, the next 2,880 choose the epoch, the last 2,880 test, as in both
papers; each column is standardized by the mean and deviation of its training part, and every window
of the test counts. The rows: the last value repeated; NLinear, a matrix from 336 hours to 96 on
what each hour is above the last one; DLinear, two matrices, one for the mean over 25 hours around
each hour and one for the rest; and the encoder: 42 patches of 16 hours, 8 apart, of a window of
mean 0 and variance 1, one projection to d_model 16, learned positions, 3 pre-norm layers of 4 heads
with d_ff 128 and dropout 0.3, and one matrix from all 42 outputs to 96 hours (the sizes of Nie et
al. for this file; their layers have other norms). Adam, batches of 128 windows with 7 columns each,
at most 15 epochs; each model has the better of two learning rates by the validation error of its
first seed. A control reads the same hours in an order drawn once, but for the last: NLinear must
give the same, since a matrix does not know order, and the encoder, whose patches then mean nothing,
must get worse.

The rules, written before the runs; over three seeds, by Student's t, p < 0.05. "The published line
is reached" holds if NLinear's mean error is from 0.369 to 0.380. "Attention is nearly a line" holds
if the encoder's error is below 0.39 and not below 97 % of NLinear's, and does not if it is above
0.39, or below 97 %: then attention would clearly win.
"""

import csv
import gzip
import json
import logging
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from experiments.judging import FAILS, HOLDS, OPEN, judge
from transformer_jax.config.model import ModelConfig
from transformer_jax.files import read_json, write_atomically
from transformer_jax.model.axes import unboxed
from transformer_jax.model.interfaces import Place
from transformer_jax.model.layers.dropout import hashed
from transformer_jax.model.sides.embeddings import Projection
from transformer_jax.model.sides.transformer import TransformerEncoder
from transformer_jax.reporting.page import Heading, Part, Table, Text, write_report
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment, set_up_logs

log = logging.getLogger("experiments.time_series")
RECORDED = "docs/results/time_series"
PAST, HORIZON = 336, 96  # hours
BORDERS = (8_640, 11_520, 14_400)  # hours after which training, validation and test end
PATCH, STRIDE = 16, 8  # hours
SMOOTHED = 25  # hours of DLinear's mean
WINDOWS, EPOCHS, SEEDS, RATES = 128, 15, (0, 1, 2), (1e-3, 1e-4)
PUBLISHED = {"NLinear": 0.374, "DLinear": 0.375, "encoder": 0.375}  # Zeng et al.; Nie et al.
NLINEAR, DLINEAR, ENCODER, REPEATED = "NLinear", "DLinear", "encoder", "last value"
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
    """The three parts of ETTh1; the last two begin with the hours of a window before them."""
    with gzip.open(path, "rt") as file:
        rows = [row[1:] for row in csv.reader(file)][1:]
    hours = np.array(rows, np.float64)
    train = hours[: BORDERS[0]]
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
    """The best epoch of a training, by the validation error."""

    valid: float
    test: float
    epoch: int


def train(name: str, series: Series, rate: float, seed: int, order: np.ndarray) -> Trained:
    """Trains a model on the past in this order, and measures its best epoch."""
    model = MODELS[name]()
    params = unboxed(model.init(jax.random.key(seed), jnp.zeros((2, PAST)), None)["params"])
    optimizer = optax.adam(rate)

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
    state, best, draw = (
        optimizer.init(params),
        Trained(np.inf, np.inf, 0),
        np.random.default_rng(seed),
    )
    for epoch in range(1, EPOCHS + 1):
        numbers = draw.permutation(count_of(series.train))
        for first in range(0, len(numbers) - WINDOWS + 1, WINDOWS):
            past, future = windows(series.train, numbers[first : first + WINDOWS])
            key = jax.random.fold_in(jax.random.key(seed), epoch * len(numbers) + first)
            params, state = step(params, state, past[:, order], future, key)
        valid = error_of(predict, params, series.valid, order)
        if valid < best.valid:
            best = Trained(valid, error_of(predict, params, series.test, order), epoch)
    log.info("%s, rate %g, seed %d: %s", name, rate, seed, best)
    return best


def measure(series: Series) -> dict[str, Any]:
    """What was found: of each row, its rate and the errors of its seeds."""
    past, future = windows(series.test, np.arange(count_of(series.test)))
    repeated = float(((past[:, -1:] - future) ** 2).mean())
    found: dict[str, Any] = {REPEATED: {"test": [repeated]}}
    as_it_is = np.arange(PAST)
    # The last hour stays, since NLinear takes it from every other one.
    shuffled = np.append(np.random.default_rng(0).permutation(PAST - 1), PAST - 1)
    for name in MODELS:
        first = {rate: train(name, series, rate, SEEDS[0], as_it_is) for rate in RATES}
        rate = min(first, key=lambda rate: first[rate].valid)
        others = [train(name, series, rate, seed, as_it_is) for seed in SEEDS[1:]]
        found[name] = _errors(rate, [first[rate], *others])
        if name != DLINEAR:  # its mean over hours depends on their order
            own = [train(name, series, rate, seed, shuffled) for seed in SEEDS]
            found[name + SHUFFLED] = _errors(rate, own)
    return found


def _errors(rate: float, trained: Sequence[Trained]) -> dict[str, Any]:
    return {"rate": rate, **{name: [getattr(x, name) for x in trained] for name in Trained._fields}}


# Page ----------------------------------------------------------------------------------------


def verdicts(found: Mapping[str, Any]) -> dict[str, str]:
    """The verdict on each claim."""
    line, ours = found[NLINEAR]["test"], found[ENCODER]["test"]
    is_reached = HOLDS if LOW <= statistics.fmean(line) <= HIGH else FAILS
    near = judge([x - NEAR for x in ours], -1)
    wins = judge([x - BELOW * y for x, y in zip(ours, line, strict=True)], 1)
    both = {near, wins}
    is_near = HOLDS if both == {HOLDS} else FAILS if FAILS in both else OPEN
    return {"the published line is reached": is_reached, "attention is nearly a line": is_near}


def parts_of(found: Mapping[str, Any]) -> Iterator[Part]:
    """The page: verdicts and errors."""
    yield Text((__doc__ or "").strip().split("\n\n", 2)[2])
    yield Heading("Verdicts")
    yield Table(["claim", "verdict"], [[*x] for x in verdicts(found).items()])
    yield Heading("Mean squared error of 96 hours, from 336")
    rows = []
    for name, own in found.items():
        errors = own["test"]
        spread = f" ± {statistics.stdev(errors):.4f}" if len(errors) > 1 else ""
        published = PUBLISHED.get(name)
        rows.append(
            [
                name,
                f"{statistics.fmean(errors):.4f}{spread}",
                f"{published:.3f}" if published else "",
                f"{own['rate']:g}" if "rate" in own else "",
                ", ".join(map(str, own.get("epoch", ()))),
            ]
        )
    yield Table(["row", "error, test", "published", "learning rate", "best epochs"], rows)


FLAGS = [
    Flag("out", str, "FOLDER", "where evidence.json, table.md and the page go", default=RECORDED),
    Flag("report", bool, "", "only write the page, from FOLDER/evidence.json"),
]


def main() -> None:
    """Measures and writes the page."""
    values = parse_experiment("time_series", __doc__ or "", FLAGS, takes_keys=False)
    out = Path(values["out"])
    if not values["report"]:
        data = Path(environ.get("TRANSFORMER_JAX_DATA", "data"))
        found = measure(read_series(data / "ett" / "ETTh1.csv.gz"))
        content = json.dumps(found, indent=1).encode() + b"\n"
        write_atomically(out / "evidence.json", content)
    page = write_report(out, "time_series", list(parts_of(read_json(out / "evidence.json"))))
    print((out / "table.md").read_text(), end="")
    log.info("%s", page)


if __name__ == "__main__":
    set_up_logs()
    sys.exit(exit_status(main))
