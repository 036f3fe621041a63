"""The `import` command, and what a run that it made can do: translate, score, go on training."""

import functools
import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.commands.test_translate import answers
from tests.interop import marian_by_hand as marian
from tests.interop.test_huggingface import ONE, write_folder
from transformer_jax.commands.import_model import write_run
from transformer_jax.interop.marian import read_vocabulary_yml
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.vocabulary import EOS
from transformer_jax.use.loading import load_model


@functools.cache
def vocabularies() -> tuple[bytes, bytes]:
    lines = (runs.read_lines(runs.tiny_corpus() / f"train.{side}") for side in ("en", "de"))
    source, target = (marian.train_spm(one, 160) for one in lines)
    return source, target


TWO = {**marian.TINY, "tied-embeddings-all": False, "tied-embeddings": True}
OPTIONS = {"one": marian.TINY, "two": TWO}  # by the number of vocabularies


@functools.cache
def opus_folder(kind: str) -> Path:
    """A random Marian model with pieces of the tiny corpus.

    With two vocabularies they have other sizes, and each side has a matrix of its own.
    """
    tables = [[">>deu<<", *marian.pieces_of(*vocabularies())]]
    if kind == "two":
        source, target = map(marian.pieces_of, vocabularies())
        tables = [[">>deu<<", *source[1:60], "</s>"], target]
    options = OPTIONS[kind]
    arrays = marian.random_arrays(options, len(tables[-1]), src_vocabulary=len(tables[0]))
    folder = Path(runs.scratch().name) / f"opus_{kind}"
    return marian.write_folder(folder, arrays, options, vocabularies(), *tables)


@functools.cache
def imported(kind: str) -> Path:
    """A run that the command has made of it."""
    workdir = Path(runs.scratch().name) / f"imported_{kind}"
    flags = (f"--from={opus_folder(kind)}", f"--workdir={workdir}", "--src=en", "--tgt=de")
    assert runs.command("import", *flags) == 0
    return workdir


@pytest.mark.slow("compiles imported models")
@pytest.mark.parametrize("kind", ["one", "two"])
def test_scores_of_translations_are_those_of_marian_s_formula(kind):
    """From a line of text to its score: subwords, search, penalty and weights together."""
    source = runs.read_lines(runs.tiny_corpus() / "test.en")[:3] + [">>deu<< a dog"]
    folder, run = opus_folder(kind), imported(kind)
    loaded = load_model(str(run))
    assert loaded.config.decode.beam_size == 3
    lines = loaded.line_translator()
    arrays = marian.arrays_of(folder)
    files = sorted(folder.glob("*.vocab.yml"))
    theirs = [read_vocabulary_yml(file) for file in (files[0], files[-1])]
    encoded = lines.encode(source)
    for ids, (best,) in zip(encoded, loaded.translator.translate(encoded), strict=True):
        own = loaded.vocabulary.pieces(ids), loaded.vocabulary.target.pieces(best.ids)
        src, tgt = (
            [table.index(piece) for piece in pieces]
            for table, pieces in zip(theirs, own, strict=True)
        )
        assert best.ids[-1] == EOS and not {0, 2, 3} & set(best.ids.tolist())
        logits = marian.logits_by_hand(arrays, OPTIONS[kind], src, tgt)
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        want = log_probs[np.arange(len(tgt)), tgt].sum()
        assert best.log_prob == pytest.approx(want, rel=1e-5)
        assert best.score == pytest.approx(want / len(tgt), rel=1e-5)  # normalize: 1
    assert theirs[0][0] == ">>deu<<" in loaded.vocabulary.pieces(encoded[-1])
    scored = answers(source, workdir=run, beam_size=None, scores=True)
    assert [float(line.split("\t")[0]) for line in scored] == pytest.approx(
        [best.score for (best,) in loaded.translator.translate(encoded)], abs=1e-5
    )


def test_ctranslate2_s_own_converter_gives_the_same_log_probabilities(tmp_path):
    """With Marian's wavelengths, which it takes from an array `Wpos`, and Marian's epsilon."""
    engine = pytest.importorskip("ctranslate2")
    arrays = marian.arrays_of(opus_folder("one"))
    table = marian.positions(256, marian.TINY["dim-emb"]).astype(np.float32)
    np.savez(tmp_path / "model.npz", **arrays, Wpos=table)
    vocabulary = str(opus_folder("one") / "opus.vocab.yml")
    converter = engine.converters.MarianConverter(str(tmp_path / "model.npz"), [vocabulary] * 2)
    folder = converter.convert(str(tmp_path / "converted"))
    settings = Path(folder) / "config.json"  # its converter leaves the epsilon at 1e-5
    values = {**json.loads(settings.read_text()), "layer_norm_epsilon": marian.EPSILON}
    settings.write_text(json.dumps(values))
    loaded = load_model(str(imported("one")), beam_size=1)
    encoded = loaded.line_translator().encode(runs.read_lines(runs.tiny_corpus() / "test.en")[:4])
    found = [best for (best,) in loaded.translator.translate(encoded)]
    sides = [
        [loaded.vocabulary.pieces(ids[:-1]) for ids in side]
        for side in (encoded, [best.ids for best in found])
    ]
    theirs = engine.Translator(folder, "cpu", intra_threads=1).score_batch(*sides)
    for scored, best in zip(theirs, found, strict=True):
        assert sum(scored.log_probs) == pytest.approx(best.log_prob, rel=1e-5)


@pytest.mark.slow("compiles an imported model")
def test_an_imported_run_is_evaluated_on_text_that_is_named(capsys):
    run, path = imported("one"), f"--config.data.path={runs.tiny_corpus()}"
    flags = (f"--workdir={run}", "--split=test", "--beam_size=1", path)
    assert runs.command("evaluate", *flags) == 0
    assert "en→de" in capsys.readouterr().out
    [written] = (run / "evaluations").glob("test.0.*.json")
    assert json.loads(written.read_text())["checkpoint"] == "0"


def test_an_imported_run_is_not_trained_on_and_says_what_is(capsys):
    run, path = imported("one"), f"--config.data.path={runs.tiny_corpus()}"
    before = runs.contents(run)
    for flags in ([], [path], [path, "--dry_run"], ["--config=demo", "--dry_run"]):
        assert runs.command("train", f"--workdir={run}", *flags) == 2
        assert f"--config=finetune:{run} --workdir=OTHER" in capsys.readouterr().err
    assert runs.contents(run) == before


def finetune(workdir: Path, origin: Path, **changes) -> int:
    values = {"data.path": runs.tiny_corpus(), "data.max_length": 48, "train.row_length": 48}
    values |= {"train.tokens_per_batch": 400, "train.steps": 12, "train.log_every": 3}
    values |= {"train.warmup_steps": 2, "train.decay_steps": 12, "model.dropout": 0.0, **changes}
    overrides = [f"--config.{name}={value}" for name, value in values.items()]
    config = f"--config=finetune:{origin}"
    return runs.command("train", config, f"--workdir={workdir}", *overrides)


@pytest.mark.slow("trains runs")
@pytest.mark.parametrize("kind", ["one", "two"])
def test_training_goes_on_from_the_imported_weights(kind, tmp_path):
    origin = imported(kind)
    assert finetune(tmp_path / "run", origin, **{"train.peak_learning_rate": 3e-3}) == 0
    records = read_metrics(tmp_path / "run")
    losses = [one["nats_per_token"] for one in records if "nats_per_token" in one]
    assert losses[-1] < losses[0] - 0.3, losses
    ours, theirs = (RunFolder(path).vocabulary_file for path in (tmp_path / "run", origin))
    assert ours.read_bytes() == theirs.read_bytes()
    assert len(answers(["a dog"], workdir=tmp_path / "run", beam_size=None)) == 1


def test_a_flag_comes_before_the_language_that_the_tokenizer_names(tmp_path, caplog):
    (tmp_path / "folder").mkdir()
    folder = write_folder(tmp_path / "folder", ONE)
    arguments = (f"--from={folder}", f"--workdir={tmp_path / 'run'}", "--src=en")
    assert runs.command("import", *arguments) == 0
    data = RunFolder(tmp_path / "run").read_config().data
    assert (data.src, data.tgt) == ("en", "deu")
    assert "--src=en: the folder says eng" in caplog.text and "--tgt" not in caplog.text


def test_a_run_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    """A command that was killed leaves a folder of a temporary name, which the next one removes."""
    loaded, origin = load_model(str(imported("one"))), RunFolder(imported("one"))
    run = RunFolder(tmp_path / "run")
    written = run, origin.read_config(), loaded.vocabulary, loaded.translator.params
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "seal", lambda run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_run(*written)
        assert not run.path.exists()
        run.path.mkdir()
        with pytest.raises(ZeroDivisionError):
            write_run(*written)
        assert run.path.is_dir() and not [*run.path.iterdir()]
    (run.path / ".killed.tmp").mkdir()
    write_run(*written)
    files = {"checkpoints", *(path.name for path in origin.path.iterdir() if path.is_file())}
    assert {path.name for path in run.path.iterdir()} == files
    assert load_model(str(run.path)).config == loaded.config


def test_an_imported_run_has_nothing_to_average(capsys):
    assert runs.command("average", f"--workdir={imported('one')}") == 2
    assert "has one checkpoint only: it was not trained here" in capsys.readouterr().err


def test_the_codes_of_target_languages_are_named(tmp_path, caplog):
    flags = (f"--from={opus_folder('one')}", f"--workdir={tmp_path / 'run'}", "--src=en")
    assert runs.command("import", *flags, "--tgt=de") == 0
    assert "the code of the target language: >>deu<<" in caplog.text


def test_an_export_of_ours_without_separate_weights_is_named(tmp_path, capsys):
    for name in ("search.py", "weights.npz"):
        (tmp_path / name).touch()
    assert runs.command("import", f"--from={tmp_path}", f"--workdir={tmp_path / 'run'}") == 2
    assert "an export of this package to StableHLO" in capsys.readouterr().err


def test_a_name_that_is_no_folder_is_asked_of_the_hub(tmp_path, monkeypatch, capsys):
    asked = []

    def download(name, allow_patterns):
        asked.append((name, any(fnmatch("pytorch_model.bin", one) for one in allow_patterns)))
        raise OSError("no\nnetwork")

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    name = "Helsinki-NLP/opus-mt-en-de"
    flags = [f"--from={name}", f"--workdir={tmp_path / 'run'}"]
    assert runs.command("import", *flags) == 2
    assert "pip install huggingface_hub" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    assert runs.command("import", *flags) == 2
    assert "the hub does not give it: OSError: no network" in capsys.readouterr().err
    assert asked == [(name, False)]  # nothing that would have to be unpickled
    found = SimpleNamespace(snapshot_download=lambda *_, **__: str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", found)
    (tmp_path / "cache").mkdir()
    assert runs.command("import", *flags, "--src=en", "--tgt=de") == 2
    assert f"{tmp_path / 'cache'}" in capsys.readouterr().err  # it has no model
