"""The `score` command: the scores that search reports, for translations that are given."""

import math
from types import SimpleNamespace

import pytest

from tests import tiny_runs as runs
from tests.commands.test_import import imported
from transformer_jax.api import load
from transformer_jax.commands import score as command
from transformer_jax.commands.score import score
from transformer_jax.decoding.scoring import Forced
from transformer_jax.errors import ConfigError
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.use.loading import load_model


def printed(capsys, run, src, tgt, **how) -> list[list[str]]:
    """Score, log probability and length of each pair."""
    capsys.readouterr()
    score(str(run), src=str(src), tgt=str(tgt), **how)
    return [line.split("\t") for line in capsys.readouterr().out.split("\n")[:-1]]


def test_each_line_has_a_score_and_blank_ones_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "LINES", 4)
    source = runs.read_lines(runs.tiny_corpus() / "test.en")[:3]
    target = runs.read_lines(runs.tiny_corpus() / "test.de")[:3]
    src = runs.write_lines(tmp_path / "src", [*source, "", "", source[0]])
    tgt = runs.write_lines(tmp_path / "tgt", [*target, "", target[0], ""])
    for run in (runs.trained_run(), imported("one")):
        lines = printed(capsys, run, src, tgt)
        assert len(lines) == 6
        vocabulary = load_model(str(run)).vocabulary
        lengths = [len(vocabulary.target.encode(line)) + 1 for line in target]
        assert [int(length) for *_, length in lines[:3]] == lengths
        assert all(float(log_prob) < float(value) < 0 for value, log_prob, _ in lines[:3])
        assert lines[3] == ["0.000000", "0.000000", "0"]
        assert lines[4] == ["-inf", "-inf", str(lengths[0])]
        assert lines[5][2] == "1" and float(lines[5][0]) < 0


@pytest.mark.slow("compiles scores of several searches")
def test_flags_and_keys_of_search_change_the_scores(capsys, caplog):
    texts = [str(runs.tiny_corpus() / f"test.{side}") for side in ("en", "de")]

    def scores(**how) -> list[list[float]]:
        return [
            list(map(float, line)) for line in printed(capsys, runs.trained_run(), *texts, **how)
        ]

    assert all(value == log_prob for value, log_prob, _ in scores(length_penalty=0.0))
    assert "more than" not in caplog.text
    pairs = zip(scores(), scores(coverage_penalty=0.3), strict=True)
    assert all(lower < value for (value, *_), (lower, *_) in pairs)
    power = {"decode.penalty": "power", "decode.length_penalty": 1.0}
    for value, log_prob, length in scores(overrides=power):
        assert value == pytest.approx(log_prob / length, abs=1e-5)
    plain = {"decode.length_penalty": 0.0, "decode.max_length": 4}
    assert all(value == log_prob for value, log_prob, _ in scores(overrides=plain))
    assert "more than decode.max_length=4 subwords" in caplog.text


def test_contrastive_files_count_the_lines_with_a_likelier_translation(tmp_path, capsys, caplog):
    run, corpus = runs.trained_run(), runs.tiny_corpus()
    src, right = (runs.read_lines(corpus / f"test.{x}") for x in ("en", "de"))
    own = load(run).score(src, right)
    files = {"wrong": right[1:] + right[:1], "other": right[2:] + right[:2], "equal": right}
    paths = {name: runs.write_lines(tmp_path / name, lines) for name, lines in files.items()}
    flags = f"--workdir={run}", f"--src={corpus}/test.en", f"--tgt={corpus}/test.de"
    lower = [[x.score for x in load(run).score(src, files[name])] for name in ("wrong", "other")]
    wanted = sum(x.score > max(both) for x, *both in zip(own, *lower, strict=True))
    both = f"--contrastive={paths['wrong']},{paths['other']}"
    assert runs.command("score", *flags, both) == 0
    assert capsys.readouterr().out == f"{wanted / len(src):.4f}\t{wanted}\t{len(src)}\n"
    assert 0 < wanted < len(src)
    assert runs.command("score", *flags, f"--contrastive={paths['equal']}") == 0
    assert capsys.readouterr().out.split("\t")[1] == "0"  # equal is not above
    assert f"{len(src)} lines have equal scores, which count as wrong" in caplog.text
    # A line that is blank everywhere ends a document, and is none of the lines.
    wrong = files["wrong"]
    sides = {"src": [*src, "", "x"], "tgt": [*right, "", ""], "bad": [*wrong, "", ""]}
    ended = {name: runs.write_lines(tmp_path / name, lines) for name, lines in sides.items()}
    given = f"--src={ended['src']}", f"--tgt={ended['tgt']}", f"--contrastive={ended['bad']}"
    assert runs.command("score", flags[0], *given) == 0
    assert capsys.readouterr().out.endswith(f"\t{len(src) + 1}\n")
    blank = runs.write_lines(tmp_path / "blank", [""])
    blanks = [f"--{name}={blank}" for name in ("src", "tgt", "contrastive")]
    assert runs.command("score", flags[0], *blanks) == 2
    assert "--contrastive: all lines are blank" in capsys.readouterr().err
    short = runs.write_lines(tmp_path / "short", right[:3])
    assert runs.command("score", *flags, f"--contrastive={short}") == 2


def test_the_log_has_the_perplexity_per_subword_and_per_word(tmp_path, capsys, caplog):
    run, corpus = runs.trained_run(), runs.tiny_corpus()
    src, tgt = (runs.read_lines(corpus / f"test.{x}") for x in ("en", "de"))
    files = [
        f"--{name}={runs.write_lines(tmp_path / name, [*lines, '', own])}"
        for name, lines, own in (("src", src, ""), ("tgt", tgt, "ein Hund"))
    ]
    assert runs.command("score", f"--workdir={run}", *files) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    nats = -sum(float(line[1]) for line in lines[:-1])  # the last has no probability
    subwords = sum(int(line[2]) for line in lines[:-1])
    words = sum(len(line.split()) for line in tgt)
    wanted = math.exp(nats / subwords), math.exp(nats / words)
    text = "perplexity %.4g per subword (EOS included), %.4g per word between spaces"
    assert text % wanted in caplog.text
    # A line that may be cut has no part in what a word costs.
    limit = max(int(line[2]) for line in lines)
    whole = [n for n, line in enumerate(lines[:-1]) if int(line[2]) < limit]
    nats = -sum(float(lines[n][1]) for n in whole)
    words = sum(len([*tgt, ""][n].split()) for n in whole)
    caplog.clear()
    assert (
        runs.command("score", f"--workdir={run}", *files, f"--config.decode.max_length={limit}")
        == 0
    )
    assert f"{math.exp(nats / words):.4g} per word between spaces" in caplog.text


@pytest.mark.parametrize(("given", "swapped", "is_said"), [(8, 6, True), (8, 7.5, False)])
def test_sides_that_are_likelier_the_other_way_round_are_named(given, swapped, is_said, caplog):
    def score(sources: list[str], targets: list[str]) -> list[Forced]:
        assert {*sources} | {*targets} == {"a", "b"}
        nats = given if sources[0] == "a" else swapped
        return [Forced(-2.0 * nats, -2.0 * nats, 2) for _ in sources]

    pairs = [Pair("a", "b"), Pair("", "b"), Pair("a", "b"), Pair("a", " ")]
    command._warn_of_swapped_sides(SimpleNamespace(score=score), pairs)  # type: ignore[arg-type]
    assert ("are the sides swapped?" in caplog.text) == is_said


def test_a_line_that_is_cut_is_counted_once(monkeypatch, tmp_path, caplog):
    src, *others = (
        runs.write_lines(tmp_path / name, [line, "Ein Hund."])
        for name, line in (("a", "A dog. " * 9), ("b", "Hund."), ("c", "Katze."))
    )
    flags = f"--workdir={runs.trained_run()}", f"--src={src}", f"--tgt={others[0]}"
    monkeypatch.setattr(command, "UNLIKELY", 0.0)
    for more in ([], [f"--contrastive={others[1]}"]):
        caplog.clear()
        assert runs.command("score", *flags, *more, "--config.decode.max_length=9") == 0
        assert "1 lines have more than decode.max_length=9" in caplog.text


def test_unlikely_translations_are_tried_the_other_way_round(monkeypatch):
    tried = []
    monkeypatch.setattr(command, "_warn_of_swapped_sides", lambda _, pairs: tried.append(pairs))
    corpus = runs.tiny_corpus()
    flags = f"--workdir={runs.trained_run()}", f"--src={corpus}/test.en", f"--tgt={corpus}/test.de"
    for limit, times in ((100.0, 0), (0.0, 1)):
        monkeypatch.setattr(command, "UNLIKELY", limit)
        assert runs.command("score", *flags) == 0
        assert len(tried) == times


def test_a_loaded_run_keeps_what_it_was_trained_with():
    with pytest.raises(ConfigError, match=r"model\.score is of training: a trained model keeps it"):
        load_model("runs/any", overrides={"model.score": "dot"})
