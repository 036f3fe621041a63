"""Checks of the process that a command runs in, before the command starts."""

import collections
import contextlib
import fcntl
import io
import os
import platform
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator

from transformer_jax.errors import UserError

TRUE, FALSE = "1|true|t|yes|y|on", "0|false|f|no|n|off"
# Patterns of values with which no command works, and the reason. JAX reads the variables when it is
# imported.
UNUSABLE = {
    "JAX_ENABLE_X64": (TRUE, "parameters and metrics are float32"),
    "JAX_DISABLE_JIT": (TRUE, "the training step is compiled before it runs"),
    "JAX_NO_EXECUTION": (TRUE, "it forbids every computation"),
    "JAX_RANDOM_SEED_OFFSET": ("(?!0$).+", "random numbers follow from the config's seed alone"),
    "JAX_THREEFRY_PARTITIONABLE": (FALSE, "random numbers would depend on the mesh"),
    "JAX_DEFAULT_PRNG_IMPL": ("rbg|unsafe_rbg", "a run's random keys are of threefry's size"),
    "JAX_NUMPY_DTYPE_PROMOTION": ("strict", "the model adds integers to float32 arrays"),
    "JAX_NUMPY_RANK_PROMOTION": ("raise", "arrays of fewer axes are added to others"),
    "JAX_DEBUG_INFS": (TRUE, "what may not be attended to has a score of minus infinity"),
    **{
        f"JAX_TRANSFER_GUARD{which}": (
            "disallow|disallow_explicit",
            "batches go to the device, and losses come back",
        )
        for which in ("", "_HOST_TO_DEVICE", "_DEVICE_TO_HOST", "_DEVICE_TO_DEVICE")
    },
}
FILES_NEEDED = 128  # open at a time: a checkpoint's, the corpus's, the libraries'
FILES_WANTED = 4_096
# Bytes that ulimit -v must allow. With less, libraries cannot be loaded, or XLA aborts the process.
ADDRESSES_NEEDED = 2 << 30


def open_missing_streams() -> set[str]:
    """Opens the null device as each standard stream that is closed, as `nohup COMMAND <&-` does.

    Standard input that cannot be read, and standard output that cannot be written, count as closed.
    Otherwise the next file that is opened gets the stream's number, and what is printed goes there.
    Streams that another program left non-blocking wait again: input would end where it is late.

    Returns:
      The names of the closed streams, "standard input", "standard output", "standard error".
    """
    closed = set()
    names = {"stdin": "standard input", "stdout": "standard output", "stderr": "standard error"}
    for number, (stream, name) in enumerate(names.items()):
        try:
            mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
            is_open = mode != (os.O_RDONLY if number else os.O_WRONLY)  # as `0> FILE` opens it
            if is_open:
                os.set_blocking(number, True)
            else:
                os.close(number)
        except OSError:
            is_open = False
        if not is_open:
            # The lowest free number, which is this one.
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
            closed.add(name)
        if getattr(sys, stream) is None:  # it lives as long as the process
            setattr(sys, stream, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # for the arrow in "en→de" in any locale
        sys.stdout.reconfigure(errors="backslashreplace")
    return closed


def check_environment() -> None:
    """Checks what every command needs (UserError), and lifts the limit of open files.

    It imports no JAX, because importing JAX is one of the things that fail.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError(
            "The working directory no longer exists. Change to another (cd) and call it again."
        ) from None
    for name, (unusable, reason) in UNUSABLE.items():
        if re.fullmatch(unusable, os.environ.get(name, "").lower()):
            raise UserError(
                f"{name}={os.environ[name]} cannot be used here: {reason}. Unset it: env -u {name} "
                "transformer-jax ..."
            )
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")  # Matplotlib fails on it
    if epoch and not epoch.isdecimal():
        raise UserError(f"SOURCE_DATE_EPOCH={epoch} is not a number of seconds. Unset it.")
    os.environ["MPLBACKEND"] = "agg"  # figures are files; another backend may not be there
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = FILES_WANTED if hard == unlimited else min(FILES_WANTED, hard)
    if soft != unlimited and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems do not allow it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft != unlimited and soft < FILES_NEEDED:
        raise UserError(
            f"This process may open only {soft} files at a time (ulimit -n), and needs "
            f"{FILES_NEEDED}. Raise the limit: ulimit -n {FILES_WANTED}."
        )


def check_docstrings() -> None:
    """Raises UserError if Python has removed the docstrings, which experiments print."""
    if sys.flags.optimize > 1:
        raise UserError("Experiments print docstrings: use no -OO, and unset PYTHONOPTIMIZE=2.")


@contextlib.contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """A context in which Ctrl-C ends the process at once, without a traceback.

    Elsewhere Python raises KeyboardInterrupt, which a library that is being imported turns into an
    error of its own, and which waits until JAX has found the other processes of a run.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is not signal.default_int_handler:  # shells ignore it for `... &`
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_stuck_threads(status: int) -> None:
    """Ends this process, which has failed, if a thread of Orbax would keep it alive for ever.

    If a thread of a save cannot be started, a second thread of the save waits for it forever, and
    Python waits for both. Call it after everything else, with the exit status.
    """
    deadline = time.monotonic() + 5
    for thread in threading.enumerate():
        if not thread.daemon and type(thread).__module__.startswith("orbax"):
            # Orbax's own join raises.
            threading.Thread.join(thread, max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)


def installed() -> str:
    """What a report of a bug needs beside the package's own version, in two lines."""
    from importlib.metadata import version

    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint")
    versions = [f"Python {platform.python_version()}", *(f"{x} {version(x)}" for x in names)]
    try:
        check_devices()
        import jax

        devices = collections.Counter(device.device_kind for device in jax.devices())
        found = ", ".join(f"{count} x {kind}" for kind, count in devices.items())
    except UserError as error:
        found = str(error)
    return f"{', '.join(versions)}\ndevices: {found}; {platform.platform()}"


def check_devices() -> None:
    """Raises UserError if JAX cannot use the platform that JAX_PLATFORMS names, or cannot start.

    Call it after the processes of a run have joined. Without the variable, JAX takes what there is.
    """
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY and addresses < ADDRESSES_NEEDED:
        raise UserError(
            f"This process may use only {addresses >> 20} MiB of addresses (ulimit -v), and the "
            f"libraries need {ADDRESSES_NEEDED >> 20} MiB. Raise the limit: ulimit -v unlimited."
        )
    platforms = os.environ.get("JAX_PLATFORMS")
    try:
        import jax

        jax.devices()
    except (AssertionError, RuntimeError, ValueError) as error:  # JAX asserts without a plugin
        reason = str(error).split(" (set JAX_PLATFORMS")[0] or "no such platform is installed"
        if not platforms or isinstance(error, ValueError):  # JAX refuses a variable on import
            reason = reason.split(" (you may need to")[0].rstrip(".")
            raise UserError(
                f"JAX cannot start: {reason}. Check XLA_FLAGS and the variables JAX_* of the "
                "environment."
            ) from None
        raise UserError(
            f"JAX_PLATFORMS={platforms}: {reason.rstrip('.')}. Install JAX for its device "
            "(pip install 'jax[cuda13]' or 'jax[tpu]'), or unset JAX_PLATFORMS to use another."
        ) from None
