"""The loop over steps: its metrics, its compilations, and what it does when training diverges."""

import contextlib
import json
import logging
import re
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.config.train import TrainConfig
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.collect import training_seconds
from transformer_jax.training import loop
from transformer_jax.training.loop import Direction, _lacks_validation, _Observers
from transformer_jax.training.program import compile_program
from transformer_jax.training.validation import Patience

MEASURED = {
    "epoch",
    "smoothed_nats_per_token",
    "nats_per_token",
    "perplexity",
    "token_accuracy",
    "learning_rate",
    "grad_norm",
    "target_tokens_per_step",
    "padding_share",
    "skipped_updates",
    "source_tokens_per_second",
    "target_tokens_per_second",
}


def lines(workdir, kind: str) -> list[dict]:
    return [record for record in runs.metrics(workdir) if record["kind"] == kind]


def test_metrics_are_those_of_their_window():
    """Rates and shares follow from the tiny config: 8 rows of 48 + 48 positions."""
    train = lines(runs.trained_run(), "train")
    for record in train:
        assert record["perplexity"] == pytest.approx(np.exp(record["nats_per_token"]))
        assert record["smoothed_nats_per_token"] > record["nats_per_token"] * 0.9
        assert 0 <= record["token_accuracy"] <= 1
        assert 250 < record["target_tokens_per_step"] <= 8 * 48
        assert 0 < record["padding_share"] < 0.4
    # Warm-up to 1e-2 in 10 updates, then proportional to step^-0.5.
    rates = {record["step"]: record["learning_rate"] for record in train}
    assert rates[3] == pytest.approx(3e-3) and rates[40] == pytest.approx(1e-2 * (10 / 40) ** 0.5)


def test_rates_are_those_of_steps_alone(tmp_path, monkeypatch):
    """Not of the start of reports, of validations and checkpoints; but of what waits for steps."""
    clock, waits = [0.0], []

    def now() -> float:
        clock[0] += 1e-3
        return clock[0]

    def slow(function):
        def call(*arguments, **keywords):
            clock[0] += 1
            return function(*arguments, **keywords)

        return call

    def wait(arrays):
        if isinstance(arrays, list):  # before a pause
            clock[0] += 1
            waits.append(arrays)

    monkeypatch.setattr("transformer_jax.training.window.time", SimpleNamespace(perf_counter=now))
    monkeypatch.setattr(loop, "open_reports", slow(loop.open_reports))
    monkeypatch.setattr(loop._Validation, "__call__", slow(loop._Validation.__call__))
    monkeypatch.setattr(loop.Checkpoints, "save", slow(loop.Checkpoints.save))
    monkeypatch.setattr(jax, "block_until_ready", wait)
    changes = {"train__log_every": 3, "train__valid_every": 4, "train__checkpoint_every": 5}
    assert runs.train(tmp_path, train__steps=6, **changes) == 0
    # Two validations and two checkpoints; the last one of each comes after the last line.
    assert len(waits) == 4
    assert training_seconds(read_metrics(tmp_path)) == pytest.approx(2, abs=0.1)


def test_accumulated_batches_are_the_same_batches_and_programs_compile_once(
    tmp_path, caplog, monkeypatch
):
    # Not that of conftest.py, which would compile once whatever `train` does.
    monkeypatch.setattr("transformer_jax.use.train.compile_program", compile_program)
    jax.config.update("jax_log_compiles", True)
    try:
        with caplog.at_level(logging.WARNING):
            changes = {"train__accumulate_steps": 4, "train__valid_every": 3}
            assert runs.train(tmp_path, train__steps=6, **changes) == 0
    finally:
        jax.config.update("jax_log_compiles", False)
    once, never = (lines(folder, "train") for folder in (tmp_path, runs.trained_run()))
    for got, want in zip(once, never[:2], strict=True):
        assert got.pop("step") == want.pop("step")
        del got["kind"], want["kind"]
        assert got == pytest.approx(want, rel=1e-5)
    compiled = Counter(re.findall(r"Finished XLA compilation of jit\((.*?)\)", caplog.text))
    announced = {name: compiled[name] for name in ("start", "train_step", "eval_step")}
    assert announced == {"start": 1, "train_step": 1, "eval_step": 1}, compiled
    others = {name: count for name, count in compiled.items() if name not in announced}
    # Single operations outside a program: reading the learning rate, making a key.
    assert sum(others.values()) <= 20, others


def test_only_the_main_direction_is_shown_and_sent_to_weights_and_biases(monkeypatch):
    opened = []

    def open_reports(workdir, total, first, silent, project, shown):
        opened.append((workdir.name, first, project, shown))
        return contextlib.nullcontext()

    monkeypatch.setattr(loop, "open_reports", open_reports)
    for name in ("WindowReader", "make_validate"):
        monkeypatch.setattr(loop, name, lambda *_: None)
    states = (SimpleNamespace(step=3, window=None),) * 2
    directions = [Direction(RunFolder(name), None, None, None) for name in ("run", "reverse")]
    train = TrainConfig(wandb_project="mine")
    with contextlib.ExitStack() as stack:
        _Observers(states, train, None, directions, Patience(None), stack)
    assert opened == [("run", 3, "mine", True), ("reverse", 3, None, False)]


def test_no_direction_begins_a_checkpoint_before_both_have_written_the_one_before():
    """So a kill leaves at most one checkpoint that the other direction lacks (runs/together.py)."""
    calls = []

    class Recorder:
        def check(self, wait):
            calls.append(("check", wait))

        def save(self, state, step, score):
            calls.append((state, step, score))

    directions = [Direction(None, None, None, Recorder()) for _ in range(2)]
    observers = SimpleNamespace(directions=directions, program=SimpleNamespace(to_save=str.upper))
    observers._paused = lambda states: contextlib.nullcontext()
    _Observers.save(observers, 5, ("forward", "reverse"), [1.5, None])
    assert calls == [("check", True)] * 2 + [("FORWARD", 5, 1.5), ("REVERSE", 5, None)]


@pytest.mark.parametrize(
    ("step", "lacks"), [(0, False), (5, False), (10, True), (20, False), (25, True)]
)
def test_a_validation_that_was_due_and_is_not_recorded_is_lacking(step, lacks, tmp_path):
    """Every 10 steps and at the last, 25; step 10 has metrics of training only."""
    train = TrainConfig(valid_every=10, steps=25)
    assert not _lacks_validation(tmp_path, step, train), "a run without its metrics"
    lines = [{"step": 10, "kind": "train"}, {"step": 20, "kind": "valid"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert _lacks_validation(tmp_path, step, train) == lacks


def test_a_loss_that_is_not_finite_is_a_warning(caplog):
    """Too few updates for train.max_skipped."""
    told = loop._Validation(
        lambda _: ({"nats_per_token": np.nan}, -np.inf),
        None,
        SimpleNamespace(validated=lambda *_: None),
        Patience(None),
    )
    told(7, None)
    assert "the validation loss at step 7 is not finite" in caplog.text


def test_a_run_that_diverges_stops_and_says_so(tmp_path, capsys):
    changes = {"train__peak_learning_rate": 1e30, "train__warmup_steps": 1, "train__max_skipped": 4}
    assert runs.train(tmp_path, train__log_every=1, train__checkpoint_every=4, **changes) == 2
    error = capsys.readouterr().err
    assert "the last 4 updates up to step " in error and "train.max_skipped=4" in error
    assert "train.clip_norm" in error and error.count("\n") == 1
    train = lines(tmp_path, "train")
    skipped = [record["skipped_updates"] for record in train]
    assert skipped[0] == 0 and skipped[-1] == 3 and skipped == sorted(skipped)
    # If a line's updates were all skipped, its loss is unknown.
    averages = ("nats_per_token", "perplexity", "token_accuracy", "grad_norm", "padding_share")
    assert [train[-1][name] for name in averages] == ["NaN"] * len(averages)
    assert all(np.isfinite(train[0][name]) for name in averages)
    # The schedule counts updates, not steps: it does not move while they are skipped.
    assert len({record["learning_rate"] for record in train if record["skipped_updates"]}) == 1
    # Resumed, it comes to the same end: the counter is part of the state.
    assert committed_steps(tmp_path / "checkpoints") == [4]
    assert all(np.isfinite(leaf).all() for leaf in runs.arrays(tmp_path / "checkpoints/4").values())
