"""A run that is killed, and goes on, is the run that was never stopped."""

import random
import time
from pathlib import Path

import numpy as np
import pytest

from tests import runs
from transformer_jax.config import KEYS

LAST = str(runs.STEPS)


def assert_same_run(workdir: Path, other: Path) -> None:
    """Metrics (timings aside), parameters, optimizer state and all else, bit for bit."""
    assert runs.metrics(workdir) == runs.metrics(other)
    got, want = (runs.arrays(folder / "checkpoints" / LAST) for folder in (workdir, other))
    assert got.keys() == want.keys()
    assert any("params" in name for name in want) and any("opt_state" in name for name in want)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


def kill_when(process, happened, delay: float) -> None:
    """SIGKILL as soon as `happened()`, and a delay later."""
    deadline = time.monotonic() + 120
    while not happened():
        assert process.is_alive(), "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    time.sleep(delay)
    process.kill()
    process.join()
    assert process.exitcode == -9, "the run ended before it was killed"


def test_killed_and_resumed_equals_never_stopped(tmp_path):
    """Killed while the first checkpoint is being written, between two, and at two random moments."""
    workdir, log = tmp_path / "run", tmp_path / "log"
    checkpoints = workdir / "checkpoints"
    draw = random.Random(time.time_ns())
    moments = [
        ("5.orbax-checkpoint-tmp*", 0.0),
        ("10", draw.uniform(0, 0.05)),
        ("25*", draw.uniform(0, 0.1)),
    ]
    for name, delay in moments:
        process = runs.train_in_process(workdir, log)
        kill_when(process, lambda name=name: any(checkpoints.glob(name)), delay)
    assert runs.train(workdir) == 0, log.read_text()
    assert_same_run(workdir, runs.trained_run())
    said = log.read_text()
    assert "going on from step" in said
    assert not list(checkpoints.glob("*tmp*")), "half-written checkpoints stay"
