"""`translate --simultaneous`: the translations of whole lines, while the lines arrive."""

import io
import os
import select
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.commands import test_translate as translated
from tests.fixtures.tiny import random_like
from transformer_jax.commands.translate import translate
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.use import loading

OPTIONS: dict[str, Any] = {**translated.OPTIONS, "beam_size": None}
K = 2


@pytest.fixture(autouse=True)
def random_weights(monkeypatch) -> None:
    """After so little training all translations would be empty."""

    def load(run: Any, checkpoint: str, like: Any) -> tuple[Any, str]:
        return random_like(like, seed=1), checkpoint

    monkeypatch.setattr(loading, "load_params", load)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory) -> Path:
    changes = {"model__wait_k": 1, "model__wait_k_max": 4, "decode__wait_k": K}
    changes |= {"decode__beam_size": 4, "decode__max_length": 16}
    return runs.copy_of_run(tmp_path_factory.mktemp("waiting") / "run", **changes)


class Dribble(io.BytesIO):
    """A stream that gives a few bytes at a time, parts of characters too."""

    draw = np.random.default_rng(0)

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(int(self.draw.integers(1, 9)))


def answer(given: bytes, workdir: Path, **options: Any) -> bytes:
    out = io.BytesIO()
    translate(str(workdir), stdin=Dribble(given), stdout=out, **{**OPTIONS, **options})
    return out.getvalue()


@pytest.mark.slow("trains a run")
def test_every_line_is_that_of_whole_lines(waiting, caplog):
    """Also blank, hostile and cut ones, Windows' line ends, and a last line without an end."""
    source = runs.read_lines(runs.tiny_corpus() / "test.en")
    draw = np.random.default_rng(3)
    words = [*{word for line in source for word in line.split()}, "😀", "中文", "e\u0301", "qzx"]
    mixed = [" ".join(draw.choice(words, count)) for count in draw.integers(1, 5, 40)]
    hostile = ["", "  ", "\u2581", "a\x00b\x1b[31m", "\u2028\x85 x", "||| <s>", "  a   b  ", "\t"]
    lines = [*source, *mixed, *hostile, "x " * 60, "x" * 500, source[0] + "\r", source[1]]
    given = "\ufeff".encode() + "\n".join(lines).encode()
    whole = answer(given, waiting, beam_size=1)
    assert len(set(whole.split(b"\n"))) > 10
    assert answer(given, waiting, simultaneous=True) == whole
    one, other = (text for text in caplog.messages if text.endswith("and were cut there"))
    assert one == other
    empty = [text for text in caplog.messages if "translations are empty" in text]
    assert len(empty) in (0, 2) and len(set(empty)) <= 1


def test_words_come_out_while_the_line_goes_in(waiting):
    reading, keys = os.pipe()
    screen, writing = os.pipe()
    words = runs.read_lines(runs.tiny_corpus() / "test.en")[2].split()
    whole = answer(" ".join(words).encode(), waiting, beam_size=1)
    with (
        open(reading, "rb") as stdin,
        open(writing, "wb") as stdout,
        open(screen, "rb") as out,
        open(keys, "wb", buffering=0) as keyboard,
    ):
        options = {**OPTIONS, "simultaneous": True, "stdin": stdin, "stdout": stdout}
        run = threading.Thread(target=translate, args=(str(waiting),), kwargs=options)
        run.start()
        keyboard.write(f"{' '.join(words[:4])} ".encode())
        is_written = select.select([out], [], [], 60)[0]
        begun = os.read(screen, 1 << 16) if is_written else b""
        keyboard.write(" ".join(words[4:]).encode())
        keyboard.close()
        run.join(60)
        assert not run.is_alive()
        assert begun and b"\n" not in begun, "something is written before the line ends"
        assert begun + os.read(screen, 1 << 16) == whole


def test_a_model_that_waits_is_no_ensemble_with_one_that_does_not(waiting):
    """decode.wait_k of the first run would change nothing in another that reads all at once."""
    other = runs.trained_run()
    with pytest.raises(ConfigError, match=f"{other} cannot be .*decode.wait_k={K} changes nothing"):
        loading.load_model([str(waiting), str(other)])


def test_bytes_that_are_not_utf8_end_it_with_the_line_s_number(waiting):
    with pytest.raises(DataError, match="standard input, line 2: not UTF-8"):
        answer(b"A man .\nA \xed\xa0\x80 dog", waiting, simultaneous=True)
