"""What `evaluate` prints and keeps."""

import json
from pathlib import Path

import pytest

from tests import tiny_runs as runs
from transformer_jax.commands.average import average
from transformer_jax.commands.evaluate import evaluate as evaluate_command
from transformer_jax.errors import DataError
from transformer_jax.evaluation.bleu import score


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return runs.copy_of_run(tmp_path_factory.mktemp("evaluate") / "run")


def evaluate(run: Path, capsys, *flags: str) -> str:
    assert runs.command("evaluate", f"--workdir={run}", "--beam_size=2", *flags) == 0
    return capsys.readouterr().out


def test_hypotheses_and_scores_are_kept(run, capsys):
    printed = evaluate(run, capsys)
    kept = run / "evaluations" / "test.40.beam2"
    hypotheses = runs.read_lines(kept.with_name(f"{kept.name}.txt"))
    record = json.loads(kept.with_name(f"{kept.name}.json").read_text())
    references = runs.read_lines(runs.tiny_corpus() / "test.de")
    assert len(hypotheses) == len(references) == record["sentences"] == runs.SIZES["test"]
    want = score(hypotheses, references, "en", "de")
    assert {name: record[name] for name in want._fields} == want._asdict()
    assert record["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    settings = {"checkpoint": "40", "beam_size": 2, "length_penalty": 0.6, "max_extra_length": 10}
    settings |= {"coverage_penalty": 0.0}
    assert record | settings | {"name": "test"} == record
    for words in (
        f"BLEU       {want.bleu:6.2f}  en→de  {want.bleu_signature}",
        "paper BLEU",
        "chrF2",
    ):
        assert words in printed


def test_files_of_one_s_own_are_scored_as_the_split_of_the_same_text(run, capsys):
    corpus = runs.tiny_corpus()
    files = [f"--src={corpus}/valid.en", f"--ref={corpus}/valid.de"]
    assert evaluate(run, capsys, *files) == evaluate(run, capsys, "--split=valid")
    names = ("valid.en.40.beam2.txt", "valid.40.beam2.txt")
    by_file, by_split = (runs.read_lines(run / "evaluations" / name) for name in names)
    assert by_file == by_split and len(by_split) == runs.SIZES["valid"]


def test_a_stem_is_a_split_and_a_blank_source_is_a_line_like_any_other(run, capsys, tmp_path):
    source = runs.read_lines(runs.tiny_corpus() / "test.en")[:3]
    src = runs.write_lines(tmp_path / "own.en", [source[0], " ", *source[1:]])
    ref = runs.write_lines(tmp_path / "own.de", ["a", "b", "c", "d"])
    evaluate(run, capsys, f"--src={src}", f"--ref={ref}")
    with_blank = runs.read_lines(run / "evaluations" / "own.en.40.beam2.txt")
    assert len(with_blank) == 4 and with_blank[1] == ""
    evaluate(run, capsys, "--split=test")
    assert (
        with_blank[:1] + with_blank[2:]
        == runs.read_lines(run / "evaluations" / "test.40.beam2.txt")[:3]
    )


def test_other_checkpoints_get_other_files(run, capsys):
    average(str(run), last=2)
    evaluate(run, capsys, "--checkpoint=average")
    evaluate(run, capsys, "--checkpoint=35")
    names = {path.name for path in (run / "evaluations").iterdir()}
    assert {"test.40-last2.beam2.json", "test.35.beam2.json"} <= names
    record = json.loads((run / "evaluations" / "test.40-last2.beam2.json").read_text())
    assert record["checkpoint"] == "40-last2"


def test_several_references_are_all_used(run, capsys, tmp_path):
    corpus = runs.tiny_corpus()
    short = runs.write_lines(tmp_path / "short.de", ["x"] * (runs.SIZES["valid"] - 1))
    files = [f"--src={corpus}/valid.en", f"--ref={corpus}/valid.de"]
    printed = evaluate(run, capsys, *files, f"--ref={corpus}/valid.en")
    assert printed.count("nrefs:2|") == 3
    with pytest.raises(DataError, match="has 24 lines and .*short.de has 23"):
        evaluate_command(str(run), src=f"{corpus}/valid.en", ref=[f"{corpus}/valid.de", str(short)])


def test_search_and_data_of_the_run_can_be_overridden(run, tmp_path):
    """The run's data.path has no file of this name."""
    for suffix in ("en", "de"):
        lines = runs.read_lines(runs.tiny_corpus() / f"valid.{suffix}")[:2]
        runs.write_lines(tmp_path / f"moved.{suffix}", lines)
    keys = {"data.path": str(tmp_path), "data.test": ("moved",), "decode.length_penalty": 0.1}
    result = evaluate_command(str(run), beam_size=1, overrides=keys)
    assert [pair.tgt for pair in result.pairs] == runs.read_lines(tmp_path / "moved.de")
    record = json.loads(result.hypotheses.with_suffix(".json").read_text())
    assert (record["length_penalty"], record["beam_size"]) == (0.1, 1)
