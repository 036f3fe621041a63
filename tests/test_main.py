"""The command line: the calls of commands, exit status, one line for a user's mistake."""

import errno
import importlib
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import jax
import pytest

from transformer_jax import __version__
from transformer_jax.__main__ import COMMANDS, main
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import Config
from transformer_jax.config.serialization import from_json, to_json
from transformer_jax.errors import DataError, Interrupted
from transformer_jax.use.command_line import set_up_logs

PRESET = "def get_config(): return {'data': {'source': 'grammar'}, 'model': {'d_ff': 64}}"


@pytest.fixture
def called(monkeypatch) -> list[dict[str, Any]]:
    """The keyword arguments of each call of a command; the commands do no work."""
    calls: list[dict[str, Any]] = []
    fake = types.ModuleType("fake_commands")
    fake.command = lambda **arguments: calls.append(arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_commands", fake)
    for name, command in COMMANDS.items():
        monkeypatch.setitem(COMMANDS, name, command._replace(target="fake_commands:command"))
    return calls


@pytest.fixture
def preset(tmp_path) -> str:
    path = tmp_path / "preset.py"
    path.write_text(PRESET)
    return str(path)


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


# What is called with what ----------------------------------------------------------------------


def test_train_is_called_with_the_config_and_its_overrides(called, preset):
    config = ["--config", preset, "--config.model.d_k=16", "--config.decode.beam_size", "2"]
    assert main(["train", *config, "--workdir=runs/x", "--init_from=runs/y"]) == 0
    expected = with_values(
        Config(),
        {
            "data.source": "grammar",
            "model.d_ff": 64,
            "model.d_k": 16,
            "decode.beam_size": 2,
            "train.init_from": "runs/y",
        },
    )
    flags = {"workdir": "runs/x", "dry_run": False, "force": False}
    assert called == [{"config": expected, **flags}]


def test_dry_run_and_overrides_before_the_config(called, preset):
    assert main(["train", "--config.seed=3", f"--config={preset}", "--workdir=w", "--dry_run"]) == 0
    assert called[0]["dry_run"] is True
    assert called[0]["config"].seed == 3


def test_train_without_a_config_file_continues_the_run_of_its_folder(called, tmp_path, capsys):
    config = with_values(Config(), {"data.source": "grammar", "train.steps": 7})
    (tmp_path / "config.json").write_text(to_json(config))
    workdir = f"--workdir={tmp_path}"
    assert main(["train", workdir]) == 0
    assert main(["train", workdir, "--config.train.steps=9", "--init_from=runs/y"]) == 0
    changed = with_values(config, {"train.steps": 9, "train.init_from": "runs/y"})
    assert [call["config"] for call in called] == [config, changed]
    assert main(["train", workdir, "--config.train.steps=0"]) == 2
    assert "train.steps=0 is below 1" in capsys.readouterr().err


def test_a_config_is_printed_as_json_with_or_without_a_run(called, preset, tmp_path, capsys):
    assert main(["train", f"--config={preset}", "--config.seed=3", "--print_config"]) == 0
    expected = {"data.source": "grammar", "model.d_ff": 64, "seed": 3}
    printed = capsys.readouterr().out
    assert from_json(printed) == with_values(Config(), expected)
    (tmp_path / "config.json").write_text(printed)
    assert main(["train", f"--workdir={tmp_path}", "--print_config"]) == 0
    assert capsys.readouterr().out == printed
    assert called == []


def test_two_runs_to_start_from_are_refused(capsys, preset):
    two = ["--init_from=a", "--config.train.init_from=b"]
    assert main(["train", f"--config={preset}", "--workdir=w", *two]) == 2
    assert "name two runs: give one" in capsys.readouterr().err


def test_prepare_is_called_with_the_config(called, preset):
    assert main(["prepare", f"--config={preset}"]) == 0
    assert [list(call) for call in called] == [["config"]]
    assert called[0]["config"].data.source == "grammar"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["evaluate", "--workdir=w"],
            {"workdir": ["w"], "split": None, "src": None, "ref": None}
            | {"checkpoint": "latest", "beam_size": None, "examples": 0, "overrides": {}},
        ),
        (
            [
                "evaluate",
                "--workdir=w,v",
                "--src=a",
                "--ref=b",
                "--ref=c,d",
                "--checkpoint=7",
                "--beam_size=1",
                "--examples=3",
                "--config.decode.length_penalty=1",
                "--config.data.path=there",
            ],
            {"workdir": ["w", "v"], "split": None, "src": "a", "ref": ["b", "c", "d"]}
            | {"checkpoint": "7", "beam_size": 1, "examples": 3}
            | {"overrides": {"decode.length_penalty": 1.0, "data.path": "there"}},
        ),
        (["average", "--workdir=w"], {"workdir": "w", "last": 5}),
        (["average", "--workdir=w", "--last=20"], {"workdir": "w", "last": 20}),
    ],
)
def test_flags_become_arguments(called, arguments, expected):
    assert main(arguments) == 0
    assert called == [expected]


def test_a_path_may_be_in_the_home_folder(called, monkeypatch):
    """A shell leaves the ~ of --flag=~/path as it is; before, a folder of that name was made."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert main(["evaluate", "--workdir=~/a,~/b", "--src=~/x.en", "--ref=~/x.de"]) == 0
    assert called[0]["workdir"] == ["/home/somebody/a", "/home/somebody/b"]
    assert (called[0]["src"], called[0]["ref"]) == ("/home/somebody/x.en", ["/home/somebody/x.de"])
    assert main(["attention", "--workdir=~/a", "--target=~/x", "~/y"]) == 0
    assert (called[1]["sentence"], called[1]["target"]) == ("~/y", "~/x")


SENTENCE = {"workdir": "w", "sentence": "A dog.", "kind": "cross", "layer": None}
SENTENCE |= {"head": None, "output": "attention.png", "checkpoint": "latest", "target": None}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["A dog.", "--workdir=w"], SENTENCE),
        (["--workdir=w", "A dog."], SENTENCE),
        (["--workdir", "w", "A dog.", "--layer", "2"], SENTENCE | {"layer": 2}),
        (["A dog.", "--workdir=w", "--target=Ein Hund."], SENTENCE | {"target": "Ein Hund."}),
        (["--workdir=w", "--", "--kind=all"], SENTENCE | {"sentence": "--kind=all"}),
    ],
)
def test_an_argument_without_a_name_may_come_before_or_after_the_flags(called, arguments, expected):
    assert main(["attention", *arguments]) == 0
    assert called == [expected]


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
def test_every_command_is_a_function_that_takes_these_arguments(name, preset, monkeypatch):
    module, _, function = COMMANDS[name].target.partition(":")
    real = getattr(importlib.import_module(module), function)
    bound = []
    fake = types.ModuleType("fake_commands")
    signature = inspect.signature(real)
    fake.command = lambda **arguments: bound.append(signature.bind(**arguments))
    monkeypatch.setitem(sys.modules, "fake_commands", fake)
    command = COMMANDS[name]._replace(target="fake_commands:command")
    monkeypatch.setitem(COMMANDS, name, command)
    names = ("config", "workdir")  # `train` asks for them itself
    required = [flag for flag in command.flags if flag.required or flag.name in names]
    arguments = [
        "w" if flag.positional else f"--{flag.name}={preset if flag.name == 'config' else 'w'}"
        for flag in required
    ]
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=None))
    assert main([name, *arguments]) == 0
    assert len(bound) == 1


# A user's mistakes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], f"name a command first: {', '.join(COMMANDS)}."),
        (["--workdir=x", "train"], "name a command first"),
        (["trian"], "'trian' is not a command. Did you mean train?"),
        (["zzz"], "'zzz' is not a command. Commands: train, translate"),
        (["train", "--workdir=w"], "train needs --config=FILE[:ARGUMENT]: "),
        (["train", "--workdir=w"], "/w holds no run to continue."),
        (["train", "--print_config"], "train needs --config=FILE"),
        (["prepare"], "prepare needs --config=FILE"),
        (
            ["evaluate", "--workdir=w", "--config.model.d_ff=3"],
            "evaluate does not take --config.model.d_ff. "
            "It takes decode.*, data.path, data.valid, data.test.",
        ),
        (["translate", "--workdir=w", "--config.data.path=x"], "It takes decode.*."),
        (["translate", "--workdir=w", "--config.decode.beem_size=2"], "mean decode.beam_size?"),
        (["average", "--workdir=w", "--config.decode.beam_size=2"], "config.decode.beam_size"),
        (["train", "--config=PRESET"], "train needs --workdir=FOLDER"),
        (["train", "--config=PRESET", "--workdir="], "--workdir= is empty"),
        (["evaluate"], "evaluate needs --workdir=FOLDER"),
        (["attention", "x"], "attention needs --workdir=FOLDER"),
        (["attention", "--workdir=w"], "attention needs SENTENCE: what to translate"),
        (["attention", "--workdir=w", ""], "attention needs SENTENCE"),
        (["attention", "--workdir=w", "A", "dog."], "takes one SENTENCE, not 2 arguments"),
        (["train", "--wrokdir=w"], "'wrokdir'. Did you mean: workdir"),
        (
            ["train", "--workdir=w", "--model.d_ff=4"],
            "'model.d_ff'. Did you mean: --config.model.d_ff?",
        ),
        (["train", "--workdir=w", "--num_heads=7"], "Did you mean: --config.model.num_heads?"),
        (["train", "PRESET", "--workdir=w", "--config=PRESET"], "train does not take '"),
        (["average", "--workdir=w", "--last=many"], "--last=many"),
        (["average", "--workdir"], "workdir"),
        (["average", "--workdir=w", "--dry_run"], "'dry_run'"),
        (["translate", "--workdir=w", "--scores=perhaps"], "--scores=perhaps"),
        (["train", "--config=nowhere.py", "--workdir=w"], "nowhere.py: there is no such file"),
        (["train", "--config=BROKEN", "--workdir=w"], "line 3: NameError: name 'oops'"),
        (["train", "--config=PRESET:big", "--workdir=w"], "takes no argument"),
        (["train", "--config=PRESET", "--workdir=w", "--config.model.d_modle=3"], "model.d_model?"),
        (
            ["train", "--config=PRESET", "--workdir=w", "--config.model.d_k=abc"],
            "d_k=abc: expected int",
        ),
        (["train", "--config=PRESET", "--workdir=w", "--config.model.dropout=1"], "not in [0, 1)"),
        (["prepare", "--config=PRESET", "--config.train.steps=0"], "train.steps=0 is below 1"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(called, arguments, message, preset, tmp_path, capsys):
    broken = tmp_path / "broken.py"
    broken.write_text("def get_config():\n    '''\n    '''; oops\n    return {}\n")
    arguments = [a.replace("PRESET", preset).replace("BROKEN", str(broken)) for a in arguments]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and called == []
    assert err.startswith("transformer-jax: ") and err.count("\n") == 1 and err.endswith("\n")
    assert message in err


def test_a_command_s_user_error_is_one_line_however_it_is_broken(monkeypatch, capsys):
    def fail() -> None:
        raise DataError("sides differ:\n  3 lines\n  4 lines")

    assert run_fake(monkeypatch, fail) == 2
    assert capsys.readouterr() == ("", "transformer-jax: sides differ: 3 lines 4 lines\n")


def run_fake(monkeypatch, action) -> int:
    fake = types.ModuleType("fake_commands")
    fake.command = lambda **_: action()
    monkeypatch.setitem(sys.modules, "fake_commands", fake)
    command = COMMANDS["average"]._replace(target="fake_commands:command")
    monkeypatch.setitem(COMMANDS, "average", command)
    return main(["average", "--workdir=w"])


@pytest.mark.parametrize(
    "message",
    ["RESOURCE_EXHAUSTED: Failed to allocate", "INTERNAL: Error: Out of memory allocating 2 bytes"],
)
def test_too_little_memory_is_one_line_with_the_fix(message, monkeypatch, capsys):
    def exhaust() -> None:
        raise jax.errors.JaxRuntimeError(message)

    assert run_fake(monkeypatch, exhaust) == 2
    error = capsys.readouterr().err
    assert "train.accumulate_steps" in error and "decode.beam_size" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("message", ["Unable to allocate 29.8 GiB for an array", ""])
def test_too_little_memory_of_the_machine_is_one_line(message, monkeypatch, capsys):
    def exhaust() -> None:
        raise MemoryError(message)

    assert run_fake(monkeypatch, exhaust) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"transformer-jax: {message or 'no memory left'}. This machine")
    assert error.count("\n") == 1


def test_another_error_of_the_device_keeps_its_traceback(monkeypatch):
    def fail() -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: no such kernel")

    with pytest.raises(jax.errors.JaxRuntimeError):
        run_fake(monkeypatch, fail)


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "Free disk space, or inodes (df -i),"),
        (errno.EDQUOT, "Free disk space, or inodes (df -i),"),
        (errno.EFBIG, "Raise the limit (ulimit -f)"),
    ],
)
def test_a_full_disk_is_one_line(number, fix, monkeypatch, capsys):
    def fill() -> None:
        raise OSError(number, os.strerror(number), "run/metrics.jsonl")

    assert run_fake(monkeypatch, fill) == 2
    want = f"{os.strerror(number)} (run/metrics.jsonl). {fix} and call it again."
    assert capsys.readouterr().err == f"transformer-jax: {want}\n"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "Change its permissions, or name another file."),
        (errno.EROFS, "Change its permissions, or name another file."),
        (errno.EISDIR, "Move it out of the way, or name another file."),
        (errno.ENOTDIR, "Move it out of the way, or name another file."),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line(number, advice, monkeypatch, capsys):
    def use(*paths: object) -> None:
        raise OSError(number, os.strerror(number), *paths)

    assert run_fake(monkeypatch, lambda: use("run/old.tmp", None, "run/new")) == 2
    assert capsys.readouterr().err == f"transformer-jax: {os.strerror(number)}: run/new. {advice}\n"
    with pytest.raises(OSError):
        run_fake(monkeypatch, use)


def test_output_that_cannot_be_written_is_one_line_and_status_2():
    command = [sys.executable, "-m", "transformer_jax", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    want = "transformer-jax: No space left on device. Free disk space, or inodes "
    want += "(df -i), and call it again.\n"
    assert (done.returncode, done.stderr) == (2, want)


def test_a_signal_that_was_heeded_is_the_shell_s_status(monkeypatch, capsys):
    def stop() -> None:
        raise Interrupted(15, "SIGTERM: stopped")

    assert run_fake(monkeypatch, stop) == 143
    assert capsys.readouterr().err == "transformer-jax: SIGTERM: stopped\n"


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"transformer-jax {__version__}\n"


def test_what_is_no_user_s_mistake_keeps_its_traceback(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        run_fake(monkeypatch, lambda: 1 / 0)


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
        sys.unraisablehook(types.SimpleNamespace(exc_value=error, object=None))
    for file in ("/site-packages/orbax/checkpoint/x.py", "/home/orbax.py"):
        errors.append(RuntimeError(file))
        code = types.SimpleNamespace(cr_code=types.SimpleNamespace(co_filename=file))
        sys.unraisablehook(types.SimpleNamespace(exc_value=errors[-1], object=code))
    assert [unraisable.exc_value for unraisable in reported] == [errors[1], errors[3]]
    assert sys.unraisablehook.other == reported.append


def test_a_message_as_long_as_a_book_is_shortened(monkeypatch, capsys):
    def fail() -> None:
        raise DataError("begins" + "x" * 100_000 + "ends")

    assert run_fake(monkeypatch, fail) == 2
    error = capsys.readouterr().err
    assert len(error) < 5_000 and error.endswith("xends\n")
    assert error.startswith("transformer-jax: beginsx") and "x ... x" in error


def test_an_interrupt_is_quiet(monkeypatch, capsys):
    def interrupt() -> None:
        raise KeyboardInterrupt

    assert run_fake(monkeypatch, interrupt) == 130
    assert capsys.readouterr() == ("", "")


# In a process of its own -----------------------------------------------------------------------

FAKE = """
import logging, sys, types
from transformer_jax import __version__
from transformer_jax.__main__ import COMMANDS, main
fake = types.ModuleType("fake_commands")
def command(**_):
    {body}
fake.command = command
sys.modules["fake_commands"] = fake
COMMANDS["average"] = COMMANDS["average"]._replace(target="fake_commands:command")
sys.exit(main(["average", "--workdir=w"]))
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_is_fast_and_complete(arguments):
    """It is fast because it imports none of the heavy libraries."""
    done = python(
        "import sys; from transformer_jax.__main__ import main\n"
        f"status = main({arguments})\n"
        "heavy = {'jax', 'flax', 'numpy', 'orbax', 'tensorflow_datasets'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m transformer_jax ")
    command = COMMANDS.get(arguments[0])
    words = [flag.shown for flag in command.flags] if command else list(COMMANDS)
    for word in words:
        assert sum(line.startswith(f"  {word}") for line in done.stdout.splitlines()) >= 1, word
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_the_module_runs_and_its_status_is_the_process_s():
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax", "trian"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "Did you mean train?" in done.stderr


def test_the_installed_name_is_the_same_program():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="transformer-jax")
    assert script.load() is main


def test_a_bug_is_status_1_with_a_traceback():
    done = python(FAKE.format(body="1 / 0"))
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "ZeroDivisionError" in done.stderr


def test_logs_go_to_standard_error_and_other_packages_only_warn():
    body = "; ".join(
        [
            "print('a result')",
            "logging.getLogger('transformer_jax.x').info('progress')",
            "logging.getLogger('another').info('chatter')",
            "logging.getLogger('another').warning('trouble')",
        ]
    )
    done = python(FAKE.format(body=body))
    assert (done.returncode, done.stdout) == (0, "a result\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d progress\ntrouble\n", done.stderr)


@pytest.mark.parametrize("how", ["print(i, flush=True)", "sys.stdout.buffer.write(b'x' * 4096)"])
def test_a_reader_that_goes_away_ends_the_command_quietly(how):
    code = FAKE.format(body=f"for i in range(100_000): {how}")
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 128 + 13


def test_a_reader_that_goes_away_after_the_last_line_is_noticed_at_the_flush():
    """Python writes the rest of the buffer after the command has returned."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", FAKE.format(body="print('x')")],
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + 13, b"")


def test_another_broken_pipe_is_a_bug_like_any_other():
    done = python(FAKE.format(body="raise BrokenPipeError('of a worker')"))
    assert done.returncode == 1
    assert "of a worker" in done.stderr


def test_a_misplaced_config_writes_nothing(tmp_path, preset):
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax", "train", f"--config={preset}"]
        + ["--workdir=run", "--config.model.num_heads=7"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "model.d_model=512 is not divisible by model.num_heads=7" in done.stderr
    assert not Path(tmp_path, "run").exists()
