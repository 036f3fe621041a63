"""The `translate` command: every line is answered, in order, and as soon as it can be."""

import io
import os
import pty
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.commands.translate import translate
from transformer_jax.errors import ConfigError
from transformer_jax.use.loading import load_model

OPTIONS: dict[str, Any] = {
    "checkpoint": "latest",
    "beam_size": 2,
    "length_penalty": None,
    "coverage_penalty": None,
    "n_best": 1,
    "scores": False,
}


def answer(given: bytes, workdir: Path | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    workdir = workdir or runs.trained_run()
    translate(str(workdir), stdin=io.BytesIO(given), stdout=out, **{**OPTIONS, **options})
    return out.getvalue()


def answers(lines: list[str], **options: Any) -> list[str]:
    out = answer("".join(f"{line}\n" for line in lines).encode(), **options)
    assert out.endswith(b"\n")
    return out.decode().split("\n")[:-1]


def test_every_line_is_answered_in_order():
    source = runs.read_lines(runs.tiny_corpus() / "test.en")
    # With scores: after so little training all translations may be equal, but not their scores.
    want = dict(zip(source, answers(source, scores=True), strict=True))
    assert len(set(want.values())) == len(source)
    blank = ["", " ", "\t", "\u2581", "\u3000", " \t \u3000\u2581"]
    mixed = [source[3], *blank, source[0], source[3], "", source[7]]
    got = [line.split("\t") for line in answers(mixed, scores=True)]
    expected = [want.get(line, "0.000000\t").split("\t") for line in mixed]
    assert [text for _, text in got] == [text for _, text in expected]
    # In another batch: equal beyond rounding.
    scores = ([float(score) for score, _ in lines] for lines in (got, expected))
    np.testing.assert_allclose(*scores, rtol=1e-5)


def test_scores_and_n_best_have_their_formats():
    source = runs.read_lines(runs.tiny_corpus() / "test.en")[:2] + [""]
    plain = answers(source)
    scored = [line.split("\t", 1) for line in answers(source, scores=True)]
    assert [text for _, text in scored] == plain
    assert all(float(score) < 0 for score, _ in scored[:2]) and scored[2] == ["0.000000", ""]
    listed = [line.split(" ||| ") for line in answers(source, n_best=2)]
    assert [number for number, *_ in listed] == ["0", "0", "1", "1", "2"]
    assert [text for _, text, _ in listed[::2]] == plain
    assert [score for *_, score in listed[::2]] == [score for score, _ in scored]
    assert float(listed[0][2]) > float(listed[1][2])


@pytest.mark.parametrize("given", [b"", b"\n", b"\n\n\n"])
def test_no_lines_and_blank_lines_are_echoed(given):
    assert answer(given) == given


def test_a_run_s_folder_translates_at_any_path(tmp_path):
    """Its corpus need not exist there."""
    workdir = runs.copy_of_run(tmp_path / "elsewhere" / "run", data__path="/nowhere")
    given = (runs.tiny_corpus() / "test.en").read_bytes()
    before = runs.contents(workdir)
    assert answer(given, workdir) == answer(given)
    assert runs.contents(workdir) == before


def test_flags_override_the_settings_of_the_run():
    run = str(runs.trained_run())
    loaded = load_model(run, beam_size=3, length_penalty=0.2, n_best=2)
    assert (loaded.config.decode.beam_size, loaded.config.decode.length_penalty) == (3, 0.2)
    assert loaded.translator.decode == loaded.config.decode
    assert (loaded.translator.n_best, loaded.checkpoint) == (2, str(runs.STEPS))
    one = loaded.line_translator(n_best=1)
    assert (one.translator.n_best, loaded.translator.n_best) == (1, 2)
    keys = {"decode.beam_size": 3, "decode.max_length": 9}
    decode = load_model(run, beam_size=3, overrides=keys).config.decode
    assert (decode.beam_size, decode.max_length) == (3, 9)
    with pytest.raises(ConfigError, match="decode.beam_size is given twice: 2 and 3"):
        load_model(run, beam_size=2, overrides=keys)
    assert load_model(run).config.decode.beam_size == 4


def test_answers_come_before_the_input_ends():
    """An error is reported at once too, while the pipe is still open."""
    program = [sys.executable, "-m", "transformer_jax", "translate", "--beam_size=1", "--scores"]
    process = subprocess.Popen(
        [*program, f"--workdir={runs.trained_run()}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin and process.stdout and process.stderr
    try:
        for _ in range(2):
            process.stdin.write(b"A dog .\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 300)[0], "no answer"
            assert process.stdout.readline().strip()
        process.stdin.write(b"\xff\n")
        process.stdin.flush()
        assert process.wait(300) == 2
        *_, last = process.stderr.read().decode().splitlines()
        assert last.startswith("transformer-jax: standard input, line 3: not UTF-8")
    finally:
        process.kill()
        process.communicate()


def test_on_a_terminal_each_line_is_answered_when_it_is_entered(caplog):
    """A terminal stays open between lines, and Ctrl-D ends the input."""
    keyboard, terminal = pty.openpty()
    reading, writing = os.pipe()
    source = runs.read_lines(runs.tiny_corpus() / "test.en")[:2]
    with open(terminal, "rb") as stdin, open(writing, "wb") as stdout, open(reading, "rb") as out:
        options = {**OPTIONS, "scores": True, "stdin": stdin, "stdout": stdout}
        run = threading.Thread(target=translate, args=(str(runs.trained_run()),), kwargs=options)
        with caplog.at_level("INFO"):
            run.start()
            for line, want in zip(source, answers(source, scores=True), strict=True):
                os.write(keyboard, f"{line}\n".encode())
                assert select.select([out], [], [], 60)[0], "no answer while the input is open"
                score, text = out.readline().decode().rstrip("\n").split("\t")
                want_score, want_text = want.split("\t")
                assert text == want_text
                assert float(score) == pytest.approx(float(want_score), rel=1e-5)
            os.write(keyboard, b"\x04")
            run.join(60)
        assert not run.is_alive()
    os.close(keyboard)
    assert caplog.text.count("type a sentence and press Enter; Ctrl-D") == 1


def test_a_run_that_is_there_twice_is_an_ensemble_and_a_warning(caplog):
    """tests/decoding/test_ensemble.py translates with several."""
    run = str(runs.trained_run())
    loaded = load_model([run, run])
    assert f"a run is there twice: {run} and {run}" in caplog.text
    assert loaded.checkpoint == f"{runs.STEPS}+{runs.STEPS}"
    with pytest.raises(ConfigError, match="not for an ensemble"):
        assert loaded.model


def test_what_cannot_be_loaded_together_is_named(tmp_path):
    learned = {"model__positions": "learned", "model__max_positions": 48, "decode__max_length": 48}
    other = runs.copy_of_run(tmp_path / "other", **learned)
    with pytest.raises(ConfigError, match="other cannot be searched like the first run: .*=64"):
        load_model([str(runs.trained_run()), str(other)])
