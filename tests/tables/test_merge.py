"""Archives that do not fit to what is here are refused in one line, and nothing is written."""

import dataclasses
import io
import json
import re
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from tests import tiny_runs as runs
from tests.fixtures.cases import full
from tests.tables.test_results import SCORES
from tests.tables.test_statistics import line
from transformer_jax.config.serialization import to_json
from transformer_jax.errors import DataError, RunError, UserError
from transformer_jax.runs.evaluations import evaluation_path, text_digest, write_evaluation
from transformer_jax.tables import command, merge, pack
from transformer_jax.tables.experiment import Experiment, Scale, make_jobs
from transformer_jax.tables.results import (
    Answer,
    read_answers,
    read_results,
    write_answers,
    write_results,
)
from transformer_jax.text.corpora import open_corpus

RUN = "runs/4_heads/seed-0"


@pytest.fixture
def corpus(tmp_path) -> Path:
    return Path(shutil.copytree(runs.tiny_corpus(), tmp_path / "corpus"))


@pytest.fixture
def experiment(tmp_path, corpus) -> Experiment:
    preset = runs.write_preset(tmp_path / "preset.py", {**runs.TINY, "data.path": str(corpus)})
    rows = {"base": {}, "4 heads": {"model.num_heads": 4}}
    return Experiment("mine", rows, {"small": Scale(str(preset), compared=False)})


@pytest.fixture
def archive(tmp_path, experiment) -> Path:
    """The results.tgz of both rows, as another machine would write it."""
    out = tmp_path / "there"
    jobs = make_jobs(experiment, "small", out / "runs" / "mine" / "small")
    packed = []
    for job in jobs:
        config = job.config()
        corpus = open_corpus(config.data)
        job.folder.mkdir(parents=True)
        (job.folder / "config.json").write_text(to_json(config))
        marks = map(corpus.fingerprint, ("train", "valid"))
        (job.folder / "corpus.sha256").write_text("".join(f"{mark}\n" for mark in marks))
        (job.folder / "metrics.jsonl").write_text("{}\n")
        pairs = corpus.split("test")
        settings = {
            "split": "test",
            "src_sha256": text_digest(pair.src for pair in pairs),
            "ref_sha256": text_digest(pair.tgt for pair in pairs),
            "checkpoint": str(config.train.steps),
            **dataclasses.asdict(config.decode),
        }
        path = evaluation_path(job.folder / "evaluations", "test", settings)
        write_evaluation(path, [pair.tgt for pair in pairs], settings | SCORES)
        packed.append(pack.PackedJob(job.row, 0, job.digest(), "text/corpus", "v"))
    kept = {"p": {"bleu": 0.5}}  # against a base row that may be another one here
    write_results(
        out, [line(job.row, 0, SCORES["bleu"], config_digest=job.digest(), **kept) for job in jobs]
    )
    answers = {"both": [job.digest() for job in jobs], "none": [], "another": ["1" * 12]}
    write_answers(out, [Answer(name, of, {"x": 1}) for name, of in answers.items()])
    plan = pack.Plan("mine", "small", None, "c", "there", {}, packed, [], [], "s")
    with pack.results_kept(out, jobs, plan):
        pass
    return out / pack.RESULTS


@pytest.fixture
def call(tmp_path, experiment, archive, monkeypatch):
    """Merges the archive."""

    def run(*flags: str) -> None:
        folders = [f"--out={tmp_path / 'out'}", f"--runs={tmp_path / 'runs'}"]
        monkeypatch.setattr(sys, "argv", ["mine", *folders, f"--merge={archive}", *flags])
        command.run(experiment)

    return run


def without(archive: Path, pattern: str, content: bytes | None = None) -> None:
    """Takes the one file of this pattern out of the archive, or gives it other content."""
    with tarfile.open(archive) as tar:
        members = [(one.name, tar.extractfile(one).read()) for one in tar]
    [found] = [name for name, _ in members if re.fullmatch(pattern, name)]
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in members:
            data = content if name == found else data
            if data is not None:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def test_runs_are_added_and_merged_again_when_their_line_is_removed(call, tmp_path):
    call()
    lines = read_results(tmp_path / "out")
    assert [(one.row, one.revision) for one in lines] == [("base", "there"), ("4 heads", "there")]
    assert not any(one.p for one in lines)
    assert [*read_answers(tmp_path / "out")] == ["both", "none"]
    assert len([*(tmp_path / "runs/mine/small/4_heads/seed-0").rglob("*.txt")]) == 1
    write_results(tmp_path / "out", [])
    call()
    assert len(read_results(tmp_path / "out")) == 2


def test_on_a_full_disk_all_lines_are_written_or_none(call, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", full)
        with pytest.raises(RunError, match="--merge: cannot write .*/base: .*No space left on d"):
            call()
    with monkeypatch.context() as patch:
        patch.setattr(merge, "write_results", full)
        with pytest.raises(OSError, match="No space"):
            call()
    assert not (tmp_path / "out" / "results.jsonl").exists()
    call()
    assert len(read_results(tmp_path / "out")) == 2


def test_every_flipped_bit_that_changes_the_content_is_noticed(archive, tmp_path):
    """About 1 of 1,000 bits of a compressed stream changes nothing, such as its last padding."""
    whole, to = archive.read_bytes(), tmp_path / "to"
    merge.extract_results(archive, to)
    wanted, unnoticed = runs.contents(to), 0
    for position in range(10, len(whole), 41):  # after the head, which has no content
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        archive.write_bytes(flipped)
        try:
            merge.extract_results(archive, to)
            unnoticed += 1
        except DataError as error:
            assert "results.tgz is not a whole .tar.gz" in str(error)
        assert runs.contents(to) == wanted
    assert unnoticed < 5


@pytest.mark.parametrize(
    ("pattern", "content", "message"),
    [
        (f"{RUN}/evaluations/.*.txt", None, rf"{RUN}/evaluations/.*.txt is not there"),
        (f"{RUN}/evaluations/.*.json", None, f"{RUN} has not the evaluation of test with "),
        (f"{RUN}/metrics.jsonl", None, f"{RUN}/metrics.jsonl is not there"),
        (f"{RUN}/corpus.sha256", b"", f"{RUN} had other training text"),
        ("results.jsonl", b"{\n", "results.jsonl, line 1: not JSON"),
        ("results.jsonl", b'{"row": "", "row": ""}\n', ".*line 1: cannot be read .'row' is there"),
        ("results.jsonl", b"{}\n", "results.jsonl, line 1: config_digest is missing"),
    ],
)
def test_a_damaged_archive(call, archive, tmp_path, pattern, content, message):
    """The message names the archive, not the folder into which it was extracted."""
    without(archive, pattern, content)
    with pytest.raises(UserError, match=rf"^--merge={archive}: {message}"):
        call()
    assert not (tmp_path / "out").exists() and not (tmp_path / "runs").exists()


def test_scores_that_the_evaluation_does_not_have(call, archive, tmp_path):
    [path] = (archive.parent / "runs").glob("mine/small/4_heads/seed-0/evaluations/*.json")
    scores = {**json.loads(path.read_text()), "bleu": 21.5}
    without(archive, f"{RUN}/evaluations/.*.json", json.dumps(scores).encode())
    with pytest.raises(DataError, match="has not the evaluation of test with 12.5 BLEU that"):
        call()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train.en", "training"),
        ("valid.de", "validation"),
        ("test.en", "source"),
        ("test.de", "reference"),
    ],
)
def test_a_text_that_is_another_one_here(call, corpus, tmp_path, name, kind):
    lines = runs.read_lines(corpus / name)
    runs.write_lines(corpus / name, [*lines[:-1], f"{lines[-1]} more"])
    with pytest.raises(UserError, match=f"runs/base/seed-0 had other {kind} text than data.path="):
        call()
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_run_is_here(call, tmp_path):
    folder = tmp_path / "runs" / "mine" / "small" / "4_heads" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"seed-0 is there already, and its config.json is not"):
        call()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flag", "row", "by"), [("--rows=base", "4 heads", "--rows=base"), ("--seeds=1", "base", "--s")]
)
def test_flags_that_leave_out_a_run_are_named(call, flag, row, by):
    with pytest.raises(
        UserError, match=f"results.jsonl has '{row}', seed 0, which {by}.* leaves out"
    ):
        call(flag)


def test_a_run_of_another_config_is_refused(call, tmp_path):
    with pytest.raises(UserError, match="base, seed 0 was recorded with another config"):
        call("--config.model.d_ff=16")
    assert not (tmp_path / "out").exists()
