"""The HTTP API and the page as a Starlette application."""

import asyncio
import ipaddress
import json
import re
from collections.abc import Callable, Collection
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from transformer_jax.serving.asked import (
    Asked,
    Limits,
    Model,
    Refused,
    parse_attention,
    parse_translate,
)
from transformer_jax.serving.worker import Worker

Parse = Callable[[bytes, Limits, Model], Asked]

# The page has its own style and script and loads nothing; no other page may put it into a frame.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'"
)
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/?#@\[\]:]+)(:\d*)?")  # the header Host
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def to_json(status: int, values: Any, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(
        text.encode(), status, {**HEADERS, **(headers or {})}, media_type="application/json"
    )


class OwnHosts:
    """Refuses requests that were sent to another name than the server's.

    Otherwise a page could have its own name resolved to this address, and then read the answers
    (DNS rebinding). An address is no name, so it needs no such check.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        """`names`: hosts in lower case; localhost is always one."""
        self.app, self.names = app, {"localhost", *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it with 421 (Misdirected Request)."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        name = (urlsplit(f"//{host}").hostname or "") if HOST.fullmatch(host) else ""
        if scope["type"] == "http" and name not in self.names and not _is_address(name):
            text = f"This server is not called {host[:100]!r}: see --allow_host."
            await to_json(421, {"error": text})(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def make_app(
    worker: Worker,
    about: dict[str, Any],
    model: Model,
    limits: Limits,
    names: Collection[str] = (),
) -> Starlette:
    """The application.

    Args:
      worker: answers requests.
      about: the answer to GET /model.
      model, limits: what requests are checked against.
      names: of the server, beside localhost and addresses.
    """
    page = resources.files("transformer_jax.serving").joinpath("page.html").read_bytes()

    async def show_page(request: Request) -> Response:
        headers = HEADERS | {"Content-Security-Policy": POLICY}
        return Response(page, headers=headers, media_type="text/html")

    async def show_model(request: Request) -> Response:
        return to_json(200, about)

    def answering(parse: Parse) -> Callable[[Request], Any]:
        """An endpoint whose requests `parse` reads and the worker answers."""

        async def answer(request: Request) -> Response:
            if request.url.query:
                raise Refused(400, "Everything is in the JSON body: leave out what follows the ?.")
            body = await _read(request, limits)
            asked = parse(body, limits, model)
            try:
                return to_json(200, await asyncio.wrap_future(worker.ask(asked)))
            except asyncio.CancelledError:  # by uvicorn, END_SECONDS after a signal
                raise Refused(503, "The server has ended before the answer was ready.") from None

        return answer

    app = Starlette(
        middleware=[Middleware(OwnHosts, names)],
        routes=[
            Route("/", show_page),
            Route("/model", show_model),
            Route("/translate", answering(parse_translate), methods=["POST"]),
            Route("/attention", answering(parse_attention), methods=["POST"]),
        ],
        exception_handlers={
            Refused: _refused,
            HTTPException: _http_error,
            ClientDisconnect: _left,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False  # to whatever host the client names
    return app


async def _read(request: Request, limits: Limits) -> bytes:
    """The body of a request. Raises Refused if it is too large, late or not declared as JSON."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():  # to its end: clients read no answer before it
                size += len(part)
                if size <= limits.body_bytes:
                    body += part
    except TimeoutError:
        raise Refused(
            408, f"The body did not arrive within {limits.body_seconds:g} seconds."
        ) from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers do not let the pages of other sites send it
        raise Refused(415, "Send Content-Type: application/json (curl --json does).")
    if size > limits.body_bytes:
        raise Refused(413, f"The body has more than {limits.body_bytes} bytes.")
    return bytes(body)


async def _refused(request: Request, error: Any) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else {}
    if error.status == 408:
        headers["Connection"] = "close"  # the rest of the body is not read
    return to_json(error.status, {"error": str(error)}, headers)


async def _http_error(request: Request, error: Any) -> Response:
    text = {404: "There is no such page.", 405: "This address does not accept that method."}
    message = text.get(error.status_code, str(error.detail))
    return to_json(error.status_code, {"error": message}, dict(error.headers or {}))


async def _left(request: Request, error: Any) -> Response:
    return to_json(400, {"error": "The body ended too early."})  # the client has gone


async def _failed(request: Request, error: Any) -> Response:
    return to_json(500, {"error": "The server could not answer this request; see its log."})
