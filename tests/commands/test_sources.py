"""Runs with no source, and with two source sentences, through every command that reads a source."""

import shutil

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax import api
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.serving.answers import answer_all
from transformer_jax.serving.asked import Asked

pytestmark = pytest.mark.slow("trains a run")


# No source: it is trained on one side of the text, scores lines and writes some ------------------


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A run whose folder of text has German alone."""
    folder = tmp_path_factory.mktemp("text")
    for split in runs.SIZES:
        lines = runs.read_lines(runs.tiny_corpus() / f"{split}.de")
        runs.write_lines(folder / f"{split}.de", lines)
    alone = {"data__path": folder, "data__src": "", "model__encoder": "none"}
    assert runs.train(folder / "run", **alone, train__steps=40) == 0
    return folder / "run"


def test_lines_are_scored_without_a_source(language_model, capsys):
    lines = runs.read_lines(language_model.parent / "test.de")
    flags = [f"--workdir={language_model}", f"--tgt={language_model.parent / 'test.de'}"]
    assert runs.command("score", *flags) == 0
    printed = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == len(lines)
    model = api.load(language_model, beam_size=2)
    found = model.score([""] * len(lines), lines)
    assert [float(line[1]) for line in printed] == pytest.approx([x.log_prob for x in found], 1e-5)
    shuffled = model.score([""] * len(lines), [" ".join(sorted(line.split())) for line in lines])
    assert np.mean([x.log_prob for x in found]) > np.mean([x.log_prob for x in shuffled])
    first, second = model.n_best([""], 2)[0]
    assert first.score > second.score and first.text != second.text


def test_what_needs_a_source_is_one_line(language_model, tmp_path, capsys):
    src = runs.write_lines(tmp_path / "src", ["ein Hund"])
    for command, words in (
        (("score", f"--src={src}", f"--tgt={src}"), "The model reads no source"),
        (("align", f"--src={src}", f"--tgt={src}"), "no layers of encoder-decoder attention"),
        (("evaluate",), "A language model (model.encoder='none') has no translations"),
        (("serve", f"--port={runs.free_port()}"), "is a language model: serve answers a source"),
        (("export", f"--output={tmp_path / 'out'}", "--format=stablehlo"), "reads 0 source"),
    ):
        name, *flags = command
        assert runs.command(name, f"--workdir={language_model}", *flags) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    with pytest.raises(ConfigError, match="no translations to evaluate"):
        api.load(language_model).evaluate([""], ["ein Hund"])
    with pytest.raises(DataError, match="there is text"):
        api.load(language_model).translate(["ein Hund"])


# Two source sentences ----------------------------------------------------------------------------

SOURCES = {"data__src": "en,fr", "model__sources": 2, "train__steps": 12}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run from English and its words in another order, for French, into German."""
    folder = tmp_path_factory.mktemp("sources")
    for split in runs.SIZES:
        lines = {
            side: runs.read_lines(runs.tiny_corpus() / f"{split}.{side}") for side in ("en", "de")
        }
        lines["fr"] = [" ".join(reversed(line.split())) for line in lines["en"]]
        for side, own in lines.items():
            runs.write_lines(folder / f"{split}.{side}", own)
    assert runs.train(folder / "run", data__path=folder, **SOURCES) == 0
    return folder / "run"


def test_every_command_reads_lines_with_a_tab(two, tmp_path, capsys):
    assert runs.command("evaluate", f"--workdir={two}", "--split=test", "--beam_size=2") == 0
    split = capsys.readouterr().out
    folder = two.parent
    both = zip(*(runs.read_lines(folder / f"test.{side}") for side in ("en", "fr")), strict=True)
    lines = ["\t".join(pair) for pair in both]
    src, ref = runs.write_lines(tmp_path / "src", lines), folder / "test.de"
    files = [f"--workdir={two}", f"--src={src}"]
    assert runs.command("evaluate", *files, f"--ref={ref}", "--beam_size=2") == 0
    scores = capsys.readouterr().out
    assert scores.partition("BLEU")[2] == split.partition("BLEU")[2] != ""
    assert runs.command("score", *files, f"--tgt={ref}") == 0
    assert runs.command("align", *files, f"--tgt={ref}") == 0
    aligned = capsys.readouterr().out.splitlines()[-len(lines) :]
    words = [int(link.partition("-")[0]) for line in aligned for link in line.split()]
    assert max(words) > max(len(line.split("\t")[0].split()) for line in lines), "the second too"


def test_the_second_sentence_counts_and_may_be_missing(two):
    model = api.load(two, beam_size=1)
    pairs = ["a dog\tdog a", "a dog\tcat the", "a dog\t", "\tdog a", "", "\t"]
    scores = [one.score for one in model.score(pairs, ["ein Hund"] * len(pairs))]
    assert np.isfinite(scores[:4]).all() and len(set(scores[:4])) == 4
    assert scores[4:] == [-np.inf] * 2
    assert model.translate(["", "\t"]) == ["", ""]


@pytest.mark.parametrize("line", ["a dog", "a\tb\tc"])
def test_another_number_of_sentences_is_one_line(two, tmp_path, capsys, line):
    lines, refs = ["a\tb", line], ["x", "y"]
    src, ref = (runs.write_lines(tmp_path / name, own) for name, own in (("s", lines), ("r", refs)))
    for command, flag in (("score", "--tgt"), ("evaluate", "--ref")):
        assert runs.command(command, f"--workdir={two}", f"--src={src}", f"{flag}={ref}") == 2
        error = capsys.readouterr().err
        assert "model.sources=2" in error and error.count("\n") == 1


def test_the_server_answers_lines_with_a_tab(two, monkeypatch):
    """Its first answer, before a request comes, too."""
    answered = []

    class Server:
        def run(self, listening):
            loaded = api.load(two, beam_size=2)
            answered.extend(answer_all(loaded, [Asked(["a dog\tdog a"], 1, True, 1)]))

    monkeypatch.setattr("transformer_jax.serving.server.make_server", lambda app: Server())
    assert runs.command("serve", f"--workdir={two}", f"--port={runs.free_port()}") == 0
    assert len(answered[0]["lines"]) == 1


def test_a_source_without_text_is_told(two, tmp_path, caplog):
    folder = shutil.copytree(two.parent, tmp_path / "c", ignore=shutil.ignore_patterns("run"))
    runs.write_lines(folder / "train.fr", [""] * runs.SIZES["train"])
    assert runs.train(tmp_path / "run", data__path=folder, **{**SOURCES, "train__steps": 1}) == 0
    assert "pairs have no fr text" in caplog.text
