"""The command line: the calls of commands, exit status, one line for an error."""

import _thread
import errno
import importlib
import importlib.metadata
import inspect
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import pytest

from transformer_jax import __version__
from transformer_jax.__main__ import COMMANDS, main
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import Config
from transformer_jax.config.serialization import from_json, to_json
from transformer_jax.errors import DataError, Interrupted, UserError
from transformer_jax.use import environment
from transformer_jax.use.command_line import DEVICE_OUT_OF_MEMORY, set_up_logs

PRESET = "def get_config(): return {'data': {'source': 'grammar'}, 'model': {'d_ff': 64}}"


@pytest.fixture
def fake(monkeypatch) -> Callable[[Callable[..., Any]], None]:
    """Makes every command call this function instead of its own."""

    def replace(function: Callable[..., Any]) -> None:
        module = types.SimpleNamespace(command=function)
        monkeypatch.setitem(sys.modules, "fake_commands", module)
        for name, command in COMMANDS.items():
            monkeypatch.setitem(COMMANDS, name, command._replace(target="fake_commands:command"))

    return replace


@pytest.fixture
def called(fake) -> list[dict[str, Any]]:
    """The keyword arguments of each call of a command; the commands do no work."""
    calls: list[dict[str, Any]] = []
    fake(lambda **arguments: calls.append(arguments))
    return calls


@pytest.fixture
def preset(tmp_path) -> str:
    path = tmp_path / "preset.py"
    path.write_text(PRESET)
    return str(path)


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


# What is called with what ----------------------------------------------------------------------


@pytest.mark.parametrize("dry_run", [True, False])
def test_train_is_called_with_the_config_and_its_overrides(dry_run, called, preset):
    """An override may come before the config."""
    config = ["--config.seed=3", "--config", preset, "--config.decode.beam_size", "2"]
    others = ["--workdir=runs/x", "--init_from=runs/y", *["--dry_run"] * dry_run]
    assert main(["train", *config, *others]) == 0
    expected = with_values(
        Config(),
        {
            "data.source": "grammar",
            "model.d_ff": 64,
            "seed": 3,
            "decode.beam_size": 2,
            "train.init_from": "runs/y",
        },
    )
    flags = {"workdir": "runs/x", "dry_run": dry_run, "force": False}
    assert called == [{"config": expected, **flags}]


def test_train_without_a_config_file_continues_the_run_of_its_folder(called, tmp_path):
    config = with_values(Config(), {"data.source": "grammar", "train.steps": 7})
    (tmp_path / "config.json").write_text(to_json(config))
    workdir = f"--workdir={tmp_path}"
    assert main(["train", workdir]) == 0
    assert main(["train", workdir, "--config.train.steps=9", "--init_from=runs/y"]) == 0
    changed = with_values(config, {"train.steps": 9, "train.init_from": "runs/y"})
    assert [call["config"] for call in called] == [config, changed]


def test_a_config_is_printed_as_json_with_or_without_a_run(called, preset, tmp_path, capsys):
    assert main(["train", f"--config={preset}", "--config.seed=3", "--print_config"]) == 0
    expected = {"data.source": "grammar", "model.d_ff": 64, "seed": 3}
    printed = capsys.readouterr().out
    assert from_json(printed) == with_values(Config(), expected)
    (tmp_path / "config.json").write_text(printed)
    assert main(["train", f"--workdir={tmp_path}", "--print_config"]) == 0
    assert capsys.readouterr().out == printed
    assert called == []


EVALUATE = {"workdir": ["w"], "split": None, "src": None, "ref": None}
EVALUATE |= {"checkpoint": "latest", "beam_size": None, "examples": 0, "overrides": {}}
EVALUATE |= {"source": None}
SEVERAL = {"workdir": ["w", "v"], "src": "a", "ref": ["b", "c", "d"]}
SEARCH = {"checkpoint": "7", "beam_size": 1, "examples": 3}
OVERRIDDEN = EVALUATE | {"overrides": {"decode.length_penalty": 1.0, "data.path": "x"}}
FROM_TO = {"source": "de", "overrides": {"decode.to": "fr"}}
SENTENCE = {"workdir": "w", "sentence": "A dog.", "kind": "cross", "layer": None}
SENTENCE |= {"head": None, "explain": None, "output": "attention.png", "checkpoint": "latest"}
SENTENCE |= {"target": None, "overrides": {}}
CALLS = {
    "evaluate --workdir=w": EVALUATE,
    "evaluate --workdir=w,v --src=a --ref=b --ref=c,d": EVALUATE | SEVERAL,
    "evaluate --workdir=w --checkpoint=7 --beam_size=1 --examples=3": EVALUATE | SEARCH,
    "evaluate --workdir=w --config.decode.length_penalty=1 --config.data.path=x": OVERRIDDEN,
    "average --workdir=w": {"workdir": "w", "last": 5},
    "average --workdir=w --last=20": {"workdir": "w", "last": 20},
    # A flag that sets a key.
    "evaluate --workdir=w --from=de --to=fr": EVALUATE | FROM_TO,
    # An argument without a name may come before or after the flags.
    "attention 'A dog.' --workdir=w": SENTENCE,
    "attention --workdir=w 'A dog.'": SENTENCE,
    "attention --workdir w 'A dog.' --layer 2": SENTENCE | {"layer": 2},
    "attention 'A dog.' --workdir=w '--target=Ein Hund.'": SENTENCE | {"target": "Ein Hund."},
    "attention --workdir=w -- --kind=all": SENTENCE | {"sentence": "--kind=all"},
}


@pytest.mark.parametrize("line", CALLS)
def test_flags_become_arguments(line, called):
    assert main(shlex.split(line)) == 0
    assert called == [CALLS[line]]


def test_a_path_may_be_in_the_home_folder(called, monkeypatch):
    """A shell leaves the ~ of --flag=~/path as it is; before, a folder of that name was made."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert main(["evaluate", "--workdir=~/a,~/b", "--src=~/x.en", "--ref=~/x.de"]) == 0
    assert called[0]["workdir"] == ["/home/somebody/a", "/home/somebody/b"]
    assert (called[0]["src"], called[0]["ref"]) == ("/home/somebody/x.en", ["/home/somebody/x.de"])
    assert main(["attention", "--workdir=~/a", "--target=~/x", "~/y"]) == 0
    assert (called[1]["sentence"], called[1]["target"]) == ("~/y", "~/x")


def test_translate_reads_and_writes_bytes(called, monkeypatch):
    streams = types.SimpleNamespace(buffer=object())
    monkeypatch.setattr(sys, "stdin", streams)
    out = sys.stdout
    assert main(["translate", "--workdir=w", "--n_best=3", "--scores", "--length_penalty=1"]) == 0
    expected = {"checkpoint": "latest", "beam_size": None, "length_penalty": 1.0}
    expected |= {"coverage_penalty": None, "overrides": {}}
    expected |= {"workdir": ["w"], "n_best": 3, "scores": True, "sample": False, "engine": None}
    expected |= {"simultaneous": False}
    assert called == [expected | {"stdin": streams.buffer, "stdout": out.buffer}]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_function_that_takes_these_arguments(name, preset, fake, monkeypatch):
    module, _, function = COMMANDS[name].target.partition(":")
    signature = inspect.signature(getattr(importlib.import_module(module), function))
    bound = []
    fake(lambda **arguments: bound.append(signature.bind(**arguments)))
    names = ("config", "workdir")  # `train` asks for them itself
    values = {"config": preset, "heads": "0.5"}
    arguments = [
        "w" if flag.positional else f"--{flag.name}={values.get(flag.name, 'w')}"
        for flag in COMMANDS[name].flags
        if flag.required or flag.name in names
    ]
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=None))
    assert main([name, *arguments]) == 0
    assert len(bound) == 1


# Errors: a user's mistakes are in test_bad_input.py ----------------------------------------------


def raising(fake, error: BaseException) -> int:
    """The exit status of a command that raises this."""

    def fail(**_: Any) -> None:
        raise error

    fake(fail)
    return main(["average", "--workdir=w"])


def of_system(number: int, *paths: object) -> OSError:
    return OSError(number, os.strerror(number), *paths)


RENAMED = ("run/old.tmp", None, "run/new")
SPACE = "Free disk space, or inodes (df -i), and call it again."
PERMISSIONS = "run/new. Change its permissions, or name another file."
IN_THE_WAY = "run/new. Move it out of the way, or name another file."
DEVICE = jax.errors.JaxRuntimeError


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (DataError("sides differ:\n  3 lines\n  4 lines"), "sides differ: 3 lines 4 lines"),
        (of_system(errno.ENOSPC, "run/x"), f"No space left on device (run/x). {SPACE}"),
        (of_system(errno.EDQUOT, "run/x"), f"Disk quota exceeded (run/x). {SPACE}"),
        (
            of_system(errno.EFBIG, "run/x"),
            "File too large (run/x). Raise the limit (ulimit -f) and call it again.",
        ),
        (of_system(errno.EACCES, *RENAMED), f"Permission denied: {PERMISSIONS}"),
        (of_system(errno.EROFS, *RENAMED), f"Read-only file system: {PERMISSIONS}"),
        (of_system(errno.EISDIR, *RENAMED), f"Is a directory: {IN_THE_WAY}"),
        (of_system(errno.ENOTDIR, *RENAMED), f"Not a directory: {IN_THE_WAY}"),
        (DEVICE("RESOURCE_EXHAUSTED: Failed to allocate"), DEVICE_OUT_OF_MEMORY),
        (DEVICE("INTERNAL: Error: Out of memory allocating 2 bytes"), DEVICE_OUT_OF_MEMORY),
        (MemoryError("No 29.8 GiB for an array"), "No 29.8 GiB for an array. This machine has too"),
        (MemoryError(), "no memory left. This machine has too little memory. In training lower"),
    ],
    ids=repr,
)
def test_what_a_user_can_change_is_one_line_and_status_2(error, want, fake, capsys):
    assert raising(fake, error) == 2
    out, written = capsys.readouterr()
    assert out == "" and written.count("\n") == 1
    assert written.startswith(f"transformer-jax: {want}")


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError(),
        jax.errors.JaxRuntimeError("INTERNAL: no such kernel"),
        of_system(errno.EACCES),
        BrokenPipeError("of a worker"),
    ],
    ids=repr,
)
def test_what_is_no_user_s_mistake_keeps_its_traceback(error, fake):
    with pytest.raises(type(error)):
        raising(fake, error)


def test_a_message_as_long_as_a_book_is_shortened(fake, capsys):
    assert raising(fake, DataError("begins" + "x" * 100_000 + "ends")) == 2
    error = capsys.readouterr().err
    assert len(error) < 5_000 and error.endswith("xends\n")
    assert error.startswith("transformer-jax: beginsx") and "x ... x" in error


@pytest.mark.parametrize(
    ("error", "status", "written"),
    [
        (Interrupted(15, "SIGTERM: stopped"), 143, "transformer-jax: SIGTERM: stopped\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=repr,
)
def test_an_interrupt_has_the_shell_s_status(error, status, written, fake, capsys):
    assert raising(fake, error) == status
    assert capsys.readouterr() == ("", written)


def test_output_that_cannot_be_written_is_one_line_and_status_2():
    command = [sys.executable, "-m", "transformer_jax", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    want = f"transformer-jax: No space left on device. {SPACE}\n"
    assert (done.returncode, done.stderr) == (2, want)


def test_the_version_is_that_of_the_package_and_of_what_it_stands_on(capsys, monkeypatch):
    assert main(["--version"]) == 0
    own, versions, devices = capsys.readouterr().out.splitlines()
    assert own == f"transformer-jax {__version__}"
    assert f"jax {jax.__version__}, " in versions and versions.startswith("Python 3.")
    assert devices.startswith("devices: ") and "x cpu" in devices
    monkeypatch.setattr(environment, "check_devices", mock.Mock(side_effect=UserError("no device")))
    assert main(["--version"]) == 0
    assert "devices: no device" in capsys.readouterr().out


def test_of_errors_that_nobody_can_catch_only_those_of_orbax_are_hidden(monkeypatch):
    """After a failed save, a thread of TensorStore may call an event loop that Orbax has closed.

    After a failed restore, Orbax leaves coroutines behind that have failed too.
    """
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    for _ in range(2):  # the second time adds nothing
        set_up_logs()
    errors = [RuntimeError("Event loop is closed"), RuntimeError("something else")]
    for error in errors:
        sys.unraisablehook(types.SimpleNamespace(exc_type=None, exc_value=error, object=None))
    for file in ("/site-packages/orbax/checkpoint/x.py", "/home/orbax.py"):
        errors.append(RuntimeError(file))
        code = types.SimpleNamespace(cr_code=types.SimpleNamespace(co_filename=file))
        sys.unraisablehook(types.SimpleNamespace(exc_type=None, exc_value=errors[-1], object=code))
    assert [unraisable.exc_value for unraisable in reported] == [errors[1], errors[3]]
    assert sys.unraisablehook.other == reported.append
    again = []
    monkeypatch.setattr(_thread, "interrupt_main", lambda: again.append(1))
    sys.unraisablehook(types.SimpleNamespace(exc_type=KeyboardInterrupt))
    assert again == [1] and len(reported) == 2


# In a process of its own -----------------------------------------------------------------------

FAKE = """
import logging, sys, types
from transformer_jax.__main__ import COMMANDS, main
def command(**_):
    {body}
sys.modules["fake_commands"] = types.SimpleNamespace(command=command)
COMMANDS["average"] = COMMANDS["average"]._replace(target="fake_commands:command")
sys.exit(main(["average", "--workdir=w"]))
"""


def test_help_is_fast_and_complete():
    """It is fast because it imports none of the heavy libraries."""
    asked = [["--help"], ["-h"], *([name, "--help"] for name in COMMANDS)]
    done = python(
        "import sys; from transformer_jax.__main__ import main\n"
        f"status = max(main(arguments) for arguments in {asked})\n"
        "heavy = {'jax', 'flax', 'numpy', 'orbax', 'tensorflow_datasets'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *texts = done.stdout.split("usage: python -m transformer_jax ")
    assert first == ""
    for arguments, text in zip(asked, texts, strict=True):
        command = COMMANDS.get(arguments[0])
        words = [flag.shown for flag in command.flags] if command else list(COMMANDS)
        assert not [word for word in words if f"\n  {word}" not in text], arguments
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_the_installed_name_is_the_same_program():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="transformer-jax")
    assert script.load() is main


def test_logs_go_to_standard_error_and_other_packages_only_warn():
    body = "print('a result'); "
    body += "logging.getLogger('transformer_jax.x').info('progress'); "
    body += "logging.getLogger('another').info('chatter'); "
    body += "logging.getLogger('another').warning('trouble')"
    done = python(FAKE.format(body=body))
    assert (done.returncode, done.stdout) == (0, "a result\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d progress\ntrouble\n", done.stderr)


@pytest.mark.parametrize("how", ["print(i, flush=True)", "sys.stdout.buffer.write(b'x' * 4096)"])
def test_a_reader_that_goes_away_ends_the_command_quietly(how):
    code = FAKE.format(body=f"for i in range(100_000): {how}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 128 + 13


def test_a_reader_that_goes_away_after_the_last_line_is_noticed_at_the_flush():
    """Python writes the rest of the buffer after the command has returned."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", FAKE.format(body="print('x')")], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + 13, b"")
