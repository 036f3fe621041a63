"""What `evaluate` prints and keeps."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import tiny_runs as runs
from transformer_jax import __version__
from transformer_jax.commands.average import average
from transformer_jax.commands.evaluate import (
    _latency,
    _parts_of,
    _print_examples,
    _Text,
    _text_of_files,
)
from transformer_jax.commands.evaluate import evaluate as evaluate_command
from transformer_jax.decoding.lines import LineTranslator
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.bleu import as_dict, format_scores, score
from transformer_jax.files import read_json
from transformer_jax.reporting.provenance import revision
from transformer_jax.runs.evaluations import find_evaluation
from transformer_jax.text.corpora import open_corpus
from transformer_jax.use.loading import load_model


@pytest.fixture
def run(tmp_path) -> Path:
    return runs.copy_of_run(tmp_path / "run")


def kept(run: Path, stem: str) -> Path:
    """The only evaluation whose name begins so: its file of scores."""
    [path] = (run / "evaluations").glob(f"{stem}.*.json")
    return path


def evaluate(run: Path, capsys, *flags: str) -> str:
    assert runs.command("evaluate", f"--workdir={run}", "--beam_size=2", *flags) == 0
    return capsys.readouterr().out


def test_hypotheses_and_scores_are_kept(run, capsys):
    printed = evaluate(run, capsys)
    path = kept(run, "test.40.beam2")
    hypotheses = runs.read_lines(path.with_suffix(".txt"))
    record = json.loads(path.read_text())
    references = runs.read_lines(runs.tiny_corpus() / "test.de")
    assert len(hypotheses) == len(references) == record["sentences"] == runs.SIZES["test"]
    want = score(hypotheses, references, "en", "de")
    assert {name: record[name] for name in as_dict(want)} == as_dict(want)
    assert record["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    settings = {"checkpoint": "40", "beam_size": 2, "length_penalty": 0.6, "max_extra_length": 10}
    settings |= {"coverage_penalty": 0.0, "max_length": 64, "tokens_per_batch": 256}
    settings |= {"name": "test", "split": "test", "version": __version__, "revision": revision()}
    for side, language in (("src", "en"), ("ref", "de")):
        file = runs.tiny_corpus() / f"test.{language}"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        settings |= {f"{side}_files": [str(file)], f"{side}_sha256": digest}
    assert record | settings == record
    assert format_scores(want) in printed


def test_files_of_one_s_own_are_scored_as_the_split_of_the_same_text(run, capsys):
    corpus = runs.tiny_corpus()
    files = [f"--src={corpus}/valid.en", f"--ref={corpus}/valid.de"]
    assert evaluate(run, capsys, *files) == evaluate(run, capsys, "--split=valid")
    paths = [kept(run, stem) for stem in ("valid.en.40.beam2", "valid.40.beam2")]
    by_file, by_split = (runs.read_lines(path.with_suffix(".txt")) for path in paths)
    assert by_file == by_split and len(by_split) == runs.SIZES["valid"]


def test_files_in_the_other_direction_are_told_by_their_language(run, capsys, caplog, monkeypatch):
    english, german = (f"{runs.tiny_corpus()}/valid.{own}" for own in ("en", "de"))
    found = [SimpleNamespace(text=line) for line in runs.read_lines(Path(german))]
    monkeypatch.setattr(LineTranslator, "shared", lambda *_: [[best] for best in found[::-1]])
    evaluate(run, capsys, f"--src={english}", f"--ref={german}")
    assert "look like the sources" not in caplog.text
    evaluate(run, capsys, f"--src={german}", f"--ref={english}")
    assert (
        "valid.de: most translations look like the sources, not like the references; are the "
        "sources in en, and the references in de?" in caplog.text
    )


def test_a_split_of_training_whose_text_has_changed_is_told(run, capsys, caplog, tmp_path):
    moved = shutil.copytree(runs.tiny_corpus(), tmp_path / "corpus")
    for changes, is_told in (("", False), (" and more", True)):
        line, *lines = runs.read_lines(moved / "valid.en")
        runs.write_lines(moved / "valid.en", [line + changes, *lines])
        evaluate(run, capsys, "--split=valid", f"--config.data.path={moved}")
        assert ("the split valid is not that of" in caplog.text) == is_told
    caplog.clear()
    evaluate(
        run, capsys, "--split=valid", f"--config.data.path={moved}", "--config.data.valid=test"
    )
    assert "the split valid" not in caplog.text


def test_a_stem_is_a_split_and_a_blank_source_is_a_line_like_any_other(run, capsys, tmp_path):
    source = runs.read_lines(runs.tiny_corpus() / "test.en")[:3]
    src = runs.write_lines(tmp_path / "own.en", [source[0], " ", *source[1:]])
    ref = runs.write_lines(tmp_path / "own.de", "abcd")
    evaluate(run, capsys, f"--src={src}", f"--ref={ref}")
    path = kept(run, "own.en.40.beam2")
    record = read_json(path)
    assert (record["split"], record["ref_files"]) == (None, [str(ref)])
    with_blank = runs.read_lines(path.with_suffix(".txt"))
    assert len(with_blank) == 4 and with_blank[1] == ""
    evaluate(run, capsys, "--split=test")
    of_split = runs.read_lines(kept(run, "test.40.beam2").with_suffix(".txt"))
    assert with_blank[:1] + with_blank[2:] == of_split[:3]


def test_other_checkpoints_get_other_files(run, capsys):
    average(str(run), last=2)
    evaluate(run, capsys, "--checkpoint=average")
    evaluate(run, capsys, "--checkpoint=35", "--config.decode.length_penalty=0.1")
    for checkpoint, penalty in (("40-last2", 0.6), ("35", 0.1)):
        record = read_json(kept(run, f"test.{checkpoint}.beam2"))
        assert (record["checkpoint"], record["length_penalty"]) == (checkpoint, penalty)


def test_lines_that_do_not_belong_together_are_named(run, capsys, tmp_path, caplog):
    src, ref = (runs.read_lines(runs.tiny_corpus() / f"train.{x}")[:120] for x in ("en", "de"))
    flags = [f"--src={runs.write_lines(tmp_path / 'a.en', src)}", "--config.decode.max_length=4"]
    evaluate(run, capsys, *flags, f"--ref={runs.write_lines(tmp_path / 'a.de', ref)}")
    assert "belong together" not in caplog.text
    evaluate(run, capsys, *flags, f"--ref={runs.write_lines(tmp_path / 'b.de', [*ref[1:], 'x'])}")
    assert "a.en and b.de: the lengths of both sides do not correlate" in caplog.text


def test_several_references_are_all_used(run, capsys, tmp_path, caplog):
    corpus = runs.tiny_corpus()
    short = runs.write_lines(tmp_path / "short.de", ["x"] * (runs.SIZES["valid"] - 1))
    files = [f"--src={corpus}/valid.en", f"--ref={corpus}/valid.de"]
    printed = evaluate(run, capsys, *files, f"--ref={corpus}/valid.en")
    assert printed.count("nrefs:2|") == 4
    equal = [line for line in caplog.messages if "the source is the target" in line]
    assert equal == ["valid.en: in 24 of 24 pairs the source is the target"]
    with pytest.raises(ConfigError, match="a file of references is there twice"):
        _text_of_files(f"{corpus}/valid.en", [f"{corpus}/valid.de", f"{corpus}/./valid.de"])
    lines = runs.read_lines(corpus / "valid.de")
    blank = runs.write_lines(tmp_path / "blank.de", ["", " ", *lines[2:]])
    assert "references are blank" not in caplog.text
    _text_of_files(f"{corpus}/valid.en", [str(blank)])
    assert f"{blank}: 2 of {len(lines)} references are blank" in caplog.text
    given = {"src": f"{corpus}/valid.en", "ref": [f"{corpus}/valid.de"]}
    with pytest.raises(ConfigError, match="data.test changes nothing with --src=FILE"):
        evaluate_command(str(run), **given, overrides={"data.test": ()})
    with pytest.raises(ConfigError, match="data.test changes nothing with --split=valid"):
        evaluate_command(str(run), split="valid", overrides={"data.test": ()})
    given["ref"].append(str(short))
    with pytest.raises(DataError, match="has 24 lines and .*short.de has 23"):
        evaluate_command(str(run), **given)


def test_files_are_read_before_the_model(tmp_path):
    """There is no run: the message that comes first is about the text."""
    source = tmp_path / "missing.en"
    with pytest.raises(DataError, match=re.escape(str(source))):
        evaluate_command(str(tmp_path / "no run"), src=str(source), ref=[str(tmp_path / "x.de")])


@pytest.mark.slow("trains a run")
def test_a_model_that_waits_has_a_latency(tmp_path, caplog):
    workdir = tmp_path / "run"
    changes = {"model__wait_k": 2, "model__wait_k_max": 3}
    assert runs.train(workdir, train__steps=2, **changes) == 0
    later = {"decode.wait_k": 9}
    with caplog.at_level("INFO"):
        found = evaluate_command(str(workdir), split="test", beam_size=1, overrides=later)
    latency = read_json(found.hypotheses.with_suffix(".json"))["latency"]
    assert 0 < latency["average_proportion"] <= 1 and latency["differentiable"] >= 9
    assert f"AL {latency['average_lagging']:.2f}" in caplog.text


def test_latency_is_that_of_all_members_over_whole_lines(run):
    """The member that reads most counts; lines of the target are longer than a source may be."""

    def latency_of(*waits, outputs, references):
        loaded = load_model(str(run), overrides={"decode.max_length": 4})
        translator = loaded.line_translator()
        members = [SimpleNamespace(config=SimpleNamespace(wait_k=k)) for k in waits]
        translator.translator.model = SimpleNamespace(members=members, sources=1)
        texts = ["x" * 9] * len(outputs), outputs, references
        found = _latency(loaded, translator, *texts)
        encode = loaded.vocabulary.target.encode_lines
        lengths = [[len(ids) + 1 for ids in encode(lines)] for lines in (outputs, references)]
        return found.get("latency"), lengths

    lines = ["The old man sleeps in the garden.", "A dog."]
    references = ["Der alte Mann schläft im Garten.", ""]
    assert latency_of(2, None, outputs=lines, references=references)[0] is None
    for waits in ((2, 3), (3, 2)):
        found, (of_output, of_reference) = latency_of(*waits, outputs=lines, references=references)
        assert min(of_output) > 4 and of_reference[1] == 1
        delays = [[min(3 + t, 4) for t in range(length)] for length in of_output]
        shares = [sum(d) / (4 * len(d)) for d in delays]
        assert found["average_proportion"] == pytest.approx(sum(shares) / 2)
        shares = [sum(d) / (4 * n) for d, n in zip(delays, of_reference, strict=True)]
        assert found["average_proportion_of_reference"] == pytest.approx(sum(shares) / 2)


def test_each_of_several_test_sets_is_scored_as_if_alone_and_then_all_together(
    run, capsys, monkeypatch
):
    """`valid` and `test` are names of splits too; here they are stems of data.test."""

    def echo(self, lines):  # the tiny run gives too many lines the same translation
        return [[SimpleNamespace(text=line)] for line in lines]

    monkeypatch.setattr(LineTranslator, "shared", echo)
    alone = {name: evaluate(run, capsys, f"--split={name}") for name in ("valid", "test")}
    assert alone["valid"] != alone["test"]
    whole = {path.name: path.read_text() for path in (run / "evaluations").glob("*.txt")}
    shutil.rmtree(run / "evaluations")
    keys = {"data.test": ("valid", "test")}
    found = evaluate_command(str(run), beam_size=2, overrides=keys)
    printed = capsys.readouterr().out
    assert list(found.parts) == ["valid", "test"]
    sizes = {name: len(part.pairs) for name, part in found.parts.items()}
    assert sizes == {name: runs.SIZES[name] for name in alone} and len(found.pairs) == 36
    assert {part.hypotheses.name for part in found.parts.values()} == whole.keys()
    for part in found.parts.values():
        assert part.hypotheses.read_text() == whole[part.hypotheses.name]
    together = found.hypotheses.read_text()
    assert together == "".join(part.hypotheses.read_text() for part in found.parts.values())
    blocks = [f"{name}, {sizes[name]} lines\n{alone[name]}" for name in alone]
    assert printed.startswith("".join([*blocks, "test, 36 lines\n"]))
    references = [pair.tgt for pair in found.pairs]
    assert found.scores == score(runs.read_lines(found.hypotheses), references, "en", "de")
    decode = {"beam_size": 2, "length_penalty": 0.6}
    newest = find_evaluation(run / "evaluations", "test", "40", decode)
    assert newest == found.hypotheses.with_suffix(".json")


def test_the_built_in_corpus_has_one_test_text_whatever_data_test_says():
    config = runs.tiny_config(data__source="grammar", data__test=("a", "b"))
    pairs = open_corpus(config.data).split("test")
    assert _parts_of(config, _Text("test", "test", [pairs])) == []


@pytest.mark.parametrize(("examples", "lines"), [(0, []), (1, [0]), (7, [0, 2, 3, 4, 6, 8, 9])])
def test_so_many_examples_are_printed_as_were_asked_for(examples, lines, capsys):
    _print_examples([(f"s{n}", f"r{n}") for n in range(10)], ["t"] * 10, examples)
    assert re.findall(r"source      s(.)", capsys.readouterr().out) == [str(n) for n in lines]
