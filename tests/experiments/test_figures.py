"""The figures follow their formulas; the commands draw all of a run, and print what they made."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from experiments import demo, figures, report
from experiments.figures import (
    Bucket,
    bleu_by_length,
    bleu_figure,
    learning_rates,
    position_products,
)
from tests import tiny_runs as runs
from transformer_jax import api
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.reporting.page import Text
from transformer_jax.runs.run_folder import IMPORTED
from transformer_jax.text import built_in_corpus
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.sources import encode_sources
from transformer_jax.use.command_line import exit_status

# Positions and learning rate ---------------------------------------------------------------------


def test_products_of_positions_are_the_sum_of_cosines_of_their_distance():
    d_model = 12
    places = [30, 41, 77]
    offsets = range(-30, 31)
    found = position_products(d_model, places, offsets)
    assert found.shape == (3, 61)
    # sin a sin b + cos a cos b = cos(a - b), for each of the d_model / 2 wavelengths.
    want = [sum(np.cos(k / 10_000 ** (2 * i / d_model)) for i in range(6)) for k in offsets]
    for profile in found:
        np.testing.assert_allclose(profile, want, atol=1e-5)
        np.testing.assert_allclose(profile, profile[::-1], atol=1e-5)  # k and -k
    assert found[0, 30] == pytest.approx(6)  # k = 0: d_model / 2


@pytest.mark.parametrize("d_model", [256, 1024])
@pytest.mark.parametrize("warmup", [4_000, 8_000])
def test_learning_rates_are_equation_3(d_model, warmup):
    rates = learning_rates(d_model, warmup, 20_000)
    want = [d_model**-0.5 * min(n**-0.5, n * warmup**-1.5) for n in range(1, 20_001)]
    np.testing.assert_allclose(rates, want, rtol=1e-6)


# BLEU by length ----------------------------------------------------------------------------------

GOOD, GOOD_OUTPUT = "Der alte Mann kaufte ein Auto.", "Der alte Mann kaufte ein Auto."
POOR, POOR_OUTPUT = "Die Katze schläft auf dem Sofa.", "Die Katze schläft jetzt unter dem Tisch."


def of_words(count: int) -> str:
    return " ".join(["word"] * count)


def test_every_sentence_is_in_the_bucket_of_its_source():
    lengths = [31, 0, 1, 5, 6, 10, 11, 15, 16, 20, 21, 30, 5_000]
    sources = [of_words(length) for length in lengths]
    buckets = bleu_by_length(sources, [GOOD] * len(lengths), [GOOD] * len(lengths))
    assert [(bucket.words, bucket.sentences) for bucket in buckets] == [
        ("0", 1),
        *((words, 2) for words in ("1–5", "6–10", "11–15", "16–20", "21–30", "31+")),
    ]


def test_a_bucket_s_bleu_is_that_of_its_sentences_alone():
    sources = [of_words(3), of_words(9), of_words(3), of_words(9), of_words(9)]
    references = [GOOD, POOR, POOR, GOOD, "Ja."]
    hypotheses = [GOOD_OUTPUT, POOR_OUTPUT, POOR_OUTPUT, "Der alte Mann.", ""]
    short, long = bleu_by_length(sources, hypotheses, references)
    for bucket, places in ((short, [0, 2]), (long, [1, 3, 4])):
        own = [[lines[i] for i in places] for lines in (hypotheses, references)]
        assert bucket.bleu == pytest.approx(sacrebleu.corpus_bleu(own[0], [own[1]]).score)
        assert bucket.low <= bucket.bleu <= bucket.high


def test_the_interval_of_two_sentences_by_hand():
    # A resample has the first twice, both, or the second twice: probabilities 1/4, 1/2, 1/4.
    twice = [
        sacrebleu.corpus_bleu([translation] * 2, [[meant] * 2]).score
        for translation, meant in ((POOR_OUTPUT, POOR), (GOOD_OUTPUT, GOOD))
    ]
    [bucket] = bleu_by_length(["a b"] * 2, [GOOD_OUTPUT, POOR_OUTPUT], [GOOD, POOR])
    assert [bucket.low, bucket.high] == pytest.approx(twice)
    assert bucket.low + 10 < bucket.bleu < bucket.high - 10


def test_words_are_those_of_the_sentence_and_tokens_those_of_the_signature():
    sources = [">>zh<< a b c\td e f"] * 2
    chinese = ["老人在河边看见一只小猫。"] * 2, ["老人在河边看见一只大猫。"] * 2
    [by_words] = bleu_by_length(sources, *chinese)
    [by_characters] = bleu_by_length(sources, *chinese, "case:mixed|tok:zh|smooth:exp")
    assert by_words.words == "1–5" and by_words.bleu < 1 < 50 < by_characters.bleu


def test_the_interval_is_95_percent_wide():
    # 900 of 1,000 one-word sentences are right, in every order of n-grams alike: BLEU is their
    # share, binomial, so the interval is that of 1.96 standard deviations.
    right, wrong = "a b c d", "e f g h"
    hypotheses = [right] * 900 + [wrong] * 100
    [bucket] = bleu_by_length(["x"] * 1_000, hypotheses, [right] * 1_000)
    half_width = 1.96 * 100 * np.sqrt(0.9 * 0.1 / 1_000)
    assert bucket.bleu == pytest.approx(90)
    assert bucket.high - bucket.bleu == pytest.approx(half_width, rel=0.15)
    assert bucket.bleu - bucket.low == pytest.approx(half_width, rel=0.15)
    again = bleu_by_length(["x"] * 1_000, hypotheses, [right] * 1_000)
    assert again == [bucket]


def test_the_picture_shows_each_bucket_its_interval_and_its_sentences():
    buckets = [Bucket("1–5", 1_200, 30.0, 25.0, 40.0), Bucket("31+", 7, 10.0, 10.5, 20.0)]
    [axes] = bleu_figure(buckets, 28.0).axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["1–5\n1,200 sentences", "31+\n7 sentences"]
    [bars] = axes.collections
    ends = [[bottom, top] for (_, bottom), (_, top) in bars.get_segments()]
    assert ends == [[25.0, 40.0], [10.0, 20.0]]  # a point outside its interval extends it


def test_the_picture_of_many_buckets_has_room_for_labels_and_shows_zeros():
    buckets = [Bucket(f"{n}–{n + 5}", 12_345, 0.0, 0.0, 0.0) for n in range(7)]
    figure = bleu_figure([Bucket("0", 1, 0.0, 0.0, 0.0), *buckets], 0.0)
    figure.draw_without_rendering()
    [axes] = figure.axes
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:], strict=False))
    assert axes.get_xticklabels()[0].get_text() == "0\n1 sentence"
    points = axes.lines[0]
    assert not points.get_clip_on() and axes.get_ylim() == (0, 1)


# The command -------------------------------------------------------------------------------------


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["figures", *arguments])
    return exit_status(figures.main)


def files(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow("trains a run and draws every figure")
def test_all_figures_of_a_run(monkeypatch, tmp_path, capsys):
    out, trained = tmp_path / "out", runs.copy_of_run(tmp_path / "run")
    assert run(monkeypatch, f"--workdir={trained}", f"--out={out}") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"page        {out}/index.html"
    kinds = {f"attention_{kind}_1.png" for kind in ("encoder", "decoder", "cross")}
    drawn = {"positions.png", "position_products.png", "learning_rate.png", "bleu_by_length.png"}
    assert files(out) == kinds | drawn | {"bleu_by_length.json", "table.md", "index.html"}

    record = json.loads((out / "bleu_by_length.json").read_text())
    assert sum(bucket["sentences"] for bucket in record["buckets"]) == runs.SIZES["test"]
    assert record["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert re.fullmatch(r"test\.40\.beam4\.[0-9a-f]{8}", record["evaluation"])
    assert record["direction"] == "en→de"

    table, page = (out / "table.md").read_text(), (out / "index.html").read_text()
    command = f"python -m experiments.figures --workdir={trained} --out={out}"
    assert command in table and command in page
    first = runs.read_lines(runs.tiny_corpus() / "test.en")[0]
    for text in (table, page):
        assert re.search(r"JAX \d.*; \d{4}-\d\d-\d\d, revision \w+", text)
        assert f"Run: {trained}" in text and first in text
    assert set(re.findall(r"!\[.*\]\((.*)\)", table)) == kinds | drawn
    assert page.count("data:image/png;base64,") == len(kinds | drawn)
    assert "| 512 | 4,000 | 4,000 | 6.988e-04 |" in table  # the paper's base model
    assert "; \\<s> is the beginning" in table  # Markdown escapes it too
    assert f"| all | {runs.SIZES['test']} | {record['bleu']:.2f} |" in table

    (trained / "corpus.sha256").write_text(IMPORTED)
    assert run(monkeypatch, f"--workdir={trained}", f"--out={tmp_path / 'none'}") == 2
    assert "was imported and has no text of its own" in capsys.readouterr().err
    assert not files(tmp_path / "none")


def test_without_a_run_what_needs_none_is_made(monkeypatch, tmp_path):
    assert run(monkeypatch, f"--out={tmp_path}") == 0
    drawn = {"positions.png", "position_products.png", "learning_rate.png"}
    assert files(tmp_path) == drawn | {"table.md", "index.html"}
    assert "Run: none." in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.train.steps=3"], "--config.train.steps: only --config.data.path"),
        (["--out=FILE"], "--out: cannot write into FILE: "),
        (["figures"], "figures does not take 'figures'"),
    ],
)
def test_a_mistake_is_one_line(flags, message, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    given = [flag.replace("FILE", str(tmp_path / "file")) for flag in flags]
    assert run(monkeypatch, f"--out={tmp_path}/out", *given) == 2
    error = capsys.readouterr().err
    assert message.replace("FILE", str(tmp_path / "file")) in error and error.count("\n") == 1
    assert files(tmp_path) == {"file"}


def test_a_given_sentence_has_to_fit_the_run(monkeypatch, tmp_path):
    run = SimpleNamespace(attention=lambda text: encode_sources(None, [text], 2))
    monkeypatch.setattr(figures, "load_model", lambda *_, **__: None)
    monkeypatch.setattr(api, "Run", lambda _: run)
    asked = figures.Asked(tmp_path, "w", figures.SENTENCE, "test", "latest")
    with pytest.raises(DataError, match="--sentence: .* has 0 tabs. .* a tab between"):
        figures.draw_attention(asked)


def test_sources_without_spaces_have_no_words_to_count(tmp_path):
    (tmp_path / "x.txt").write_text("a\nb\n")
    found = SimpleNamespace(
        hypotheses=tmp_path / "x.txt",
        pairs=[("我是", "a"), ("你好", "b")],
        scores=SimpleNamespace(wer=None),
    )
    [part] = figures.by_length(found, tmp_path)
    assert "no spaces" in part.text


@pytest.mark.parametrize(
    ("source", "directions", "src", "sources", "built_in"),
    [
        ("grammar", (), "en", 1, True),
        ("grammar", (), "de", 1, False),
        ("grammar", ("en-de",), "en", 1, False),
        ("grammar", (), "en", 2, False),
        ("files", (), "en", 1, False),
    ],
)
def test_without_a_sentence_a_run_gets_one_that_fits(
    monkeypatch, source, directions, src, sources, built_in
):
    pairs = [SimpleNamespace(src=line) for line in (" ", ">>de<< A dog.")]
    monkeypatch.setattr(figures, "pairs_of_split", lambda *_: pairs)
    data = SimpleNamespace(source=source, directions=directions, src_kind="text", path="text")
    data.sources = (src,)
    config = SimpleNamespace(data=data)
    loaded = SimpleNamespace(model=SimpleNamespace(sources=sources), folders=["run"])
    found = figures.sentence_of(SimpleNamespace(config=config, loaded=loaded), "test")
    assert found == (figures.SENTENCE if built_in else ">>de<< A dog.")
    data.src_kind, data.source = "speech", "files"  # a name, in the folder of the run's text
    found = figures.sentence_of(SimpleNamespace(config=config, loaded=loaded), "test")
    assert found == "text/>>de<< A dog."


def test_the_sentence_is_one_of_the_built_in_corpus():
    assert figures.SENTENCE in {pair.src for pair in built_in_pairs("test", 200)}


# The page of a run -------------------------------------------------------------------------------


def test_some_lines_are_shown_evenly_spaced_and_only_what_was_set():
    lines = list(report.examples([(f"s{n}", f"r{n}", f"t{n}") for n in range(24)]))
    assert len(lines) == 8 * 4 and lines[:5] == [
        "source      s0",
        "reference   r0",
        "translation t0",
        "",
        "source      s3",
    ]
    assert report.settings(Config(seed=7)).rows == [["seed", "7", "0"]]


def evaluated(workdir: str, split: str, checkpoint: str, overrides: dict) -> SimpleNamespace:
    """In place of `evaluate`, whose own tests run it: the references as translations."""
    sides = [runs.read_lines(runs.tiny_corpus() / f"{split}.{suffix}") for suffix in ("en", "de")]
    file = Path(workdir, f"{checkpoint}.txt")
    runs.write_lines(file, sides[1])
    names = {"direction": "en→de", "bleu_signature": "its signature", "wer": None}
    scores = SimpleNamespace(sentences=12, bleu=100.0, chrf=100.0, brevity_penalty=1.0, **names)
    return SimpleNamespace(hypotheses=file, pairs=list(zip(*sides, strict=True)), scores=scores)


@pytest.mark.slow("trains a run and draws its curves")
def test_the_page_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.commands.evaluate.evaluate", evaluated)
    # Attention is drawn by the function of experiments.figures, whose own test draws it.
    monkeypatch.setattr(report, "draw_attention", lambda asked: [Text(f"drawn: {asked.workdir}")])
    workdir, out = runs.copy_of_run(tmp_path / "run"), tmp_path / "out"
    page = report.report(str(workdir), "test", "latest", out).read_text()
    drawn = {"curves.png", "bleu_by_length.png"}
    assert drawn | {"bleu_by_length.json", "table.md", "index.html"} == files(out)
    assert page.count("data:image/png;base64,") == len(drawn) and f"drawn: {workdir}" in page
    table = (out / "table.md").read_text()
    assert "| model.d_model | 16 | 512 |" in table and "translation " in table
    assert "| en→de | 12 | 100.00 | 100.00 | 1.000 |" in table
    assert f"report --workdir={workdir} --split=test --checkpoint=latest" in table
    (workdir / "corpus.sha256").write_text(IMPORTED)
    with pytest.raises(ConfigError, match="was imported and has no text of its own"):
        report.report(str(workdir), "test", "latest", tmp_path / "none")


# The demo ----------------------------------------------------------------------------------------

SMALL_DEMO = {**runs.TINY_DEMO, "train.valid_every": 3}


@pytest.fixture
def small_demo(monkeypatch, tmp_path):
    monkeypatch.setattr(built_in_corpus, "PAIRS", {"train": 60_000, "valid": 16, "test": 12})
    overrides = [f"--config.{name}={value}" for name, value in SMALL_DEMO.items()]
    workdir = f"--workdir={tmp_path / 'run'}"
    monkeypatch.setattr(sys, "argv", ["demo", workdir, *overrides])
    return tmp_path / "run"


@pytest.mark.slow("trains a demo")
def test_the_demo_prints_scores_translations_and_the_plots_paths(small_demo, capsys):
    demo.main()
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("BLEU ") and "en→de" in lines[0]
    begins = [line.split(" ")[0] for line in lines]
    assert begins.count("source") == 7 and begins.count("translation") == 7
    assert begins.count("reference") == 6
    references = {
        pair.tgt for pair in built_in_corpus.BuiltInCorpus(runs.tiny_config().data).split("test")
    }
    assert {line[12:] for line in lines if line.startswith("reference")} <= references
    for name in ("attention", "curves"):
        (line,) = [line for line in lines if line.startswith(name)]
        assert line == f"{name:<11} {small_demo / name}.png"
        assert (small_demo / f"{name}.png").read_bytes().startswith(b"\x89PNG")
