"""What ends training: signals, and validations without a better score."""

import concurrent.futures
import json
import logging
import math
import signal
import time
from types import SimpleNamespace

import pytest

from tests import tiny_runs as runs
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.training import loop, stopping
from transformer_jax.training.stopping import StopRequest, asking
from transformer_jax.training.validation import Patience, past_scores

# Signals: the first one asks, a second one has its usual effect ----------------------------------


@pytest.fixture(autouse=True)
def usual_handler():
    """Python's own handler of SIGINT, which a shell's background job may not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_later_signal_has_its_usual_effect_and_the_same_one_twice_counts_once(monkeypatch):
    with StopRequest() as stop:
        assert not stop.at_step(1)
        signal.raise_signal(signal.SIGUSR1)
        assert stop.at_step(2) and stop.signal == signal.SIGUSR1
        signal.raise_signal(signal.SIGUSR1)  # it would end this process
        monkeypatch.setattr(stopping, "SAME", 0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_afterwards_signals_are_handled_as_before():
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2} <= {*asking()}
    before = [signal.getsignal(number) for number in asking()]
    with StopRequest():
        assert all(signal.getsignal(number) not in before for number in asking())
    assert [signal.getsignal(number) for number in asking()] == before


def test_a_closed_terminal_asks_to_stop_and_nohup_keeps_it_from_asking():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.at_step(1) and stop.signal == signal.SIGHUP
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.at_step(1)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_not_handled():
    """Python sets handlers in the main thread only; a notebook may train in another one."""

    def stops() -> bool:
        with StopRequest() as stop:
            return stop.at_step(1)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(stops).result() is False


# Early stopping: a continued run decides as one never stopped ------------------------------------

KEYS = {"train__valid_every": 2, "train__steps": 30, "train__checkpoint_every": 4}


@pytest.mark.parametrize(
    ("limit", "scores", "over"),
    [
        (2, [1.0, 0.5, 0.9], True),
        (2, [1.0, 0.5, 1.1, 0.9], False),  # a better one starts the count again
        (2, [0.5, 0.7, 0.6, 0.65], True),  # the best counts, not the one before
        (1, [1.0, 1.0], True),  # equal is not better
        (2, [math.nan, math.nan], True),
        (3, [-5.0, math.nan, -4.0, -6.0, -7.0], False),
        (None, [1.0] + [0.0] * 99, False),
        (1, [], False),
    ],
)
def test_training_ends_after_that_many_validations_without_a_better_score(limit, scores, over):
    patience = Patience(limit)
    for step, score in enumerate(scores):
        assert not patience.is_over
        patience.note(step, score)
    assert patience.is_over == over
    assert Patience(limit, list(enumerate(scores))).waited == patience.waited


def test_scores_of_the_past_are_those_of_validations_up_to_a_step(tmp_path):
    lines = [
        {"step": 2, "kind": "valid", "nats_per_token": 5.0},
        {"step": 3, "kind": "train", "nats_per_token": 1.0},
        {"step": 4, "kind": "valid", "nats_per_token": 4.0, "bleu": 7.5},
        {"step": 6, "kind": "valid", "nats_per_token": "NaN"},
    ]
    assert past_scores(tmp_path, 9) == []
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert past_scores(tmp_path, 4) == [(2, -5.0), (4, 7.5)]
    assert math.isnan(past_scores(tmp_path, 6)[-1][1])


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains a run whose validations have these scores, not the model's, and stops it at a step.

    None is a validation that a signal stops. Each moves the clock forward by 1,000 seconds.
    """
    seconds, clock = time.perf_counter, list[int]()

    def run(scores: list[float | None], stop: int, **changes) -> None:
        left = iter(scores)

        def validate(params):
            clock.append(1_000)
            score = next(left)
            return None if score is None else ({"nats_per_token": -score}, score)

        monkeypatch.setattr(loop, "make_validate", lambda *_: validate)
        monkeypatch.setattr(time, "perf_counter", lambda: seconds() + sum(clock))
        monkeypatch.setattr(loop.StopRequest, "at_step", lambda self, n: n == stop)
        assert runs.train(tmp_path, **KEYS, **changes) == 0

    return run


@pytest.mark.slow("trains a run")
def test_a_run_that_was_stopped_in_its_last_validation_trains_no_further(train, tmp_path):
    """With patience 1 the validation of step 4, which a signal stopped, ends the run."""
    train([-5.0, None], stop=4, train__patience=1)
    train([-6.0], stop=30, train__patience=1)
    assert [one["step"] for one in runs.metrics(tmp_path) if one["kind"] == "valid"] == [2, 4]
    assert committed_steps(tmp_path / "checkpoints")[-1] == 4


def test_a_stopped_run_ends_where_the_scores_of_all_validations_say_and_keeps_its_best(
    train, tmp_path, caplog
):
    """Validations at 2, 4, ... score -9, -5, -6, -7, -8: with patience 3, step 10 is the last."""
    changes = {"train__patience": 3, "train__keep_last": 1}
    with caplog.at_level(logging.INFO):
        train([-9.0, -5.0, -6.0], stop=7, **changes)
        train([-7.0, -8.0, -1.0], stop=30, **changes)
    assert "training ends at step 10: train.patience=3: the last 3 validations" in caplog.text
    assert "that of step 4" in caplog.text and "trained to step 10" in caplog.text
    valid = [one["step"] for one in runs.metrics(tmp_path) if one["kind"] == "valid"]
    assert valid == [2, 4, 6, 8, 10]
    lines = [one for one in read_metrics(tmp_path) if one["kind"] == "train"]
    assert [one["step"] for one in lines] == [3, 6, 9]
    # Some 1,000 tokens a line: about 1 a second if the validation before it counted.
    assert min(one["target_tokens_per_second"] for one in lines) > 10
    assert committed_steps(tmp_path / "checkpoints") == [4, 10]  # the best and the last
    # Called again, it does nothing: no data, program or checkpoints are used.
    config = runs.tiny_config(**KEYS, **changes)
    directions = [loop.Direction(RunFolder(tmp_path), None, None, None)]
    with caplog.at_level(logging.INFO):
        states = (SimpleNamespace(step=10),)
        assert loop.train_steps(states, config.train, None, directions, None) == 10
    assert "nothing to do: trained to step 10 of train.steps=30; train.patience=3" in caplog.text
