"""How the processes of a run find each other, in threads."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from transformer_jax.errors import MissingProcess, UserError
from transformer_jax.parallel import meeting


@pytest.fixture
def port() -> int:
    with socket.create_server(("", 0)) as free:
        return free.getsockname()[1]


def results(port: int, size: int, *numbers: int, seconds: float = 20) -> list[str]:
    """The error that each process gets; empty if it may go on. `numbers` are their ids."""

    def told(number: int) -> str:
        try:
            meeting.meet(f"localhost:{port}", size, number, seconds)
        except UserError as error:
            return f"status {error.status}: {error}"
        return ""

    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(told, numbers))


@pytest.mark.parametrize("numbers", [(0, 1), (2, 1, 0), (1, 0, 3, 2)])
def test_all_go_on_when_all_are_there_and_the_port_is_free_again(numbers, port):
    for _ in range(2):
        assert results(port, len(numbers), *numbers) == [""] * len(numbers)
    meeting.meet("nowhere:1", 1, 0, 0.0)  # one process meets nobody


def test_a_process_that_is_missing_is_named_to_all(port, monkeypatch, capsys):
    now, number = [0.0], meeting._number

    def number_then_too_late(connection):
        told, now[0] = number(connection), 100.0  # the time is over once process 2 is there
        return told

    with monkeypatch.context() as patch:
        patch.setattr(meeting, "GRACE", 1e6)
        patch.setattr(meeting, "_number", number_then_too_late)
        patch.setattr(meeting.time, "monotonic", lambda: now[0])
        for told in results(port, 3, 0, 2, seconds=1):
            assert told.endswith("cannot start together: process 1 did not start within 1 s.")
            assert told.startswith("status 75: ")  # it may come later
    assert "transformer-jax: waiting for process 1 (up to 1 s)" in capsys.readouterr().err
    monkeypatch.setattr(meeting, "PATIENCE", 0.1)
    monkeypatch.setattr(meeting, "GRACE", 0.5)
    (told,) = results(port, 3, 2, seconds=0.3)
    assert told.startswith("status 75: ") and "process 0 did not answer" in told
    assert f"waiting for process 0 at localhost:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("numbers", "reason"), [((0, 1, 1), "--process_id=1, and so has another"), ((0, 7), "are 3")]
)
def test_numbers_that_cannot_be_are_told_to_all(numbers, reason, port):
    told = results(port, 3, *numbers)
    assert all(reason in one and one.startswith("status 2: ") for one in told)


def test_a_process_that_is_started_again_takes_its_own_place(port):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(results, port, 3, 0)
        for _ in range(2):  # process 1 comes, ends and comes again
            connection = connected(port)
            connection.sendall(f"{meeting.HELLO} 1\n".encode())
            time.sleep(0.1)
            connection.close()
        assert pool.submit(results, port, 3, 1, 2).result() == ["", ""]
        assert first.result() == [""]


def connected(port):
    """A connection to process 0 as soon as it listens."""
    for _ in range(200):
        try:
            return socket.create_connection(("localhost", port))
        except OSError:
            time.sleep(0.02)
    raise TimeoutError


def test_addresses_that_cannot_be_used_are_one_line(port, monkeypatch):
    with socket.create_server(("", port)):
        (told,) = results(port, 2, 0)
        assert f"cannot listen on port {port}" in told and "\n" not in told
    monkeypatch.setattr(meeting, "NAMING_SECONDS", 0.1)
    with pytest.raises(MissingProcess, match="there is no host 'no.such.host.invalid'"):
        meeting.meet("no.such.host.invalid:1", 2, 1, 5)


def test_another_program_on_the_port_is_no_process(port):
    def answer(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            connection.recv(99)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

    with socket.create_server(("", port)) as server, ThreadPoolExecutor() as pool:
        pool.submit(answer, server)
        (told,) = results(port, 2, 1)
    assert "cannot start together: HTTP/1.1 400 Bad Request" in told


def test_a_visitor_that_is_no_process_is_ignored(port):
    with ThreadPoolExecutor() as pool:
        first = pool.submit(results, port, 2, 0)
        with connected(port) as visitor:
            visitor.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert results(port, 2, 1) == first.result() == [""]
