"""The `average` command: which checkpoints it takes, and what it writes."""

import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.runs.test_weights import assert_params, params_of, shapes
from transformer_jax.commands import average as module
from transformer_jax.commands.average import average
from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import RunError
from transformer_jax.runs.checkpoints import committed_steps, damaged_file, write_manifest
from transformer_jax.runs.run_folder import LOCK, RunFolder
from transformer_jax.runs.weights import load_params


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A copy of the trained run, which keeps its last three checkpoints."""
    return RunFolder(runs.copy_of_run(tmp_path / "run"))


@pytest.mark.parametrize("steps", [(30, 35, 40), (40,)], ids=str)
def test_an_average_is_the_mean_in_double_precision(steps, run):
    folder = average(str(run.path), last=len(steps))
    want = [params_of(run, step) for step in steps]
    mean = {
        name: np.mean([one[name] for one in want], axis=0, dtype=np.float64).astype(np.float32)
        for name in want[0]
    }
    params, name = load_params(run, "average", shapes())
    assert name == folder.name == f"40-last{len(steps)}"
    assert_params(params, mean)
    assert damaged_file(folder) is None


def test_an_average_that_cannot_be_written_is_an_error_and_leaves_none(run, monkeypatch):
    average(str(run.path), 2)

    def full(*_: object) -> None:
        raise ValueError('Error writing "d/1": No space left on device [source locations=...]')

    monkeypatch.setattr("transformer_jax.runs.weights.write_manifest", full)
    with pytest.raises(RunError, match="40-last2: No space left on device. The run's checkpoints"):
        average(str(run.path), 2)
    with pytest.raises(RunError, match="has no averaged checkpoint"):
        load_params(run, "average", shapes())


def test_two_at_once_write_one_after_the_other(run):
    """A second process holds the lock, since the lock is one of processes."""
    run.averages.mkdir()
    code = "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.lockf(file, fcntl.LOCK_EX)"
    code += "; print(flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(run.averages / LOCK)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    waiting = threading.Thread(target=average, args=(str(run.path), 1))
    waiting.start()
    waiting.join(2)
    assert waiting.is_alive() and not (run.averages / "40-last1" / "params").exists()
    holder.communicate()
    waiting.join()
    assert load_params(run, "average", shapes())[1] == "40-last1"


def test_where_a_run_was_stopped_is_none_of_the_last_unless_too_few_are_left(monkeypatch):
    monkeypatch.setattr(module, "saved_steps", lambda _: [20, 30, 40, 43, 50, 60])
    train = TrainConfig(checkpoint_every=10, keep_last=5)
    assert module._last_steps(None, 5, train) == [20, 30, 40, 50, 60]
    monkeypatch.setattr(module, "saved_steps", lambda _: [20, 33, 45])  # of another interval
    assert module._last_steps(None, 2, train) == [20, 45]
    assert module._last_steps(None, 3, train) == [20, 33, 45]
    monkeypatch.setattr(module, "saved_steps", lambda _: [5, 30, 35, 40])  # an old best is kept
    with pytest.raises(RunError, match=r"last 3 checkpoints \(30, 35, 40\)"):
        module._last_steps(RunFolder("x"), 4, TrainConfig(checkpoint_every=5, keep_last=3))


def test_checkpoints_with_a_gap_between_them_are_said(run, monkeypatch, caplog):
    """After train.keep_last was raised the folder still holds the best of before."""
    average(str(run.path), 3)
    assert "not evenly spaced" not in caplog.text
    monkeypatch.setattr(module, "_last_steps", lambda *_: [20, 35, 40])
    monkeypatch.setattr(module, "mean_params", lambda trees: params_of(run, 40))
    average(str(run.path), 3)
    assert "not evenly spaced" in caplog.text


def deleting(run: RunFolder, times: int, monkeypatch) -> None:
    """As if `train` wrote a checkpoint and deleted the oldest one, before each of some reads."""
    left = list(range(times))

    def load(folder, which, like):
        if left and left.pop() is not None:
            first, *_, newest = committed_steps(run.checkpoints)
            new = run.checkpoints / str(newest + 5)
            shutil.copytree(run.checkpoints / str(newest), new)
            shutil.rmtree(new / "rest", ignore_errors=True)  # which has the step
            write_manifest(new)
            shutil.rmtree(run.checkpoints / str(first))
        return load_params(folder, which, like)

    monkeypatch.setattr(module, "load_params", load)
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)


def test_a_checkpoint_that_train_deletes_is_not_missed(run, monkeypatch, caplog):
    deleting(run, 1, monkeypatch)
    with caplog.at_level("INFO"):
        assert average(str(run.path), last=3).name == "45-last3"
    assert "checkpoint 30 was deleted while it was averaged" in caplog.text


def test_checkpoints_that_train_deletes_again_are_named(run, monkeypatch):
    deleting(run, 2, monkeypatch)
    with pytest.raises(RunError, match=r"checkpoint 35 was deleted .* a `train` in .*keep_last"):
        average(str(run.path), last=3)
    assert not run.averages.exists()


def test_a_damaged_checkpoint_is_reported_as_such(run, monkeypatch):
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    (run.checkpoints / "35.sha256.json").write_text("{")
    with pytest.raises(RunError, match="35 is damaged: 35.sha256.json is not a manifest"):
        average(str(run.path), last=2)
