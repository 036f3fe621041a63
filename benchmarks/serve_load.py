"""Sends a server of `serve` many requests, most of them hostile, and checks every answer.

    python benchmarks/serve_load.py --workdir=runs/demo                   # 10,000 requests
    python benchmarks/serve_load.py --workdir=runs/demo --requests=2000 --clients=8

It starts `transformer-jax serve` in a new process. Each client sends one request after the other to
127.0.0.1: sentences, n best, attention, and bodies that are broken, too large, of wrong types, cut
off, or not HTTP. Every answer must be JSON with the status of its kind, or 503 where the server is
full. It prints the server's resident memory after each fifth of the requests (the first one has the
compilations). Then SIGTERM must end the server with status 0.
"""

import collections
import contextlib
import functools
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from peers.process import memory_mib

from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

ROOT = Path(__file__).parents[1]
WORDS = "the old man who sleeps reads three new books and a child sees her house .".split()
ODD = ["é", "日本語", "🙂👍🏽", "\u202e", "\x00", "\u2581", "<s>", "</script>", "\\", '"', "ß" * 40]
JSON = "Content-Type: application/json\r\n"
DEADLINE = 120.0  # seconds until an answer
FLAGS = (
    Flag("workdir", str, "FOLDER", "a run", required=True),
    Flag("requests", int, "N", "number of requests", default=10_000),
    Flag("clients", int, "N", "requests at the same time", default=16),
    Flag("port", int, "N", "the server's", default=8_765),
    Flag("seed", int, "N", "of the random requests", default=0),
)

Kind = tuple[set[int], Callable[[random.Random], bytes]]  # the statuses allowed, and a request


def post(path: str, body: bytes, head: str = JSON, length: int | None = None) -> bytes:
    """A request in bytes; `length` is the Content-Length that it states."""
    declared = len(body) if length is None else length
    start = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{start}{head}Content-Length: {declared}\r\n\r\n".encode() + body


def sentence(draw: random.Random, words: list[str] = WORDS) -> str:
    """A sentence of drawn words."""
    return " ".join(draw.choices(words, k=draw.randint(1, 12)))


def translate(values: object) -> bytes:
    """POST /translate with this JSON."""
    return post("/translate", json.dumps(values).encode())


def noise(draw: random.Random) -> bytes:
    """Bytes that are neither UTF-8 nor JSON."""
    return b"\xff" + draw.randbytes(draw.randint(0, 2_000))


WRONG_TYPES = [
    *({"text": value} for value in (None, 1, [], {}, True)),
    *({"lines": value} for value in ("a", [], [1], [None], [[]], {"0": "a"})),
    *({"text": "a", "n_best": value} for value in (0, -1, 99, 1.5, "2", True, [1], 10**30)),
    *({"text": "a", "attention": True, "layer": value} for value in (0, 99, "1", [1])),
    *({"text": "a", name: 1} for name in ("beam", "__class__", "é", "")),
    [],
    "text",
    7,
    None,
    {},
]
KINDS: dict[str, Kind] = {
    "sentence": ({200}, lambda d: translate({"text": sentence(d)})),
    "n best": ({200}, lambda d: translate({"lines": [sentence(d), sentence(d)], "n_best": 2})),
    "attention": ({200}, lambda d: translate({"text": sentence(d), "attention": True})),
    "odd characters": ({200, 413}, lambda d: translate({"text": sentence(d, WORDS[:3] + ODD)})),
    "page": (
        {200},
        lambda d: b"GET /model HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ),
    "wrong types": ({400}, lambda d: translate(d.choice(WRONG_TYPES))),
    "no JSON": ({400}, lambda d: post("/translate", sentence(d).encode())),
    "no UTF-8": ({400}, lambda d: post("/translate", noise(d))),
    "nested": ({400}, lambda d: post("/translate", b"[" * 50_000)),
    "half a surrogate": ({400}, lambda d: post("/translate", b'{"text": "\\ud83d"}')),
    "too many lines": ({413}, lambda d: translate({"lines": ["a"] * 65})),
    "too many characters": ({413}, lambda d: translate({"text": "a" * 2_001})),
    "too many subwords": ({413}, lambda d: translate({"text": "日" * 1_500})),
    "too many bytes": ({413}, lambda d: post("/translate", b" " * d.randint(70_000, 400_000))),
    "cut off": ({408}, lambda d: post("/translate", b'{"text": "', length=500)),
    "no type": ({415}, lambda d: post("/translate", b'{"text": "a"}', head="")),
    "no such page": ({404}, lambda d: post(f"/{d.randint(0, 10**9)}", b"{}")),
    "wrong method": ({405}, lambda d: post("/translate", b"{}").replace(b"POST", b"DELETE", 1)),
    "no HTTP": ({400}, lambda d: b"\x16\x03\x01" + d.randbytes(40) + b"\r\n\r\n"),
    "huge head": ({400}, lambda d: b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000),
}
RARE = {"cut off": 0.02}  # the server waits seconds for the rest; other kinds weigh 1
PARTS = 5
LEFT = -1  # in place of a status
LEAVES = 0.05  # share of clients that close the connection and read nothing


def answer_to(port: int, request: bytes, leaves: bool) -> tuple[int, bool] | None:
    """The status and whether it is JSON; None if the client left."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as connection:
        # Refused before everything was sent: the answer may be there.
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        if leaves:
            return None
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                received += part
    head, _, body = received.partition(b"\r\n\r\n")
    try:
        json.loads(body)
        is_json = True
    except ValueError:
        is_json = False
    return int(head.split()[1]) if head else 0, is_json


class Outcome(NamedTuple):
    """What became of a request."""

    kind: str
    status: int  # 0: no answer; LEFT: the client left
    wrong: str = ""  # empty if the answer is right


def send(port: int, seed: str) -> Outcome:
    """Sends one request, whose kind is drawn."""
    draw = random.Random(seed)
    [kind] = draw.choices(list(KINDS), [RARE.get(name, 1.0) for name in KINDS])
    allowed, make = KINDS[kind]
    leaves = draw.random() < LEAVES
    try:
        found = answer_to(port, make(draw), leaves)
    except OSError as error:
        return Outcome(kind, 0, f"{kind}: {error}")
    if found is None:
        return Outcome(kind, LEFT)
    status, is_json = found
    right = is_json and status in {*allowed, 503}
    return Outcome(kind, status, "" if right else f"{kind}: status {status}, JSON: {is_json}")


def start(workdir: str, port: int) -> subprocess.Popen:
    """Starts a server; returns when it answers."""
    command = [sys.executable, "-m", "transformer_jax", "serve"]
    server = subprocess.Popen([*command, f"--workdir={workdir}", f"--port={port}"], cwd=ROOT)
    begun = time.monotonic()
    while server.poll() is None and time.monotonic() - begun < DEADLINE:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            if answer_to(port, KINDS["page"][1](random.Random()), False) == (200, True):
                return server
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not start")


def main() -> None:
    """Prints the outcomes; exits with 1 if anything was wrong."""
    values = parse_experiment("serve_load", __doc__, FLAGS, takes_keys=False)
    port, clients = values["port"], values["clients"]
    server = start(values["workdir"], port)
    outcomes = list[Outcome]()
    memory = list[float]()
    part = values["requests"] // PARTS
    try:
        begun = time.monotonic()
        with ThreadPoolExecutor(clients) as pool:
            for first in range(0, PARTS * part, part):
                seeds = [f"{values['seed']} {first + n}" for n in range(part)]
                outcomes += pool.map(functools.partial(send, port), seeds)
                memory.append(memory_mib("VmRSS", server.pid))
        seconds = time.monotonic() - begun
        answers = answer_to(port, translate({"text": "the old man ."}), False)
    finally:
        server.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        status = server.wait(60)
    counts = collections.Counter((one.kind, one.status) for one in outcomes)
    for (kind, code), count in sorted(counts.items()):
        print(f"{kind:<20} {'left' if code == LEFT else code:>5} {count:>6}")
    wrong = [one.wrong for one in outcomes if one.wrong]
    print(f"{len(wrong)} wrong answers", *sorted(set(wrong))[:10], sep="\n  ")
    print("resident memory, MiB:", *(round(one) for one in memory))
    print(f"{len(outcomes) / seconds:.0f} requests a second, {clients} clients")
    print(f"ended with status {status} after {time.monotonic() - asked:.1f} s")
    if wrong or status != 0 or answers != (200, True):
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(exit_status(main))
