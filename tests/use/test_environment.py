"""The process that a command runs in: what cannot work is one line before anything starts."""

import itertools
import os
import resource
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.fixtures.cases import first_quick
from tests.tiny_runs import command
from transformer_jax.errors import UserError
from transformer_jax.tables.experiment import Experiment, check_kinds
from transformer_jax.use.command_line import parse_experiment
from transformer_jax.use.environment import (
    ADDRESSES_NEEDED,
    FILES_NEEDED,
    FILES_WANTED,
    check_environment,
    ended_by_interrupts,
)

STREAMS = """
import os, sys
from transformer_jax.use.environment import open_missing_streams
closed = open_missing_streams()
print("printed")
opened = os.open("file", os.O_CREAT | os.O_WRONLY)
print(*sorted(closed), opened, len(sys.stdin.read()), sep=",", file=open("found", "w"))
"""


def run_code(*arguments, **settings):
    """Runs a program in a new process."""
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    return subprocess.run([*map(str, arguments)], env=environment, **settings)


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2), ()], ids=str)
def test_a_closed_stream_is_the_null_device_and_no_other_file_gets_its_number(closed, tmp_path):
    streams = [f"{number}>&-" for number in closed] + ["" if 0 in closed else "</dev/null"]
    script = f'cd {tmp_path}; "$0" -c "$1" {" ".join(streams)}'
    run_code("sh", "-c", script, sys.executable, STREAMS, check=True)
    *names, number, length = (tmp_path / "found").read_text().strip().split(",")
    assert [name for name in names if name] == sorted(
        f"standard {('input', 'output', 'error')[number]}" for number in closed
    )
    assert int(number) == 3 and length == "0"
    assert (tmp_path / "file").read_bytes() == b""


def test_a_stream_that_is_open_in_the_wrong_direction_counts_as_closed(tmp_path):
    script = 'cd "$2"; "$0" -c "$1" 0>written 1</dev/null'
    run_code("sh", "-c", script, sys.executable, STREAMS, tmp_path, check=True)
    assert (tmp_path / "found").read_text() == "standard input,standard output,3,0\n"


def test_a_stream_waits_whatever_another_program_has_set(tmp_path):
    code = "from transformer_jax.use.environment import open_missing_streams as f; f(); import os; "
    code += f"print(*map(os.get_blocking, range(3)), file=open('{tmp_path}/found', 'w'))"
    ends = [os.pipe() for _ in range(3)]
    used = [ends[0][0], ends[1][1], ends[2][1]]
    for end in used:
        os.set_blocking(end, False)
    names = ("stdin", "stdout", "stderr")
    run_code(sys.executable, "-c", code, check=True, **dict(zip(names, used, strict=True)))
    for end in itertools.chain(*ends):
        os.close(end)
    assert (tmp_path / "found").read_text() == "True True True\n"


def test_an_experiment_without_docstrings_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=2))
    with pytest.raises(UserError, match="use no -OO, and unset PYTHONOPTIMIZE=2"):
        parse_experiment("mine", None, ())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="use no -OO"):
        check_kinds(Experiment("mine", {}, {}))
    monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=1))
    check_kinds(Experiment("mine", {}, {}))


EXPERIMENT = """
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Scale
scale = Scale("configs/demo.py")
main(Experiment("mine", {"Übung": {}}, {"small": scale}, about="mine"))
"""


@pytest.mark.parametrize(
    ("redirect", "variables", "flags", "status", "words"),
    first_quick(
        [
            (">&-", {}, "--list", 0, ""),
            ("", {"JAX_PLATFORMS": "cpuu"}, "--dry_run", 2, "JAX_PLATFORMS=cpuu: "),
            ("", {"PYTHONIOENCODING": "ascii"}, "--list", 0, "\\xdcbung"),
            ("", {"JAX_ENABLE_X64": "1"}, "--list", 2, "JAX_ENABLE_X64=1 cannot be used here"),
        ],
        2,
    ),
    ids=["closed", "platform", "ascii", "x64"],
)
def test_an_experiment_of_one_s_own_starts_like_a_command(
    redirect, variables, flags, status, words
):
    script = f'"$0" -c "$1" {flags} 2>&1 {redirect}'
    environment = os.environ | {"PYTHONPATH": os.getcwd()} | variables
    found = subprocess.run(
        ["sh", "-c", script, sys.executable, EXPERIMENT], env=environment, capture_output=True
    )
    assert found.returncode == status and words in found.stdout.decode()
    assert b"Traceback" not in found.stdout


@pytest.mark.parametrize(
    "variable",
    [
        "JAX_ENABLE_X64=True",
        "JAX_DISABLE_JIT=1",
        "JAX_NO_EXECUTION=1",
        "JAX_RANDOM_SEED_OFFSET=5",
        "JAX_THREEFRY_PARTITIONABLE=0",
        "JAX_NUMPY_DTYPE_PROMOTION=strict",
        "JAX_NUMPY_RANK_PROMOTION=raise",
        "JAX_TRANSFER_GUARD=disallow",
        "JAX_DEBUG_INFS=true",
        "JAX_DEFAULT_PRNG_IMPL=rbg",
        "SOURCE_DATE_EPOCH=today",
    ],
)
def test_what_libraries_fail_with_is_refused_before_anything_starts(variable, monkeypatch, capsys):
    name, value = variable.split("=")
    monkeypatch.setenv(name, value)
    assert command("translate", "--workdir=run") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"transformer-jax: {variable} ") and error.count("\n") == 1
    usual = "1" if name == "JAX_THREEFRY_PARTITIONABLE" else "0"
    monkeypatch.setenv(name, usual)
    check_environment()


@pytest.mark.parametrize(
    ("platform", "error", "words"),
    [
        (
            "",
            RuntimeError("Unable to initialize backend 'cpu': no id (you may need to uninstall)"),
            "JAX cannot start: Unable to initialize backend 'cpu': no id. Check XLA_FLAGS and ",
        ),
        (
            "cpu",
            ValueError("invalid truth value 'maybe' for environment 'JAX_ENABLE_X'"),
            "JAX cannot start: invalid truth value 'maybe' for env",
        ),
        # A plugin that is missing makes JAX raise an assertion without a message.
        ("cuda", AssertionError(), "JAX_PLATFORMS=cuda: no such platform is installed. Install "),
        (
            "cuda",
            RuntimeError("Unable to initialize backend 'x': not known. (set JAX_PLATFORMS='')"),
            "JAX_PLATFORMS=cuda: Unable to initialize backend 'x': not known. Install JAX",
        ),
    ],
    ids=["any platform", "a variable, not the platform", "no plugin", "not known"],
)
def test_what_keeps_jax_from_starting_is_one_line(platform, error, words, monkeypatch, capsys):
    def devices():
        raise error

    monkeypatch.setenv("JAX_PLATFORMS", platform)
    monkeypatch.setattr("jax.devices", devices)
    assert command("translate", "--workdir=run") == 2
    found = capsys.readouterr().err
    assert found.startswith(f"transformer-jax: {words}") and found.count("\n") == 1


def test_a_deleted_working_directory_is_one_line(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert command("translate", "--workdir=run") == 2
    error = capsys.readouterr().err
    assert "The working directory no longer exists" in error and error.count("\n") == 1


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(monkeypatch, capsys):
    limits = {"now": (100, resource.RLIM_INFINITY)}
    monkeypatch.setattr("resource.getrlimit", lambda _: limits["now"])
    monkeypatch.setattr("resource.setrlimit", lambda _, both: limits.update(now=both))
    check_environment()
    assert limits["now"] == (FILES_WANTED, resource.RLIM_INFINITY)
    unlimited = limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    check_environment()
    assert limits["now"] == unlimited
    limits["now"] = (20, 60)
    assert command("translate", "--workdir=run") == 2
    assert limits["now"] == (60, 60)
    message = f"may open only 60 files at a time (ulimit -n), and needs {FILES_NEEDED}"
    assert message in capsys.readouterr().err


def test_too_few_addresses_for_the_libraries_are_refused(monkeypatch, capsys):
    """With less, importing them raises or aborts; a command without a device needs none of them."""
    limit = ADDRESSES_NEEDED - 1, resource.RLIM_INFINITY
    own, which = resource.getrlimit, resource.RLIMIT_AS
    monkeypatch.setattr("resource.getrlimit", lambda of: limit if of == which else own(of))
    assert command("translate", "--workdir=run") == 2
    error = capsys.readouterr().err
    assert "may use only 2047 MiB of addresses (ulimit -v)" in error and error.count("\n") == 1
    assert command("keys", "seed") == 0


def test_translate_needs_its_streams(monkeypatch, capsys):
    for name in ("standard input", "standard output"):
        monkeypatch.setattr("transformer_jax.__main__.open_missing_streams", lambda n=name: {n})
        assert command("translate", "--workdir=run") == 2
        assert f"{name} is closed or cannot be used. Use ... < TEXT" in capsys.readouterr().err


STUCK = """
import sys, threading
from transformer_jax.use.environment import end_stuck_threads

class Waiting(threading.Thread):
    def run(self):
        threading.Event().wait(60)

Waiting.__module__ = "orbax.checkpoint"
Waiting().start()
sys.stderr.write("reported")
end_stuck_threads(2)
"""


def test_a_thread_of_a_failed_save_does_not_keep_the_process_alive():
    done = run_code(sys.executable, "-c", STUCK, capture_output=True, timeout=40)
    assert (done.returncode, done.stderr) == (2, b"reported")


def test_ctrl_c_while_libraries_are_imported_ends_the_process_without_a_traceback():
    """JAX's extension modules turn KeyboardInterrupt into an ImportError."""
    code = """
import os, signal
from transformer_jax.use.environment import ended_by_interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `... &` ignores it
with ended_by_interrupts():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("Encountered an error while initializing the extension")
"""
    done = run_code(sys.executable, "-c", code, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ended_by_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
