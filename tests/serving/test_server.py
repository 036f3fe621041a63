"""The command `serve` over loopback: answers, refusals, its page, and how it ends."""

import contextlib
import functools
import html
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.api import Run, load
from transformer_jax.commands.serve import serve
from transformer_jax.errors import ConfigError
from transformer_jax.serving import answers
from transformer_jax.serving.asked import Asked, Limits
from transformer_jax.serving.worker import Worker

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from transformer_jax.serving import server as sockets  # noqa: E402
from transformer_jax.serving.app import make_app  # noqa: E402

SOURCES = ["The old man sleeps .", "A child reads .", " "]
LIMITS = Limits(body_bytes=4_000, lines=8, characters=200, body_seconds=0.3)
# Otherwise the tiny model's translations are blank.
DECODE = {"beam_size": 2, "length_penalty": 9.0, "banned_subwords": ("▁",)}
FLAGS = ["beam_size=2", "length_penalty=9", "banned_subwords=▁"]  # the same
JSON = {"Content-Type": "application/json"}
HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHROMIUM = shutil.which("chromium")


@functools.cache
def run() -> Run:
    return load(runs.trained_run(), **DECODE)


@pytest.fixture(scope="module")
def serving():
    """(port, worker) of a server in a thread of this process."""
    model = answers.model_of(run())
    worker = Worker(functools.partial(answers.answer_all, run()), LIMITS.requests)
    about = {"checkpoint": run().checkpoint, "source_language": "en", "target_language": "de"}
    about |= {**model._asdict(), "limits": LIMITS._asdict()}
    server = sockets.make_server(make_app(worker, about, model, LIMITS))
    with sockets.listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()[1], worker
        server.should_exit = True
        thread.join(20)
    worker.stop()
    assert not thread.is_alive()


@contextlib.contextmanager
def connected(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        yield connection


def request(port: int, method: str, path: str, body=None, headers=JSON):
    """The status, the JSON and the headers of an answer."""
    body = json.dumps(body).encode() if isinstance(body, dict) else body
    with connected(port) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.headers.items())


def raw(port: int, sent: bytes, then: bytes | None = None) -> tuple[int, dict]:
    """The status and the JSON that the server answers to these bytes; `then` follows later."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        if then is not None:
            time.sleep(0.05)
            connection.sendall(then)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)


def test_translations_are_those_of_the_api_with_the_attention_of_a_layer_and_head(serving):
    port, _ = serving
    status, found, _ = request(port, "POST", "/translate", {"lines": SOURCES, "n_best": 2})
    want = run().n_best(SOURCES, 2)
    assert (status, found["checkpoint"]) == (200, run().checkpoint)
    for line, source, translations in zip(found["lines"], SOURCES, want, strict=True):
        assert line == {"source": source, "translations": [one._asdict() for one in translations]}
    asked = {"text": SOURCES[0], "attention": True, "layer": 1, "head": 2}
    _, found, _ = request(port, "POST", "/translate", asked)
    [[best]] = run().n_best(SOURCES[:1], 1)
    [line] = found["lines"]
    assert line["translations"] == [best._asdict()]
    cross = run().attention(SOURCES[0], best.text).kinds["cross"]
    got = line["attention"]
    np.testing.assert_allclose(got["weights"], cross.weights_NHLM[0, 1], atol=6e-5)
    assert (got["source_subwords"], got["target_subwords"]) == (cross.attended, cross.attending)
    [aligned] = run().align(SOURCES[:1], [best.text])
    words = got["source_words"], got["target_words"], got["alignment"]
    assert words == (aligned.src_words, aligned.tgt_words, aligned.heads_NHJ[0, 1].tolist())


def test_attention_of_a_given_translation_is_the_mean_of_the_heads_without_one(serving):
    pair = {"source": SOURCES[0], "target": "Der alte Mann ."}
    status, found, _ = request(serving[0], "POST", "/attention", pair)
    cross = run().attention(*pair.values()).kinds["cross"]
    mean_LM = cross.weights_NHLM[-1].mean(0)
    assert status == 200
    np.testing.assert_allclose(found["attention"]["weights"], mean_LM, atol=6e-5)


def test_requests_that_arrive_together_share_a_search(serving):
    port, worker = serving
    before = worker.groups
    lines = [f"{source} {n}" for n in range(8) for source in SOURCES[1:2]]

    def translated(line):
        _, found, _ = request(port, "POST", "/translate", {"text": line})
        return found["lines"][0]["translations"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(translated, lines)) == run().translate(lines)
    assert worker.groups - before < len(lines)


def test_every_refusal_is_json_with_its_status(serving):
    port, _ = serving
    assert request(port, "GET", "/model")[1]["limits"]["lines"] == LIMITS.lines
    assert request(port, "GET", "/nothing")[0] == 404
    status, _, headers = request(port, "GET", "/translate")
    assert (status, headers["allow"]) == (405, "POST")
    assert request(port, "BREW", "/translate")[0] == 405
    assert request(port, "POST", "/translate", b'{"text": "a"}', {})[0] == 415
    assert request(port, "POST", "/translate?n_best=2", b'{"text": "a"}')[0] == 400
    assert request(port, "POST", "/translate", b"{")[0] == 400
    assert request(port, "POST", "/translate", {"text": "a", "n_best": 3})[0] == 400
    status, found, _ = request(port, "POST", "/translate", {"text": "a " * 75})  # 150 subwords
    assert status == 413 and found["error"].endswith(": 63.")  # decode.max_length without EOS
    assert request(port, "POST", "/attention", {"source": "a", "target": "a " * 75})[0] == 413
    assert request(port, "POST", "/translate", b" " * 4_000)[0] == 400
    status, _, headers = request(port, "POST", "/translate", b" " * 4_001)
    assert status == 413 and "connection" not in headers
    assert request(port, "POST", "/translate", b" " * 10**7)[0] == 413  # after it was sent whole
    assert raw(port, b"\x16\x03\x01 hello\r\n\r\n")[0] == 400
    assert raw(port, b"GET / HTTP/1.1\r\n\r\n")[0] == 400  # no host
    assert raw(port, b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000)[0] == 400
    assert raw(port, HEAD + b"Content-Length: 20\r\n\r\n{")[0] == 408  # the rest never comes
    assert raw(port, HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")[0] == 400
    body = b'{"text": "\xc3\xa9"}'
    whole = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert raw(port, whole[:-5], whole[-5:])[0] == 200


def test_headers_of_answers_and_the_types_of_bodies(serving, monkeypatch):
    port, worker = serving
    asked = "POST", "/translate", {"text": " "}
    status, _, headers = request(port, *asked, {"Content-Type": "Application/JSON; charset=utf-8"})
    assert (status, headers["x-content-type-options"]) == (200, "nosniff")
    assert headers["cache-control"] == "no-store" and "server" not in headers
    monkeypatch.setattr(worker, "most", 0)
    status, _, headers = request(port, *asked)
    assert (status, headers["retry-after"]) == (503, "1")


def test_a_connection_that_sends_no_request_is_closed(serving, monkeypatch):
    monkeypatch.setattr(sockets, "HEAD_SECONDS", 0.2)
    assert raw(serving[0], b"GET / HT")[0] == 408


def test_a_connection_stays_open_between_requests_but_not_for_half_of_one(serving, monkeypatch):
    monkeypatch.setattr(sockets, "HEAD_SECONDS", 0.7)
    with connected(serving[0]) as connection:
        for _ in range(2):
            connection.request("GET", "/model")
            answer = connection.getresponse()
            assert answer.status == 200 and answer.read()
            time.sleep(0.9)
        connection.sock.sendall(b"GET / HT")
        assert b" 408 " in connection.sock.recv(100)


def test_the_page_loads_nothing_and_its_policy_allows_nothing_else(serving):
    with connected(serving[0]) as connection:
        connection.request("GET", "/")
        answer = connection.getresponse()
        page = answer.read().decode()
    assert answer.getheader("content-type").startswith("text/html")
    policy = answer.getheader("content-security-policy")
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|img|iframe)[^>]* src|@import|url\(", page)
    assert "innerHTML" not in page  # translations are text


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH")
def test_the_page_shows_translations_scores_alignment_and_attention(serving, tmp_path):
    text = "A+child+reads+%3Cb%3E+."
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    options += ["--virtual-time-budget=8000", "--dump-dom"]
    address = f"http://127.0.0.1:{serving[0]}/?text={text}"
    done = subprocess.run([CHROMIUM, *options, address], capture_output=True, text=True, timeout=60)
    shown = done.stdout
    source = "A child reads <b> ."
    [found] = run().n_best([source], 2)
    best = html.escape(found[0].text, quote=False)
    assert re.search(r'id="best"[^>]*>([^<]*)<', shown)[1] == best
    scores = re.findall(r'class="score">([^<]*)<', shown)
    assert scores == [f"{one.score:.3f}" for one in found]
    cross = run().attention(source, found[0].text).kinds["cross"]
    painted = re.search(r'id="source">(.*?)</div>', shown, re.DOTALL)[1]
    weights = [float(weight) for weight in re.findall(r"<small>([\d.]+)</small>", painted)]
    np.testing.assert_allclose(weights, cross.weights_NHLM[-1].mean(0)[0], atol=0.006)
    [aligned] = run().align([source], [found[0].text])
    assert shown.count("<line ") == (aligned.mean_NJ[-1] >= 0).sum() > 0


def test_no_more_translations_are_promised_than_mbr_has_samples():
    few = load(runs.trained_run(), method="mbr", samples=2, beam_size=4)
    assert answers.model_of(few).beam_size == 2
    [found] = answers.answer_all(few, [Asked([" "], n_best=2)])  # blank: no search
    assert found["lines"][0]["translations"] == [{"text": "", "score": 0.0}]


def test_the_command_answers_and_ends_cleanly_after_a_signal():
    port = runs.free_port()
    answered = []

    def use() -> None:
        for _ in range(600):
            with contextlib.suppress(OSError, http.client.HTTPException):
                answered.append(request(port, "POST", "/translate", {"text": SOURCES[1]}))
                break
            time.sleep(0.1)
        if answered:  # it answers, so its handlers are set
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    user = threading.Thread(target=use)
    user.start()
    flags = [f"--config.decode.{flag}" for flag in FLAGS]
    where = [f"--workdir={runs.trained_run()}", f"--port={port}"]
    assert runs.command("serve", *where, *flags) == 0
    user.join(10)
    assert answered[0][0] == 200 and signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_mistakes_are_one_line(monkeypatch, capsys):
    with sockets.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert runs.command("serve", f"--workdir={runs.trained_run()}", f"--port={port}") == 2
    error = capsys.readouterr().err
    assert f"--port={port}" in error and error.count("\n") == 1
    for name in ("app", "server"):
        monkeypatch.delitem(sys.modules, f"transformer_jax.serving.{name}")
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    capsys.readouterr()
    assert runs.command("serve", f"--workdir={Path()}") == 2
    error = capsys.readouterr().err
    assert "pip install starlette uvicorn" in error and error.count("\n") == 1


def test_a_request_to_another_name_is_refused_and_nothing_is_redirected(serving):
    port, _ = serving
    for host in ("127.0.0.1", f"localhost:{port}", "[::1]:9", "10.0.0.7", "LOCALHOST"):
        assert request(port, "GET", "/model", headers={"Host": host})[0] == 200
    evil = "evil.example", f"evil.example:{port}", "", "a@localhost", "localhost.evil", "x/y"
    for host in evil:
        status, found, _ = request(port, "GET", "/model", headers={"Host": host})
        assert status == 421 and "--allow_host" in found["error"]
    status, _, headers = request(port, "POST", "/translate/", {"text": "a"})
    assert status == 404 and "location" not in {name.lower() for name in headers}


@pytest.mark.parametrize("name", ["http://x.com", "y.com:80", "a b", "", "x/y"])
def test_names_that_no_request_can_have_are_refused(name):
    with pytest.raises(ConfigError, match=f"--allow_host={name} is not the name of a host"):
        names = ["good.example", "[::1]", name]
        serve("nowhere", checkpoint="latest", host="127.0.0.1", port=0, allow_host=names)


def test_a_client_that_sends_no_more_is_still_answered(serving):
    body = json.dumps({"text": SOURCES[0]}).encode()
    with socket.create_connection(("127.0.0.1", serving[0]), timeout=10) as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200") and b'"translations"' in answer
