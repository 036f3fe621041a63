"""Metrics of a window of steps, by a clock that the test sets by hand."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.training import closed_forms
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.text.vocabulary import both_sides
from transformer_jax.training import cost
from transformer_jax.training.state import AGREEMENT, Window
from transformer_jax.training.window import WindowReader, perplexity

MODEL = ModelConfig(num_layers=2, d_model=24, num_heads=3, d_ff=40)
VOCABULARY = 256  # a multiple of 128, so that padding adds nothing
SRC_MEAN, TGT_MEAN, PAIRS = 7, 5, 10  # subwords a sentence, and sentences


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Replaces time.perf_counter, which shows the time that the test sets."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr("time.perf_counter", lambda: made.now)
    return made


def window(**sums: float) -> Window:
    return Window(*(np.float32(sums.get(name, 0.0)) for name in Window._fields))


def state(step: int = 5, auxiliary: dict[str, float] | None = None, **sums: float) -> Any:
    """The part of a state that the reader uses: five steps, unless `sums` has another number."""
    of_window = window(**{"steps": 5, "slots": 1_000, **sums})
    counters = {"step": step, "skipped": 0, "skipped_in_a_row": 0}
    numbers = {name: np.int32(x) for name, x in counters.items()}
    return SimpleNamespace(window=of_window, auxiliary=auxiliary or {}, **numbers)


def make_reader(before: Window | None = None, devices: int = 1, **train: Any) -> WindowReader:
    plan = SimpleNamespace(
        pair_order=np.arange(PAIRS), src_tokens=SRC_MEAN * PAIRS, tgt_tokens=TGT_MEAN * PAIRS
    )
    vocabulary = SimpleNamespace(sizes=both_sides(VOCABULARY))
    data: Any = SimpleNamespace(plan=plan, vocabulary=vocabulary, steps_per_epoch=2.5)
    mesh = SimpleNamespace(devices=np.empty((devices, 1), object))
    program: Any = SimpleNamespace(mesh=mesh, model=SimpleNamespace(config=MODEL))
    before = window() if before is None else before
    return WindowReader(TrainConfig(**train), data, program, before)


def rates(values: dict[str, float]) -> tuple[float, float]:
    return values["source_tokens_per_second"], values["target_tokens_per_second"]


def test_rates_are_since_the_last_call_and_a_resumed_run_s_leave_out_the_tokens_before_it(clock):
    read = make_reader(before=window(src_tokens=500, tgt_tokens=300, steps=3))
    clock.now += 2
    values = read(state(src_tokens=600, tgt_tokens=400, nats=800))
    assert rates(values) == (50, 50)
    assert values["nats_per_token"] == 2, "the loss is of the whole window"
    assert values["target_tokens_per_step"] == 80
    clock.now += 2
    assert rates(read(state(src_tokens=600, tgt_tokens=400))) == (300, 200)


def test_sums_are_divided_by_target_tokens_and_norms_by_steps(clock):
    read = make_reader(agreement_weight=0.0)
    clock.now += 1
    sums = {"smoothed_nats": 600, "nats": 500, "correct": 100, "grad_norm": 35, "slots": 1_250}
    values = read(state(src_tokens=600, tgt_tokens=400, auxiliary={AGREEMENT: 80.0}, **sums))
    want = {
        "epoch": 2.0,  # after 5 steps
        "smoothed_nats_per_token": 1.5,
        "nats_per_token": 1.25,
        "perplexity": math.exp(1.25),
        "token_accuracy": 0.25,
        "grad_norm": 7.0,
        "agreement_per_token": 0.2,
        "padding_share": 0.2,  # of both sides
    }
    assert {name: values[name] for name in want} == pytest.approx(want)


def test_time_in_validation_does_not_count(clock):
    read = make_reader()
    clock.now += 3
    with read.paused():
        clock.now += 50
    clock.now += 1
    assert rates(read(state(src_tokens=600, tgt_tokens=400))) == (150, 100)
    clock.now += 4
    assert rates(read(state(src_tokens=600, tgt_tokens=400))) == (150, 100)


def test_the_perplexity_of_any_loss_is_a_number():
    assert perplexity(1.5) == math.exp(1.5)
    assert perplexity(1e30) == perplexity(700.0) == math.exp(700.0)
    assert math.isnan(perplexity(math.nan))


@pytest.mark.parametrize("peak", [1e9, None])
def test_mfu_is_of_target_tokens_with_their_source_over_all_devices(peak, clock, monkeypatch):
    monkeypatch.setattr(cost, "device_peak", lambda dtype: peak)
    read = make_reader(devices=4)
    clock.now += 2
    values = read(state(src_tokens=700, tgt_tokens=500))
    of_a_pair = closed_forms.training_flops(MODEL, VOCABULARY, SRC_MEAN, TGT_MEAN)
    flops_per_second = 100 * of_a_pair / 2  # 500 target tokens are 100 pairs
    assert values.get("mfu") == (pytest.approx(flops_per_second / 4e9) if peak else None)


def test_an_auxiliary_loss_is_reported_without_its_weight_per_target_token(clock):
    read = make_reader(coverage_weight=0.25)
    read_without = make_reader()
    clock.now += 1
    values = read(state(tgt_tokens=400, auxiliary={"coverage": 5.0}))
    assert values["coverage_loss_per_token"] == 5.0 / 0.25 / 400
    assert not any("coverage" in name for name in read_without(state(tgt_tokens=400)))
