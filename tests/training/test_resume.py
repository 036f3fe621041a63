"""A run that is killed and continued equals a run that was never stopped."""

import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.runs.run_folder import RunFolder

LAST = str(runs.STEPS)


def assert_same_run(workdir: Path, other: Path, last: str = LAST) -> None:
    """Compares metrics (without timings), parameters, optimizer state and the rest bit for bit."""
    assert runs.metrics(workdir) == runs.metrics(other)
    got, want = (runs.arrays(folder / "checkpoints" / last) for folder in (workdir, other))
    assert got.keys() == want.keys()
    assert any("params" in name for name in want) and any("opt_state" in name for name in want)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


def wait_until(happened, process, pause: float = 0.01) -> None:
    """Waits while the process is alive until `happened()` is true, which it asks every pause."""
    deadline = time.monotonic() + 600
    while not happened():
        assert process.is_alive() if hasattr(process, "is_alive") else process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(pause)


@pytest.mark.slow("kills runs in processes of their own")
def test_killed_and_resumed_equals_never_stopped(tmp_path):
    """The run is killed while it writes the first checkpoint, and at two random moments."""
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
        wait_until(lambda name=name: any(checkpoints.glob(name)), process, pause=0.0005)
        time.sleep(delay)
        process.kill()
        process.join()
        assert process.exitcode == -9, "the run ended before it was killed"
    assert runs.train(workdir) == 0, log.read_text()
    assert_same_run(workdir, runs.trained_run())
    output = log.read_text()
    assert "continuing from step" in output
    assert not list(checkpoints.glob("*tmp*")), "half-written checkpoints stay"


@pytest.mark.slow("trains runs")
def test_a_stopped_run_goes_on_to_more_steps_whatever_mutable_keys_say(tmp_path):
    """Steps, intervals and the path of the corpus change only what is recorded."""
    elsewhere = shutil.copytree(runs.tiny_corpus(), tmp_path / "corpus")
    mutable = {"train__log_every": 7, "train__valid_every": 9, "train__checkpoint_every": 8}
    mutable |= {"train__keep_last": 1, "decode__beam_size": 2}
    workdir = tmp_path / "run"
    assert runs.train(workdir, train__steps=12) == 0
    assert runs.train(workdir, data__path=elsewhere, **mutable) == 0
    got, want = (
        runs.arrays(folder / "checkpoints" / LAST) for folder in (workdir, runs.trained_run())
    )
    for name in want:
        if "window" not in name:  # the line that the first run wrote at its end cut a window short
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    config = RunFolder(workdir).read_config()
    assert (config.train.steps, config.train.log_every) == (runs.STEPS, 7)
    steps = [(record["kind"], record["step"]) for record in runs.metrics(workdir)]
    first = [("train", 3), ("train", 6), ("train", 9), ("valid", 10), ("train", 12), ("valid", 12)]
    then = [("train", 14), ("valid", 18), ("train", 21), ("valid", 27), ("train", 28)]
    then += [("train", 35), ("valid", 36), ("train", 40), ("valid", 40)]
    assert steps == first + then


def test_changed_immutable_keys_are_refused_by_name_and_nothing_is_touched(capsys):
    """A few of them: tests/config/test_changes.py has the differences of every key."""
    workdir = runs.trained_run()
    before = runs.contents(workdir)
    changes = {"model.d_ff": 48, "model.positions": "alibi", "vocabulary.size": 410, "seed": 7}
    changes |= {"data.seed": 2, "data.max_length": 40, "train.label_smoothing": 0.2}
    assert runs.train(workdir, **{key.replace(".", "__"): changes[key] for key in changes}) == 2
    error = capsys.readouterr().err
    assert f"{workdir} holds another run: " in error and error.count("\n") == 1
    assert all(f"{name}: the run has " in error for name in changes)
    assert error.count("the run has") == len(changes)
    assert runs.contents(workdir) == before


def test_other_text_under_the_same_name_is_refused(tmp_path, capsys):
    workdir = runs.copy_of_run(tmp_path / "run")
    corpus = Path(shutil.copytree(runs.tiny_corpus(), tmp_path / "corpus"))
    before = runs.contents(workdir)
    more = {"data__path": corpus, "train__steps": runs.STEPS + 1}
    with (corpus / "train.en").open("r+") as file:
        file.write("X")
    assert runs.train(workdir, **more) == 2
    assert f"{workdir} holds a run that was trained on other text" in capsys.readouterr().err
    assert runs.contents(workdir) == before


@pytest.mark.slow("trains a run and continues it")
def test_a_run_that_learns_from_its_own_translations_continues_bit_for_bit(tmp_path):
    """From a trained model, whose translations become better; a row has one pair."""
    own = {"train__init_from": runs.trained_run(), "train__objective": "self_critical"}
    own |= {"train__steps": 12, "train__objective_weight": 20.0, "train__candidates": 3}
    assert runs.train(tmp_path / "whole", **own) == 0
    costs = [
        line["self_critical_loss_per_token"]
        for line in runs.metrics(tmp_path / "whole")
        if line["kind"] == "train"
    ]
    assert len(costs) == 4 and 0 < costs[-1] < costs[0] < 20
    killed = shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for step in ("10", "12"):
        shutil.rmtree(killed / "checkpoints" / step)
    assert runs.train(killed, **own) == 0
    assert_same_run(killed, tmp_path / "whole", "12")
