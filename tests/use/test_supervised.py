"""Processes that are started again, with a script in place of `train`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_jax.errors import ConfigError
from transformer_jax.use import supervised

ROOT = Path(__file__).parents[2]
# PLAN has the words of process 0, then a comma and those of process 1; word n says what start n of
# the process does: it dies, saves a checkpoint and dies, waits for a signal, or ends with a status.
TRAIN = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in *--process_id=*) id=${*##*--process_id=} ;; *) id=0 ;; esac
echo "$@" >> started.$id
word=$(echo "$PLAN" | cut -d, -f$((id + 1)) | cut -d' ' -f$(wc -l < started.$id))
case $word in
  die) kill -9 $$ ;;
  abort) sleep 1; kill -6 $$ ;;
  save) mkdir -p checkpoints/$(wc -l < started.$id); kill -9 $$ ;;
  wait) trap 'echo 143 > ended; exit 143' TERM; trap 'exit 138' USR1; echo $$ > waiting
        while :; do sleep 0.05; done ;;
  *) exit $word ;;
esac
"""
PROGRAM = """
import sys
from transformer_jax.use import supervised
sys.executable = sys.argv[1]
supervised.supervise([], ".", None, 3)
"""


@pytest.fixture
def script(tmp_path):
    """What is started in place of Python; it works in its own folder."""
    path = tmp_path / "train"
    path.write_text(TRAIN)
    path.chmod(0o755)
    return path


@pytest.fixture
def supervise(script, monkeypatch):
    """Calls `supervise` with a plan; returns the exit status and the arguments of each start."""
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(supervised, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(supervised, "PATIENCE", 0.1)
    monkeypatch.setattr(supervised._Group, "wait", lambda *_: None)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    handlers = {number: signal.getsignal(number) for number in numbers}

    def call(plan, processes=None, restarts=2):
        monkeypatch.setenv("PLAN", plan)
        status = 0
        try:
            supervised.supervise(["--x"], str(script.parent), processes, restarts)
        except SystemExit as ended:
            status = ended.code
        started = sorted(script.parent.glob("started.*"))
        return status, [path.read_text().splitlines() for path in started]

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("plan", "status", "starts"),
    [
        ("0", 0, 1),
        ("die 0", 0, 2),
        ("1 75 0", 75, 2),
        ("die die 0", 137, 2),
        ("die save die die 0", 137, 4),
        ("save save save save 0", 0, 5),
        ("2 0", 2, 1),
    ],
)
def test_a_process_that_dies_is_started_until_nothing_new_comes(
    plan, status, starts, supervise, capfd
):
    found, [started] = supervise(plan)
    assert (found, len(started)) == (status, starts)
    assert set(started) == {"-m transformer_jax train --x --restarts=0"}
    said = capfd.readouterr().err
    assert said.count("starting again (") == starts - 1
    assert said.count("starting again (0 of 2 deaths") == plan.count("save")
    assert ("2 deaths without a newer one: the run ends" in said) == (status > 2)


def test_all_processes_of_a_machine_are_started_again_together(supervise, capfd):
    # Process 1 is killed, and process 0 aborts since it misses it.
    status, started = supervise("abort wait,die 2", processes=2)
    assert status == 2 and [len(one) for one in started] == [2, 2]
    assert "process 1 of 2 ended with SIGKILL at a checkpoint of step 0" in capfd.readouterr().err
    shared = [{line.partition(" --process_id=")[0] for line in one} for one in started]
    assert shared[0] == shared[1] and len(shared[0]) == 2  # a new address for each start
    assert all("--num_processes=2" in line for line in shared[0])


@pytest.mark.parametrize(
    ("variables", "processes", "message"),
    [
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, 4, "leave out --num_processes=4"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, None, "cannot be started again by itself"),
    ],
)
def test_what_a_launcher_started_starts_no_others(variables, processes, message, monkeypatch):
    monkeypatch.setattr(os, "environ", variables)
    with pytest.raises(ConfigError, match=message):
        supervised.supervise([], ".", processes, 3)


def test_each_process_of_a_machine_sees_its_part_of_the_gpus(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert supervised._visible(1, 2) == {"CUDA_VISIBLE_DEVICES": "6,7"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert supervised._visible(1, 2) == {}


@pytest.fixture
def running(script):
    """A supervisor in a process of its own, whose process waits for a signal."""
    given = {**os.environ, "PLAN": "wait 0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(script)]
    with subprocess.Popen(command, cwd=script.parent, env=given) as process:
        wait_for(script.parent / "waiting")
        yield process
        process.kill()


def wait_for(path):
    """Returns when the file is there and written."""
    for _ in range(3_000):
        if path.exists() and path.read_text():
            return
        time.sleep(0.01)
    raise TimeoutError(path)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_signals_are_passed_on_and_end_the_run(number, status, running, script):
    running.send_signal(number)
    assert running.wait(30) == status
    assert len((script.parent / "started.0").read_text().splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_killed_supervisor_takes_its_process_with_it(running, script):
    running.kill()
    wait_for(script.parent / "ended")
    assert (script.parent / "ended").read_text() == "143\n"
