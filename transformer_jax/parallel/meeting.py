"""The processes of a run find each other before JAX is asked to connect them.

If a process is missing, two have one number, or the port is taken, JAX's runtime waits for minutes
without a word or ends with a C++ stack. So they meet first: process 0 listens on the coordinator's
port, the others send it their numbers, and when all are there it tells them to go on. Then the port
is free again, and JAX's coordinator takes it.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Iterable

from transformer_jax.errors import ConfigError, MissingProcess, UserError

PATIENCE = 10.0  # seconds, after which a process says for whom it waits
GRACE = 5.0  # seconds that the others wait longer, so that process 0 tells them who is missing
NAMING_SECONDS = 60.0  # wait for a host's name
PAUSE = 0.2  # seconds between two attempts, and between two looks at the clock
HELLO, GO, LATE = "transformer-jax process", "go", "did not start within"


def meet(coordinator: str, num_processes: int, process_id: int, seconds: float) -> None:
    """Returns when all processes of a run have called it.

    Args:
      coordinator: HOST:PORT on which process 0 listens.
      num_processes: how many there are.
      process_id: which this one is, from 0.
      seconds: how long to wait.

    Raises:
      MissingProcess: a process did not come in time, or the host's name is unknown.
      ConfigError: two processes have one number, or the address cannot be used.
    """
    if num_processes == 1:
        return
    host, _, port = coordinator.rpartition(":")
    _find(coordinator, host.strip("[]"), int(port))
    if process_id == 0:
        _receive(coordinator, int(port), num_processes, seconds)
    else:
        _report(coordinator, host.strip("[]"), int(port), process_id, seconds + GRACE)


def _find(coordinator: str, host: str, port: int) -> None:
    """Waits until the host has an address: a cluster names a machine after it has started."""
    clock = _Clock(NAMING_SECONDS)
    while True:
        try:
            socket.getaddrinfo(host, port)
            return
        except OSError as error:
            if clock.is_over(f"the name {host!r} of --coordinator={coordinator}"):
                raise MissingProcess(
                    f"--coordinator={coordinator}: there is no host {host!r} ({error.strerror})."
                ) from None
            time.sleep(PAUSE)


class _Clock:
    """Says once for whom a process waits, and whether the time is over."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds, self.has_spoken = time.monotonic(), seconds, False

    def is_over(self, waiting_for: str) -> bool:
        """Whether the time is over; after PATIENCE it prints once what is waited for."""
        passed = time.monotonic() - self.start
        if passed > PATIENCE and not self.has_spoken:
            self.has_spoken = True
            print(
                f"transformer-jax: waiting for {waiting_for} (up to {self.seconds:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
        return passed > self.seconds


def _receive(coordinator: str, port: int, num_processes: int, seconds: float) -> None:
    """What process 0 does."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise ConfigError(
            f"--coordinator={coordinator}: process 0 cannot listen on port {port}: "
            f"{error.strerror}. Choose another port, or end what uses it."
        ) from None
    clock = _Clock(seconds)
    found: dict[int, socket.socket] = {}
    with server, contextlib.ExitStack() as closing:
        server.settimeout(PAUSE)
        while missing := _missing(found, num_processes):
            names = f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing[:9]))}"
            if clock.is_over(names):
                _end(found.values(), f"{names} {LATE} {seconds:.0f} s.")
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            closing.enter_context(connection)
            number = _number(connection)
            if number is None:
                continue
            if number not in _missing(found, num_processes):
                others = [connection, *found.values()]
                is_too_large = number >= num_processes
                wrong = f"there are {num_processes}" if is_too_large else "so has another"
                _end(others, f"a process has --process_id={number}, and {wrong}.")
            found[number] = connection
        for connection in found.values():
            with contextlib.suppress(OSError):  # JAX notices that it is gone
                connection.sendall(f"{GO}\n".encode())


def _missing(found: dict[int, socket.socket], num_processes: int) -> list[int]:
    """The numbers of processes that are not there, or no longer: one may be started again."""
    for number in [number for number, connection in found.items() if _is_closed(connection)]:
        del found[number]
    return [number for number in range(1, num_processes) if number not in found]


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(5.0)


def _number(connection: socket.socket) -> int | None:
    """The number that a process sends; None if this is no process of a run."""
    connection.settimeout(5.0)
    try:
        words = connection.recv(64).decode(errors="replace").split()
    except OSError:
        return None
    is_ours = words[:-1] == HELLO.split() and words[-1].isdecimal()
    return int(words[-1]) if is_ours else None


def _end(connections: Iterable[socket.socket], reason: str) -> None:
    """Tells the others why the run does not start, and raises the error."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.sendall(f"{reason}\n".encode())
    raise _together(reason)


def _together(reason: str) -> UserError:
    kind = MissingProcess if LATE in reason else ConfigError
    return kind(f"the processes of this run cannot start together: {reason}")


def _report(coordinator: str, host: str, port: int, process_id: int, seconds: float) -> None:
    """What the other processes do."""
    clock = _Clock(seconds)
    while True:
        if clock.is_over(f"process 0 at {coordinator}"):
            raise MissingProcess(
                f"--coordinator={coordinator}: process 0 did not answer within {seconds:.0f} s. "
                "Start it, with this address, on the machine that it names."
            )
        try:
            with socket.create_connection((host, port), timeout=5.0) as connection:
                connection.sendall(f"{HELLO} {process_id}\n".encode())
                answer = _answer(connection, clock, coordinator)
        except OSError:
            answer = ""
        if answer == GO:
            return
        if answer:
            raise _together(answer)
        time.sleep(PAUSE)


def _answer(connection: socket.socket, clock: _Clock, coordinator: str) -> str:
    """The line that process 0 sends; empty if the connection ends without one."""
    connection.settimeout(PAUSE)
    text = b""
    while not text.endswith(b"\n"):
        if clock.is_over(f"the other processes of {coordinator}"):
            return ""
        try:
            part = connection.recv(1_000)
        except TimeoutError:
            continue
        if not part:
            return ""
        text += part
    return text.decode(errors="replace").strip()
