"""From a command line to a call: flags, help, exit status, logs.

Nothing heavy is imported here, so that `--help` is fast.
"""

import _thread
import contextlib
import errno
import logging
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

from absl import flags

from transformer_jax.errors import Interrupted, UserError
from transformer_jax.files import DISK_FULL
from transformer_jax.use.environment import (
    check_docstrings,
    check_environment,
    open_missing_streams,
)

INTERRUPTED = 128 + 2  # SIGINT, as shells report it
OVERRIDES = f"{'--config.KEY=VALUE':<26}overrides a key, such as --config.model.num_heads=4"
NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)
IN_THE_WAY = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR)
DEVICE_OUT_OF_MEMORY = (
    "The device has too little memory. In training, raise train.accumulate_steps, set "
    "train.remat=true or divide the model by mesh.fsdp (a run's results stay the same). In "
    "translation, lower decode.beam_size or decode.tokens_per_batch; elsewhere, give shorter lines."
)
MACHINE_OUT_OF_MEMORY = (
    "This machine has too little memory. In training lower the model's sizes or "
    "train.tokens_per_batch, in translation decode.beam_size, decode.tokens_per_batch or "
    "decode.max_extra_length; elsewhere give shorter lines or smaller files."
)
NOT_A_BOOLEAN = re.compile(r"\('Non-boolean argument to boolean flag', .*\)")  # absl's words
FREE = "Free disk space, or inodes (df -i),"
LONGEST_MESSAGE = 4_000  # characters
PATHS = ("FILE", "FOLDER", "STEM")  # how the help calls the values that are paths
BROKEN_PIPE = 128 + 13  # SIGPIPE

DEFINE: dict[type, Callable[..., object]] = {
    str: flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_boolean,
    list: flags.DEFINE_multi_string,
}


class Flag(NamedTuple):
    """A flag of a command, or its one argument without a name, which is a str."""

    name: str
    kind: type  # str, int, float, bool, or list (of str: repeated, or with commas)
    value: str  # what help calls its value
    help: str
    default: Any = None
    required: bool = False
    positional: bool = False
    parameter: str = ""  # the parameter of the command's function; empty: the flag's name

    @property
    def shown(self) -> str:
        """The form in which help shows the flag."""
        if self.positional:
            return self.value
        return f"--{self.name}" + (f"={self.value}" if self.value else "")


def exit_status(action: Callable[[], object]) -> int:
    """Calls `action` and returns the exit status: 0, or 2 with one line on a user's mistake.

    The status is 75 where only other processes of the run are missing.

    A full disk, a path that cannot be used and a full device memory also give one line and 2. After
    an interrupt, or if the reader of standard output is gone, it returns the shell's status without
    a message. Other errors are raised.
    """
    open_missing_streams()
    try:
        action()
        sys.stdout.flush()
        return 0
    except (UserError, flags.Error) as error:
        message = _one_line(NOT_A_BOOLEAN.sub("expected true or false", str(error)))
        status = error.status if isinstance(error, UserError) else 2
    except Interrupted as stopped:
        message, status = str(stopped), stopped.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        message, status = _about_file(error), 2
        if not message:
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
    except MemoryError as error:  # this machine's, not a device's
        message, status = _one_line(str(error)) or "no memory left", 2
        message += f". {MACHINE_OUT_OF_MEMORY}"
    except Exception as error:
        is_full = any(x in str(error) for x in ("RESOURCE_EXHAUSTED", "Out of memory"))
        if type(error).__name__ != "JaxRuntimeError" or not is_full:
            raise
        message, status = DEVICE_OUT_OF_MEMORY, 2
    print(f"transformer-jax: {message}", file=sys.stderr)
    return status


def _prefix_hint(flag: str, keys: tuple[str, ...]) -> str:
    """A hint for the message if an unknown flag is the end of a config key's name; else ""."""
    from transformer_jax.config.schema import KEYS

    own = [name for name in KEYS if f".{name}".endswith(f".{flag}") and name.startswith(keys)]
    return f" Did you mean: --config.{' or --config.'.join(own)}?" if own else ""


def _one_line(message: str) -> str:
    """The message without line ends, and without its middle if it is above LONGEST_MESSAGE."""
    words = " ".join(message.split())
    half = LONGEST_MESSAGE // 2
    return words if len(words) <= LONGEST_MESSAGE else f"{words[:half]} ... {words[-half:]}"


def _about_file(error: OSError) -> str:
    """One line about an error of the file system; "" if the error may be a bug of the program."""
    path = error.filename2 or error.filename  # of a rename: the new name
    if error.errno in DISK_FULL:
        where = f" ({path})" if path else ""
        fix = "Raise the limit (ulimit -f)" if error.errno == errno.EFBIG else FREE
        return f"{error.strerror}{where}. {fix} and call it again."
    if path and error.errno == errno.ENAMETOOLONG:
        return f"{error.strerror}: {path}"
    if path and error.errno in NO_ACCESS:
        return f"{error.strerror}: {path}. Change its permissions, or name another file."
    if path and error.errno in IN_THE_WAY:
        return f"{error.strerror}: {path}. Move it out of the way, or name another file."
    return ""


def _discard_output() -> None:
    """Makes the interpreter's last flush of standard output, which would fail again, succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_is_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def parse_experiment(
    name: str,
    about: str,
    known: Iterable[Flag],
    arguments: Sequence[str] | None = None,
    takes_keys: bool = True,
) -> dict[str, Any]:
    """The flags of a script, such as `python -m experiments.NAME`.

    With --help it prints a description and exits. `arguments` is by default the command line. With
    `takes_keys` the script takes keys of the config too; their values are under "overrides".
    """
    check_docstrings()
    arguments = sys.argv[1:] if arguments is None else arguments
    if "-h" in arguments or "--help" in arguments:
        overrides_too = f"\n  {OVERRIDES}" if takes_keys else ""
        print(f"{about.strip()}\n\n{describe_flags(known)}{overrides_too}")
        sys.exit(0)
    check_environment()
    if not takes_keys:
        return parse_flags(name, known, arguments, keys=())
    from transformer_jax.config.files import split_overrides

    others, overrides = split_overrides(arguments)
    return parse_flags(name, known, others) | {"overrides": overrides}


def parse_flags(
    command: str, known: Iterable[Flag], arguments: Sequence[str], keys: tuple[str, ...] = ("",)
) -> dict[str, Any]:
    """The value of each flag of a command, and of the one argument that it may take without a name.

    Flags may come before and after that argument; after "--" it may begin with a dash. `keys` are
    beginnings of the keys of the config that the command takes.

    Raises:
      absl.flags.Error: a value has the wrong type.
      UserError: a flag is unknown (the message suggests the nearest), a required flag is missing,
        or there are too many arguments.
    """
    known = list(known)
    parser = flags.FlagValues()
    parser.set_gnu_getopt(True)
    for flag in known:
        if not flag.positional:
            DEFINE[flag.kind](flag.name, flag.default, flag.help, flag_values=parser)
    positional = next((flag for flag in known if flag.positional), None)
    dashed = ""
    if positional:
        dashed = f"A {positional.value} that begins with a dash follows --, after all flags"
    try:
        _, *extra = parser([command, *arguments])
    except flags.UnrecognizedFlagError as error:
        if dashed:
            raise UserError(f"{error}. {dashed}.") from None
        raise UserError(f"{error}.{_prefix_hint(error.flagname, keys)}") from None
    if positional and len(extra) > 1:
        fix = "put it in quotation marks." if positional.required else "give one of them."
        fix = "flags come before --." if "--" in arguments else fix
        takes = f"{command} takes one {positional.value}, not {len(extra)} arguments"
        raise UserError(f"{takes}: {fix}")
    if extra and not positional:
        reads = " It reads standard input: < FILE." if command == "translate" else ""
        raise UserError(f"{command} does not take {extra[0]!r}; flags: {command} --help.{reads}")
    values: dict[str, Any] = {
        flag.name: parser[flag.name].value for flag in known if not flag.positional
    }
    for flag in known:
        if flag.kind is list and values[flag.name]:
            if "" in values[flag.name]:
                raise UserError(f"--{flag.name}= is empty: give {flag.shown}, or leave it out.")
            values[flag.name] = [item for text in values[flag.name] for item in _items(text)]
    if positional:
        values[positional.name] = extra[0] if extra else positional.default
    for flag in known:
        if flag.required and values[flag.name] in (None, []):
            raise UserError(f"{command} needs {flag.shown}: {flag.help}.")
        if flag.name == "workdir" and flag.kind is str and parser[flag.name].present > 1:
            raise UserError(f"{command} takes one {flag.shown}, not several.")
        if values[flag.name] == "" and not flag.positional:  # such as --out=$UNSET
            raise UserError(f"--{flag.name}= is empty: give {flag.shown}, or leave it out.")
        if flag.value.startswith(PATHS) and values[flag.name]:
            values[flag.name] = _in_home(values[flag.name])
    return {flag.parameter or flag.name: values[flag.name] for flag in known}


def _in_home(path: Any) -> Any:
    """The path, or each of several, with ~ expanded: a shell leaves it in --flag=~/path."""
    if isinstance(path, list):
        return [os.path.expanduser(one) for one in path]
    return os.path.expanduser(path)


def _items(text: str) -> list[str]:
    """The items of a list, separated by commas; a file's name may have a comma of its own."""
    return [text] if os.path.lexists(text) else [item for item in text.split(",") if item]


def describe_flags(known: Iterable[Flag]) -> str:
    """One line per flag, for a command's help."""
    rows = []
    for flag in known:
        default = "" if flag.default in (None, False, "") else f" (default: {flag.default})"
        rows.append(f"  {flag.shown:<26}{flag.help}{default}")
    return "\n".join(rows)


def run_main(action: Callable[[], object]) -> NoReturn:
    """A script's main: calls `action` with logs, and ends the process with `exit_status`."""
    set_up_logs()
    sys.exit(exit_status(action))


def set_up_logs(quiet: bool = False) -> None:
    """Sets up logging, for a command's main; importing the package sets up nothing.

    - The loggers "transformer_jax" and "experiments" write to standard error, a time and a message
      a line. If a program has given them handlers before, these are used instead.
    - absl and asyncio, through which Orbax logs, show fatal errors only: Orbax warns of each
      checkpoint without a score, and prints a traceback of each failed save, which it also raises
      and runs/checkpoints.py reports in one line.
    - sys.unraisablehook lets a lost Ctrl-C come again, and leaves out two errors: after a failed
      save, TensorStore may call an event loop that Orbax has closed; if a checkpoint cannot be
      restored, Orbax raises the error of one array and never collects those of the others.
    - The root logger and those of other packages stay as they are: Python prints their warnings.

    Args:
      quiet: show only errors of our own loggers; for all processes of a run but the first.
    """
    for name in ("transformer_jax", "experiments"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.ERROR if quiet else logging.INFO)
        if not logger.handlers:
            logger.addHandler(log_handler())
            logger.propagate = False
    from absl import logging as absl_logging  # replaces the class of its logger when imported

    absl_logging.set_verbosity(absl_logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    flags.FLAGS.mark_as_parsed()  # libraries that define absl flags read their defaults
    if not isinstance(sys.unraisablehook, UnraisableHook):
        sys.unraisablehook = UnraisableHook(sys.unraisablehook)  # type: ignore[assignment]


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is now: a live table puts lines above it in its place."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def log_handler() -> logging.Handler:
    """Writes log records to standard error, a time and a message a line."""
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    return handler


@contextlib.contextmanager
def root_logger_unchanged() -> Iterator[None]:
    """Afterwards the root logger has its handlers of before: `logging.basicConfig` still works.

    Orbax logs through absl, which calls `logging.basicConfig()` if there is no handler.
    """
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        yield
    finally:
        root.handlers[:] = before


@contextlib.contextmanager
def shown_log() -> Iterator[None]:
    """Shows the package's log on standard error for as long, if the program has not set it up."""
    logger = logging.getLogger("transformer_jax")
    if logger.level != logging.NOTSET or logger.isEnabledFor(logging.INFO):
        yield
        return
    handler, propagates = log_handler(), logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = propagates


class UnraisableHook(NamedTuple):
    """An unraisablehook that does not report what Orbax has left behind, and loses no Ctrl-C."""

    other: Callable[[Any], object]  # the hook that reports everything else

    def __call__(self, unraisable: Any) -> None:
        """Reports an error that no caller can catch; Ctrl-C comes again."""
        if unraisable.exc_type is KeyboardInterrupt:  # raised while JAX collects garbage
            _thread.interrupt_main()
            return
        code = getattr(unraisable.object, "cr_code", None)  # of a coroutine
        if str(unraisable.exc_value) == "Event loop is closed":
            return
        if code is None or "orbax" not in Path(code.co_filename).parts:
            self.other(unraisable)
