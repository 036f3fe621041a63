"""Hostile text does no harm: every plane, controls, invisible marks, markup, long lines."""

import gzip
import io
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests import tiny_runs as runs
from tests.decoding.test_lines import Echo
from transformer_jax.commands import translate as command
from transformer_jax.config.data import DataConfig
from transformer_jax.config.schema import Config
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.decoding.lines import line_groups
from transformer_jax.evaluation.bleu import as_dict, score
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.text.corpora import Pair, open_corpus
from transformer_jax.text.vocabulary import Vocabulary
from transformer_jax.text.vocabulary_training import train_vocabulary
from transformer_jax.use.loading import LoadedModel, load_model

pytestmark = pytest.mark.slow("trains on hostile text, and translates it in other locales")

PROGRAM = [sys.executable, "-m", "transformer_jax"]
LONG = 20_000  # characters
CONTROLS = "".join(chr(c) for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) != "\n")
# Line ends to str.splitlines, and to no file of text: vertical tab, form feed, separators.
NOT_LINE_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
# Soft hyphen, zero widths, joiners, fillers, tags; and the marks and overrides of direction.
INVISIBLE = "\u00ad\u034f\u115f\u180e\u200b\u200c\u200d\u2060\u2800\u3164\ufeff\ufff9\U000e0001"
DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
COMBINING = "\u0301\u0489\u0e49\u05b0\u20dd\u1abe\U0001d165"
PLANES = range(17)
MARKUP = [
    "<script>alert(1)</script>&lt;&#0;&#x1F;<!-- <s></s><unk><pad><0x0A>",
    "'; DROP TABLE runs; -- \" ` $(reboot) ${HOME} %s%n%1000000d {0} {self.__class__}",
    "||| 0 ||| -1.0 ||| \t-1.0\t \\n\\r\\t\\u2028 \\x00",
    r"$x^2$ $\frac{1}{$ $$ \begin{x} _{^ $\foo$ \$",
    "[](javascript:0) =1+1 @import \u2581\u2581\u2581 \u2581a",
    "שלום עולם \u202egnp.exe مرحبا ‏‎ ١٢٣ ก็็็็ ﷽ ﬁ ǅ ß İ ı K",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 日本語　テキスト ½①Å",
]
EVERYTHING = [
    "",
    " \t\u3000\u2581 ",
    f"a{NOT_LINE_ENDS}b",
    f"The {CONTROLS} dog.",
    *(f"x{char}" for char in CONTROLS if char != "\r"),
    f"The {INVISIBLE} dog {DIRECTIONS} sleeps.",
    *(f"e{mark * 200}" for mark in COMBINING),
    *("".join(chr(p << 16 | place) for place in (0x42, 0x2603, 0xFFFE, 0xFFFF)) for p in PLANES),
    "\ufdd0\ufdef\ue000\U000f0000\U0010fffd\ufffd\ufffc",
    *MARKUP,
    *(piece * (LONG // len(piece)) for piece in ("x", "dog ", "\U00020000", "\u0301", "\x00", "$")),
    "The dog sleeps.\r",
    "\ufeff",
]


def character(plane: int, place: int) -> str:
    """A character that UTF-8 can encode and that does not end a line."""
    code = plane << 16 | place
    return "\ufffd" if 0xD800 <= code < 0xE000 or code == ord("\n") else chr(code)


pieces = st.one_of(
    st.builds(character, st.sampled_from(PLANES), st.integers(0, 0xFFFF)),
    st.text(st.sampled_from(CONTROLS + NOT_LINE_ENDS), min_size=1, max_size=5),
    st.text(st.sampled_from(INVISIBLE + DIRECTIONS + "aש "), min_size=1, max_size=5),
    st.builds(
        lambda char, mark, n: char + mark * n,
        *map(st.sampled_from, ("aשก", COMBINING)),
        st.integers(1, 99),
    ),
    st.sampled_from([*MARKUP, "The dog sleeps.", " ", "\t"]),
)
lines_of_text = st.lists(pieces, max_size=6).map("".join)
texts = st.lists(lines_of_text, min_size=1, max_size=8)


def checked(examples: int) -> settings:
    """The same examples every time, however long each takes."""
    return settings(max_examples=examples, derandomize=True)


def as_file(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def read_back(lines: Sequence[str]) -> list[str]:
    """The text of a file of the lines: a byte order mark at its start does not belong to it."""
    whole = [line.removesuffix("\r") for line in lines]
    return [whole[0].removeprefix("\ufeff"), *whole[1:]]


def strict(text: str) -> Any:
    """Parses standard JSON, in which NaN and Infinity are not numbers."""
    return json.loads(text, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def as_it_is() -> Vocabulary:
    """A vocabulary trained on hostile text without normalization: it gives back each line."""
    config = VocabularyConfig(size=600, normalization="identity")
    return train_vocabulary(EVERYTHING, config, seed=0)


# Corpus (tests/text/test_vocabulary.py takes any text to subwords and back) -----------------------


@checked(60)
@given(texts)
@example(EVERYTHING)
def test_a_file_has_as_many_lines_as_were_written_and_the_same_ones(folder, lines):
    (folder / "train.en").write_bytes(as_file(lines))
    (folder / "train.de").unlink(missing_ok=True)
    (folder / "train.de.gz").write_bytes(gzip.compress(as_file(lines[::-1])))
    # With a name for the validation split, none is cut off the training text.
    data = DataConfig(path=str(folder), valid=("valid",))
    pairs = open_corpus(data).split("train")
    want = list(map(Pair, read_back(lines), read_back(lines[::-1])))
    assert len(pairs) == len(lines)
    assert list(pairs) == want
    assert [line for group in line_groups(io.BytesIO(as_file(lines))) for line in group] == [
        pair.src for pair in want
    ]


# Translation -------------------------------------------------------------------------------------


def translated(given: bytes, vocabulary: Vocabulary, *flags: str, answers: int = 1) -> list[str]:
    """The output lines of `translate` with an echo in place of the search."""
    echo = Echo(max_length=2 * LONG, answers=answers)
    loaded = LoadedModel(Config(), vocabulary, echo, "1")  # type: ignore[arg-type]
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "load_model", lambda *_: loaded)
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given)))
        patch.setattr(sys, "stdout", out)
        assert runs.command("translate", "--workdir=x", *flags) == 0
    written = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert written.endswith("\n")
    return written.split("\n")[:-1]


@checked(60)
@given(texts)
@example(EVERYTHING)
def test_every_line_is_answered_in_order_and_can_be_parsed(as_it_is, lines):
    want = [re.sub("[\n\r]", " ", as_it_is.normalize(line)) for line in read_back(lines)]
    assert translated(as_file(lines), as_it_is) == want
    scored = [line.split("\t", 1) for line in translated(as_file(lines), as_it_is, "--scores")]
    assert [text for _, text in scored] == want
    assert all(float(number) in (0.0, -1.0) for number, _ in scored)
    listed = translated(as_file(lines), as_it_is, "--n_best=3", answers=3)
    found: dict[int, list[str]] = {}
    for line in listed:
        number, rest = line.split(" ||| ", 1)
        text, last = rest.rsplit(" ||| ", 1)
        assert math.isfinite(float(last))
        found.setdefault(int(number), []).append(text)
    assert list(found) == list(range(len(lines)))
    for i, line in enumerate(read_back(lines)):
        assert found[i][0] == want[i]
        assert len(found[i]) == (3 if as_it_is.encode(line) else 1)


def test_a_model_answers_hostile_lines_alike_in_any_order():
    loaded = load_model(str(runs.trained_run()), beam_size=2, n_best=2)
    translate = loaded.line_translator()
    forth = translate(EVERYTHING)
    back = translate(EVERYTHING[::-1])[::-1]
    assert len(forth) == len(back) == len(EVERYTHING)
    assert all(1 <= len(found) <= 2 for found in forth)
    np.testing.assert_allclose(
        [found[0].score for found in forth], [found[0].score for found in back], atol=1e-5
    )
    assert len({found[0].score for found in forth}) > len(EVERYTHING) / 2


def test_the_program_translates_bytes_in_any_locale():
    flags = [f"--workdir={runs.trained_run()}", "--beam_size=2", "--n_best=2"]
    done = subprocess.run(
        [*PROGRAM, "translate", *flags],
        input=as_file(EVERYTHING),
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    listed = [line.split(b" ||| ") for line in done.stdout.split(b"\n")[:-1]]
    assert list(dict.fromkeys(int(number) for number, *_ in listed)) == list(range(len(EVERYTHING)))
    assert done.stderr.isascii() and done.stderr.count(b"\n") <= 4, done.stderr.decode()


# Scores and plots --------------------------------------------------------------------------------


@checked(10)
@given(texts, st.sampled_from(["de", "fr", "xx"]))
@example(EVERYTHING, "de")
def test_scores_of_hostile_text_are_numbers(lines, language):
    assume(any(line.strip() for line in lines))
    for hypotheses in (lines, lines[::-1], [""] * len(lines)):
        scores = score(hypotheses, lines, "en", language)
        assert scores.sentences == len(lines)
        numbers = [scores.bleu, scores.chrf, *filter(None, [scores.paper_bleu])]
        assert all(0 <= number <= 100.001 for number in numbers)
        assert strict(json.dumps(as_dict(scores))) == as_dict(scores)


def test_files_of_hostile_text_are_evaluated_in_any_locale(tmp_path):
    run = runs.copy_of_run(tmp_path / "run")
    src, ref = tmp_path / "src.txt", tmp_path / "ref.txt"
    src.write_bytes(as_file(EVERYTHING))
    ref.write_bytes(as_file(EVERYTHING[::-1]))
    flags = [f"--workdir={run}", f"--src={src}", f"--ref={ref}", "--beam_size=2"]
    done = subprocess.run(
        [*PROGRAM, "evaluate", *flags, f"--examples={len(EVERYTHING)}"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    printed = done.stdout.decode("latin-1").split("\n")
    assert printed[0].startswith("BLEU ") and len(printed) > 3 * len(EVERYTHING)
    assert all(line.isprintable() for line in printed)
    [kept] = (run / "evaluations").glob("*.json")
    record = strict(kept.read_text(encoding="utf-8"))
    assert record["sentences"] == len(EVERYTHING)
    assert all(math.isfinite(record[name]) for name in ("bleu", "paper_bleu", "chrf"))
    assert len(runs.read_lines(kept.with_suffix(".txt"))) == len(EVERYTHING)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "sentence",
    [f"{MARKUP[3]} {MARKUP[5]} {EVERYTHING[3]}", "\U00020000" * LONG],
    ids=["markup and controls", "long"],
)
def test_the_attention_of_a_hostile_sentence_is_drawn(sentence, tmp_path, capfd):
    drawn = tmp_path / "heat.png"
    flags = [f"--workdir={runs.trained_run()}", f"--output={drawn}", "--", sentence]
    assert runs.command("attention", *flags) == 0
    out, error = capfd.readouterr()
    assert re.fullmatch(r"translation [^\n]*\nattention   [^\n]*\n", out)
    assert error.count("\n") <= 2
    assert drawn.read_bytes().startswith(b"\x89PNG")


# Training ----------------------------------------------------------------------------------------


def hostile_lines(count: int, seed: int) -> list[str]:
    """Lines of several hostile pieces, the long ones and the empty one included."""
    draw = random.Random(seed)
    short = [line for line in EVERYTHING if len(line) < LONG // 2]
    mixed = [" ".join(draw.choices(["The dog sleeps.", *short], k=2)) for _ in range(count)]
    return [*mixed, "The dog sleeps.", *short]


def test_a_run_is_trained_on_hostile_text_resumed_and_used(tmp_path, capsys):
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    corpus.mkdir()
    sizes = {"train": 200, "valid": 5}
    for split, count in sizes.items():
        for seed, suffix in enumerate(("en", "de")):
            lines = hostile_lines(count, seed) + (EVERYTHING if split == "train" else [])
            (corpus / f"{split}.{suffix}").write_bytes(as_file(lines))
    keys = {"data.path": str(corpus), "vocabulary.size": 600, "train.valid_bleu": True}
    keys |= {"train.log_every": 1, "train.valid_every": 2, "train.checkpoint_every": 2}
    keys |= {"data.max_length": 200, "train.row_length": 200}
    keys |= {"decode.beam_size": 2, "decode.max_length": 16}
    assert runs.train(run, **keys, train__steps=2) == 0
    assert runs.train(run, **keys, train__steps=4) == 0
    out, error = capsys.readouterr()
    assert out == ""
    for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]:
        strict(line)
    losses = [r["nats_per_token"] for r in read_metrics(run) if r["kind"] == "train"]
    assert len(losses) == 4 and all(map(math.isfinite, losses))
    loaded = load_model(str(run), n_best=2)
    assert len(loaded.line_translator()(EVERYTHING)) == len(EVERYTHING)
