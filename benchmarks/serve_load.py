"""Sends a server of `serve` many requests, most of them hostile, and checks every answer.

    python benchmarks/serve_load.py --workdir=runs/demo                   # 10,000 requests
    python benchmarks/serve_load.py --workdir=runs/demo --requests=2000 --clients=8

It starts `transformer-jax serve` in a new process. Each client sends one request after the other to
127.0.0.1: sentences, n best, attention, and bodies that are broken, too large, of wrong types, cut
off, or not HTTP. Every answer must be JSON with the status of its kind, or 503 where the server is
full. It prints the server's resident memory after each fifth of the requests (the first one has the
compilations). Then SIGTERM must end the server with status 0.
"""

import argparse
import collections
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = "the old man who sleeps reads three new books and a child sees her house .".split()
ODD = ["é", "日本語", "🙂👍🏽", "\u202e", "\x00", "\u2581", "<s>", "</script>", "\\", '"', "ß" * 40]
JSON = "Content-Type: application/json\r\n"
DEADLINE = 120.0  # seconds until an answer

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
LEAVES = 0.05  # share of clients that close the connection and read nothing


def answer_to(port: int, request: bytes, leaves: bool) -> tuple[int, bool] | None:
    """The status and whether it is JSON; None if the client left."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as connection:
        try:
            connection.sendall(request)
        except ConnectionError:  # refused before everything was sent; the answer may be there
            pass
        if leaves:
            return None
        received = b""
        try:
            while part := connection.recv(1 << 16):
                received += part
        except ConnectionResetError:
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    try:
        json.loads(body)
    except ValueError:
        return (int(head.split()[1]) if head else 0), False
    return int(head.split()[1]), True


def resident(pid: int) -> float:
    """MiB of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Load:
    """Clients that share the number of requests left, and the outcomes of the requests."""

    def __init__(self, port: int, requests: int, seed: int) -> None:
        self.port, self.left, self.seed = port, requests, seed
        self.statuses: collections.Counter[tuple[str, int]] = collections.Counter()
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def client(self, number: int) -> None:
        """Sends requests until none is left."""
        draw = random.Random(f"{self.seed} {number}")
        names = list(KINDS)
        weights = [RARE.get(name, 1.0) for name in names]
        while self._take():
            [name] = draw.choices(names, weights)
            allowed, make = KINDS[name]
            leaves = draw.random() < LEAVES
            try:
                found = answer_to(self.port, make(draw), leaves)
            except OSError as error:
                found = (0, False)
                self.wrong.append(f"{name}: {error}")
            status, is_json = found or (-1, True)
            with self.lock:
                self.statuses[name, status] += 1
                if not is_json or status not in {*allowed, 503, -1}:
                    self.wrong.append(f"{name}: status {status}, JSON: {is_json}")

    def total(self) -> int:
        """Requests sent."""
        return sum(self.statuses.values())

    def _take(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0


def run_clients(port: int, requests: int, clients: int, seed: int) -> Load:
    """Sends the requests and returns their outcomes."""
    load = Load(port, requests, seed)
    threads = [threading.Thread(target=load.client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load


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


def main() -> int:
    """Prints the outcomes; returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--port", type=int, default=8_765)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    server = start(given.workdir, given.port)
    loads = list[Load]()
    memory = list[float]()
    try:
        begun = time.monotonic()
        for number in range(PARTS):
            part = given.requests // PARTS
            loads.append(run_clients(given.port, part, given.clients, given.seed + number))
            memory.append(resident(server.pid))
        seconds = time.monotonic() - begun
        answers = answer_to(given.port, translate({"text": "the old man ."}), False)
    finally:
        server.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        status = server.wait(60)
    for (name, code), count in sorted(
        sum((load.statuses for load in loads), start=collections.Counter()).items()
    ):
        print(f"{name:<20} {'left' if code == -1 else code:>5} {count:>6}")
    wrong = [one for load in loads for one in load.wrong]
    print(f"{len(wrong)} wrong answers", *sorted(set(wrong))[:10], sep="\n  ")
    print("resident memory, MiB:", *(round(one) for one in memory))
    print(f"{sum(map(Load.total, loads)) / seconds:.0f} requests a second, {given.clients} clients")
    print(f"ended with status {status} after {time.monotonic() - asked:.1f} s")
    return int(bool(wrong) or status != 0 or answers != (200, True))


if __name__ == "__main__":
    sys.exit(main())
