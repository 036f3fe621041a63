"""The program `transformer-jax`: each command calls a function of a module in `commands`."""

from __future__ import annotations

import difflib
import functools
import importlib
import signal
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax import __version__
from transformer_jax.allocator import SWITCH, collect_rarely, use_huge_pages
from transformer_jax.errors import UserError
from transformer_jax.parallel import processes
from transformer_jax.use.command_line import (
    INTERRUPTED,
    OVERRIDES,
    describe_flags,
    exit_status,
    parse_flags,
    set_up_logs,
)
from transformer_jax.use.commands import (
    COMMANDS,
    CONFIG,
    EVERY_KEY,
    PROCESSES,
    SHORT,
    WORKDIR,
    Command,
)
from transformer_jax.use.environment import (
    check_devices,
    check_environment,
    end_stuck_threads,
    ended_by_interrupts,
    installed,
    open_missing_streams,
)

if TYPE_CHECKING:
    from transformer_jax.config.schema import Config


USAGE = "python -m transformer_jax COMMAND --FLAG=VALUE ..."
# What commands need of the standard streams.
STREAMS = {
    "translate": {"standard input", "standard output"},
    "score": {"standard output"},
    "align": {"standard output"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit status: 0, or 2 for a user's mistake."""
    if arguments is None:
        use_huge_pages()
        collect_rarely()
    closed = open_missing_streams()
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        status = exit_status(lambda: run(given, closed))
        if status == INTERRUPTED and arguments is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends it without a traceback
    except Exception as error:
        processes.leave(1, error)
        raise
    if status:
        processes.leave(status)
        if arguments is None:
            end_stuck_threads(status)
    return status


def run(arguments: list[str], closed: Collection[str] = ()) -> None:
    """Calls the command that the arguments name, with its flags.

    Args:
      arguments: the command line.
      closed: names of the standard streams that are closed.
    """
    name, *rest = arguments or [""]
    if name in ("-h", "--help", "help"):
        print(program_help())
        return
    if name == "--version":
        print(f"transformer-jax {__version__}")
        print(installed())
        return
    command = find_command(name)
    own = rest[:1] if name == "experiment" else rest  # an experiment has a help of its own
    if "-h" in own or "--help" in own:
        print(command_help(name, command))
        return
    with ended_by_interrupts():
        call = prepare_call(name, command, rest, closed)
    call()


def prepare_call(
    name: str, command: Command, arguments: list[str], closed: Collection[str]
) -> Callable[[], object]:
    """The call of a command: its flags are checked, its processes joined, its module imported."""
    check_environment()
    values = read_values(name, command, arguments)
    if values.pop("print_config", False):
        return functools.partial(_print_config, values["config"], values.get("workdir"))
    if PROCESSES[0] in command.flags:
        coordinator, number, this = (values.pop(flag.name) for flag in PROCESSES)
        # Without an address and a number of its own, `train` starts this many processes itself.
        here = number if coordinator is None and this is None else None
        restarts = values.pop("restarts", 0)
        if restarts or (restarts is None and here is not None):
            from transformer_jax.use.supervised import supervise

            return functools.partial(supervise, arguments, values["workdir"], here, restarts or 0)
        processes.join(coordinator, number, this, agree_on_stops=name == "train")
    if command.uses_devices:
        check_devices()
        processes.check_alone()
    for stream in sorted(STREAMS.get(name, set()) & set(closed)):
        raise UserError(f"{stream} is closed or cannot be used. Use ... < TEXT > OUTPUT.")
    if name == "translate":  # bytes, independent of the locale's encoding
        values |= {"stdin": sys.stdin.buffer, "stdout": sys.stdout.buffer}
    set_up_logs(quiet=not processes.is_first())
    module, _, function = command.target.partition(":")
    target: Callable[..., object] = getattr(importlib.import_module(module), function)
    return functools.partial(target, **values)


def _print_config(config: Config, workdir: str | None) -> None:
    """Prints the config of a run as JSON, with what it takes from its origin or teacher."""
    from transformer_jax.config.checks import check
    from transformer_jax.config.serialization import to_json

    if config.train.init_from or config.train.teacher:
        from transformer_jax.runs.run_folder import RunFolder
        from transformer_jax.use.origin import with_origin  # imports JAX

        config = with_origin(config, RunFolder(workdir) if workdir else None)
        check(config)
    print(to_json(config), end="")


def find_command(name: str) -> Command:
    """The command of that name. Raises UserError, with the nearest name, if there is none."""
    if name in COMMANDS:
        return COMMANDS[name]
    known = ", ".join(COMMANDS)
    if not name or name.startswith("-"):
        raise UserError(f"name a command first: {known}. What each does: --help.")
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise UserError(f"{name!r} is not a command. {meant}Commands: {known}.")


def read_values(name: str, command: Command, arguments: list[str]) -> dict[str, Any]:
    """The keyword arguments of the command's function. Raises UserError if a flag is invalid."""
    if name == "experiment" and arguments and not arguments[0].startswith("-"):
        return {"name": arguments[0], "arguments": arguments[1:]}
    if not command.keys:
        return parse_flags(name, command.flags, arguments, ())
    from transformer_jax.config.files import split_overrides

    others, overrides = split_overrides(arguments)
    values = parse_flags(name, command.flags, others, tuple(command.keys))
    for flag, key in SHORT.items():
        given = values.pop(flag, None)
        if given is not None and overrides.setdefault(key, given) != given:
            raise UserError(f"--{flag} and --config.{key} say two things: give one.")
    if command.keys != EVERY_KEY:
        if wrong := [key for key in overrides if not key.startswith(command.keys)]:
            raise UserError(
                f"{name} does not take --config.{wrong[0]}. It takes {keys_of(command)}."
            )
        return values | {"overrides": overrides}
    if name == "train" and not (values["workdir"] or values["print_config"]):
        raise UserError(f"train needs {WORKDIR.shown}: {WORKDIR.help}.")
    return values | {"config": read_config(values["config"], values.get("workdir"), overrides)}


def read_config(file: str | None, workdir: str | None, overrides: Mapping[str, Any]) -> Config:
    """The config of a config file or, without one, of the run in `workdir`; with overrides.

    Raises:
      UserError: there is neither, or the config is invalid.
    """
    from transformer_jax.config.changes import with_values
    from transformer_jax.config.checks import check
    from transformer_jax.config.files import load_config
    from transformer_jax.runs.run_folder import RunFolder

    if file:
        return load_config(file, overrides)
    run = RunFolder(workdir or "")
    if not workdir or not run.config_file.exists():
        continued = f"{run.path} holds no run to continue" if workdir else CONFIG.help
        raise UserError(f"train needs {CONFIG.shown}: {continued}.")
    config = with_values(run.read_config(), overrides)
    check(config, list(overrides))
    return config


def keys_of(command: Command) -> str:
    """The keys that a command takes, for a message: decode.*, data.path."""
    return ", ".join(key + "*" if key.endswith(".") else key for key in command.keys)


def program_help() -> str:
    """The commands, one line each."""
    rows = [f"  {name:<11}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [f"usage: {USAGE}", "", *rows, "", "Flags of a command: COMMAND --help", SWITCH]
    )


def command_help(name: str, command: Command) -> str:
    """What a command does, and its flags."""
    positional = [flag.value for flag in command.flags if flag.positional]
    lines = [
        " ".join(["usage:", USAGE.replace("COMMAND", name), *positional]),
        "",
        command.help,
        "",
        describe_flags(command.flags),
    ]
    if command.keys == EVERY_KEY:
        lines.append(f"  {OVERRIDES}")
    elif command.keys:
        text = f"  {'--config.KEY=VALUE':<26}overrides {keys_of(command)}"
        lines += textwrap.wrap(text, 100, subsequent_indent=" " * 28)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
