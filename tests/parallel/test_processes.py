"""Several processes as one: how they find each other, and what they share."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import tiny_runs as runs
from tests.runs.test_weights import shapes
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError, DataError, RunError, UserError
from transformer_jax.parallel import processes
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import load_params
from transformer_jax.use.train import _load, train

ROOT = Path(__file__).parents[2]
LINES = ["The dog sleeps.", "", "A man buys the house.", "Anna laughed.", "We see them."] * 3


@pytest.fixture
def joined(monkeypatch):
    """What jax.distributed.initialize is called with."""
    calls = []
    monkeypatch.setattr("jax.distributed.initialize", lambda *a, **k: calls.append(a))
    monkeypatch.setattr(processes, "meet", lambda *a: None)
    monkeypatch.setattr(os, "environ", {"JAX_PLATFORMS": "cpu"})
    return calls


def test_a_process_alone_joins_nobody(joined):
    processes.join(None, None, None)
    os.environ |= {"SLURM_STEP_NUM_TASKS": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    processes.join(None, None, None)
    assert joined == []
    assert (processes.count(), processes.index(), processes.is_first()) == (1, 0, True)


SLURM = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}


def test_what_a_launcher_sets_goes_to_jax_and_flags_override_it(joined, monkeypatch):
    os.environ |= SLURM
    monkeypatch.setattr("jax.process_count", lambda: 2)
    processes.join(None, None, None)
    monkeypatch.setattr("jax.process_count", lambda: 1)
    with pytest.raises(ConfigError, match="SLURM.*, and JAX finds 1 processes"):
        processes.join(None, None, None)
    joined.pop()
    processes.join("node1:1234", 4, 3)
    os.environ |= {"JAX_NUM_PROCESSES": "4"}  # it contradicts SLURM, and flags go before both
    processes.join("node1:1234", 4, 3)
    del os.environ["SLURM_PROCID"]
    os.environ |= {"JAX_PROCESS_ID": "2", "JAX_COORDINATOR_ADDRESS": "node2:1"}
    processes.join(None, None, None)
    found = None, None, None, None, None
    by_flags = "node1:1234", 4, 3, None, "deactivate"
    assert joined == [found, by_flags, by_flags, ("node2:1", 4, 2, None, "deactivate")]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("node1:1234", None, None), "belong together"),
        ((None, 2, 0), "belong together"),
        (("node1:1234", 2, 2), "process ids are 0 to"),
        (("node1:1234", 2, -1), "process ids are 0 to"),
        (("node1", 2, 0), "the address is HOST:PORT"),
        (("node1:65536", 2, 0), "with a port of 1 to 65535"),
        (("node1:0", 2, 0), "with a port of 1 to 65535"),
        ((":1234", 2, 0), "the address is HOST:PORT"),
        (("http://node1:1234", 2, 0), "the address is HOST:PORT"),
    ],
)
def test_flags_that_cannot_be_are_refused(flags, message, joined):
    with pytest.raises(ConfigError, match=message):
        processes.join(*flags)
    assert joined == []


def test_a_worker_of_a_tpu_pod_is_no_run_of_its_own(monkeypatch):
    processes.check_alone()
    monkeypatch.setattr("jax.process_count", lambda: 4)
    with pytest.raises(ConfigError, match="one of 4 processes of a TPU pod, and each would be"):
        processes.check_alone()


def test_processes_that_miss_each_other_get_one_line(joined, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr("jax.distributed.initialize", refuse)
    with pytest.raises(ConfigError, match="cannot find each other: coordinator_address should"):
        processes.join("node1:1234", 2, 1)


def test_alone_what_the_first_does_is_what_is_done():
    assert processes.gather({"a": 1}) == [{"a": 1}]
    assert processes.first_does(lambda: 3) == processes.first_goes_ahead(lambda: 3) == 3

    def fails() -> None:
        raise UserError("no")

    with pytest.raises(UserError, match="^no$"):
        processes.first_does(fails)


SHARED = """
import json, sys
from transformer_jax.parallel import processes
from transformer_jax.errors import UserError

processes.join(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
first = processes.is_first()
found = [processes.gather(["x" * 300 if first else "\u00df", processes.index()])]
found.append(processes.first_does(lambda: {"of": processes.index()}))
order = []
found.append(processes.first_goes_ahead(lambda: processes.index()))


def fails():
    raise UserError("only here" if first else "never called")


try:
    processes.first_does(fails)
except UserError as error:
    found.append(str(error))
print(json.dumps(found))
"""


def both(command: list[str], port: int, given: bytes = b"") -> list[bytes]:
    """What two processes print that run this command with PORT and PROCESS filled in.

    Gloo's greeting, which begins standard output on CPUs, is checked and left out.
    """

    def run(process: int) -> bytes:
        filled = [part.format(port=port, process=process) for part in command]
        done = subprocess.run(filled, cwd=ROOT, input=given, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        greetings = re.match(
            rb"(\[Gloo\] Rank \d is connected to 1 peer ranks\..*\n)+", done.stdout
        )
        assert greetings, "does it print no more? Then say so in processes.py and docs/guide.md"
        return done.stdout[greetings.end() :]

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, (0, 1)))


def test_two_processes_share_what_they_say(tmp_path):
    script = tmp_path / "shared.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{SHARED}", encoding="utf-8")
    command = [sys.executable, str(script), "{port}", "{process}"]
    outputs = both(command, runs.free_port())
    found = [json.loads(out.splitlines()[-1]) for out in outputs]
    for index in (0, 1):
        assert found[index] == [[["x" * 300, 0], ["ß", 1]], {"of": 0}, index, "only here"]


@pytest.mark.slow("starts two processes")
def test_two_processes_translate_as_one_does(tmp_path, monkeypatch):
    workdir = runs.trained_run()
    command = [sys.executable, "-m", "transformer_jax", "translate", f"--workdir={workdir}"]
    command += ["--scores", "--beam_size=2"]
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    text = "".join(f"{line}\n" for line in LINES).encode()
    alone = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, check=True).stdout
    several = ["--coordinator=localhost:{port}", "--num_processes=2", "--process_id={process}"]
    of_two = both([*command, *several], runs.free_port(), text)
    lines = of_two[0].splitlines()
    assert of_two[1] == b""
    assert len(lines) == len(LINES)
    got, want = ([line.split(b"\t") for line in out] for out in (lines, alone.splitlines()))
    assert [text for _, text in got] == [text for _, text in want]
    for (one, _), (other, _) in zip(got, want, strict=True):
        assert float(one) == pytest.approx(float(other), abs=1e-5)


@pytest.fixture
def ended(monkeypatch):
    """The exit statuses with which this process would have ended at once."""
    statuses = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    return statuses


def test_a_process_alone_ends_as_any_other(ended):
    processes.leave(2)
    assert ended == []


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(ValueError("a bug"), True), (None, False)], ids=["bug", "user"]
)
def test_a_process_that_stops_with_others_waits_for_nobody(
    error, has_traceback, ended, monkeypatch, capsys
):
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "index", lambda: 1)
    processes.leave(2, error)
    assert ended == [2]
    written = capsys.readouterr().err
    assert ("ValueError: a bug" in written) == ("process 1 of 2 stops" in written) == has_traceback


def test_processes_with_other_files_stop_before_they_train(monkeypatch):
    """Paths may differ, and what is there may not."""
    run = RunFolder(runs.trained_run())
    data = SimpleNamespace(fingerprints=("a", "b"), vocabulary=SimpleNamespace(digest="c"))
    monkeypatch.setattr("transformer_jax.use.train.load_data", lambda *_: data)
    monkeypatch.setattr("transformer_jax.use.train.with_teacher", lambda data, *_: data)
    monkeypatch.setattr(processes, "gather", lambda own: [own, [*own[:2], "other"]])
    with pytest.raises(DataError, match="process 1 has other text, another vocabulary or another"):
        _load(Config(), run)
    monkeypatch.setattr(processes, "gather", lambda own: [own, "other"])
    with pytest.raises(RunError, match="process 1 has other weights than process 0 in .*/40, or"):
        load_params(run, "latest", shapes())


def test_processes_with_other_configs_stop_before_they_train(monkeypatch):
    own = {"train.steps": 5, "data.path": "here"}
    other = dict(own)
    monkeypatch.setattr(processes, "gather", lambda value: [value, {**value, **other}])
    config = with_values(Config(), {"data.source": "grammar", "train.steps": 6})
    with pytest.raises(ConfigError, match=r"process 1 has train.steps=5, and process 0 has 6"):
        train(config, "nowhere")
    monkeypatch.setattr(processes, "gather", lambda own: [own, {**own, "--workdir": "/other"}])
    with pytest.raises(ConfigError, match="process 1 has --workdir='/other', and process 0 has"):
        train(config, "nowhere")
    assert not Path("nowhere").exists()
