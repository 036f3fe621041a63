"""The server's socket: uvicorn, with HTTP errors as JSON too, and a clean shutdown."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from transformer_jax.errors import UserError

HEAD_SECONDS = 10.0  # until the head of a request must have arrived
END_SECONDS = 10  # for answers that are under way when a signal comes

log = logging.getLogger(__name__)


class _Protocol(H11Protocol):
    """Refuses bytes that are not HTTP, in JSON, and closes connections whose request is late."""

    _deadline: asyncio.TimerHandle | None = None
    _sends_no_more = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._deadline is None:
            self._wait_for_head()

    def eof_received(self) -> Any:
        """Whether the connection stays: its client sends no more, but waits for an answer."""
        self._sends_no_more = self.cycle is not None and not self.cycle.response_complete
        return self._sends_no_more

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._sends_no_more:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not an HTTP request, then closes the connection."""
        body = json.dumps({"error": "This is not an HTTP request."}).encode()
        self._send_and_close(400, body)

    def _wait_for_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._send_and_close(408, b'{"error":"No request arrived in time."}')

    def _send_and_close(self, status: int, body: bytes) -> None:
        reason = {400: b"Bad Request", 408: b"Request Timeout"}[status]
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events = (
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        with contextlib.suppress(h11.LocalProtocolError):  # an answer had already begun
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


def run_until_signal(server: uvicorn.Server, listening: socket.socket) -> None:
    """Runs a server until SIGTERM or SIGINT comes and what has arrived is answered."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises its signal again at the end
            server.run([listening])
    finally:
        signal.signal(signal.SIGTERM, before)


def make_server(app: Any) -> uvicorn.Server:
    """A server of an application; run it with the sockets of `listen`."""
    # Mistakes of clients are not logged: they could fill the server's log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=END_SECONDS,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UserError if the address cannot be used."""
    if not 0 <= port < 1 << 16:
        raise UserError(f"--port={port} is not in 0..65535; 0 takes a free one.")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--host={host} --port={port} cannot be used: {reason}. Choose another; --port=0 "
            "takes a free one."
        ) from None
