"""Results that someone edited or that lost a file: named in one line, and never counted."""

import contextlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests import tiny_runs
from tests.tables.test_statistics import line
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import write_atomically
from transformer_jax.kinds import fits, wrong_field
from transformer_jax.reporting.page import Part, Text
from transformer_jax.runs.evaluations import text_digest
from transformer_jax.tables import command, pack, report, texts
from transformer_jax.tables.experiment import Experiment, Scale, make_jobs
from transformer_jax.tables.pace import Pace, keep_pace
from transformer_jax.tables.report import Output
from transformer_jax.tables.results import FILE, read_results, write_results
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.vocabulary import load_vocabulary
from transformer_jax.text.vocabulary_training import train_vocabulary

ROWS = {"base": {}, "wide": {"model.d_ff": 8}}
CONFIG = str(Path(__file__).parents[2] / "configs" / "demo.py")
EXPERIMENT = Experiment("edited", ROWS, {"small": Scale(CONFIG, split="valid")})
MINUTES = 3.0
SAID = ["one of the texts"] * 1_000
NOW = text_digest(SAID)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two finished rows, whose runs are gone."""
    monkeypatch.setattr(report, "translations_of", lambda _, job: (SAID, ""))
    monkeypatch.setattr(report, "references", lambda job: (SAID, SAID))
    jobs = make_jobs(EXPERIMENT, "small", tmp_path)
    kept = {"samples": [["a", "b", "c"]], "translations": SAID}
    own = [line(job.row, 0, 20.0, config_digest=job.digest(), **kept) for job in jobs]
    write_results(tmp_path, own)
    return tmp_path


@pytest.fixture
def call(folder, monkeypatch, capsys):
    """Runs the command on these results; what it printed."""

    def run(*flags: str, experiment: Experiment = EXPERIMENT) -> str:
        monkeypatch.setattr(sys, "argv", ["edited", f"--out={folder}", f"--runs={folder}", *flags])
        command.run(experiment)
        return capsys.readouterr().out

    return run


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_line_of_another_config_enters_no_table(call, folder):
    """Whatever rows and seeds are asked for."""
    base, wide = read_results(folder)
    write_results(folder, [base, wide, base._replace(seed=7, config_digest="1" * 12)])
    with pytest.raises(RunError, match="base, seed 7 was recorded with another config"):
        call("--report", "--rows=wide")


def test_the_longest_source_counts_where_it_is_given(call):
    assert "| base |  | 0 | 0 |" in call("--list")
    with pytest.raises(RunError, match="base, seed 0 was recorded with another config"):
        call("--list", "--config.decode.max_length=4")


def test_translations_that_are_too_few_are_not_compared(call, folder):
    base, wide = read_results(folder)
    write_results(folder, [base._replace(translations=SAID[:100]), wide])
    with pytest.raises(DataError, match="base, seed 0, has 100 translations of 1000 lines"):
        call("--report")


TEXTS = {"train.en": texts.TRAIN, "valid.de": texts.VALID, "test.de": texts.REFERENCES}


@pytest.mark.parametrize("known", ["record", "corpus.sha256", ""])
@pytest.mark.parametrize("changed", [*TEXTS, None])
def test_rows_of_one_table_are_trained_on_one_text(known, changed, tmp_path, monkeypatch):
    """The digest of a config has neither data.path nor the text there."""
    data = tmp_path / "data"
    shutil.copytree(tiny_runs.tiny_corpus(), data)
    values = tiny_runs.tiny_values(data__path=str(data))
    scale = Scale(str(tiny_runs.write_preset(tmp_path / "preset.py", values)))
    [job, _] = make_jobs(Experiment("t", ROWS, {"small": scale}), "small", tmp_path / "t" / "small")
    corpus = open_corpus(job.config().data)
    sums = [corpus.fingerprint("train"), corpus.fingerprint("valid")]
    sums += [text_digest(pair.tgt for pair in corpus.split("test"))] if known == "record" else []
    if known == "corpus.sha256":
        write_atomically(job.folder / known, "\n".join(sums).encode())
    kept = dict(zip(TEXTS.values(), sums, strict=True)) if known == "record" else {}
    recorded = line("base", 0, 1.0, config_digest=job.digest(), text_sha256=kept)
    write_results(tmp_path, [recorded])
    if changed:
        edit(data / changed, "e", "a")
    monkeypatch.setattr(command, "_run_missing", lambda *_: [])
    flags = {"scale": "small", "rows": "wide", "seeds": None, "overrides": {}}
    flags |= {"runs": str(tmp_path), "out": str(tmp_path)}
    is_known = changed in [*TEXTS][: len(sums)] and known
    match = (
        f"^base, seed 0 was recorded with other text: the SHA-256 sum of its {TEXTS.get(changed)}"
    )
    with pytest.raises(RunError, match=match) if is_known else contextlib.nullcontext():
        command.run(Experiment("t", ROWS, {"small": scale}), flags)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ("", None),
        ("gone", None),
        ("train.en", "other text: .* of its training split"),
        ("test.de", "other text: .* of its references"),
        ("test.en", "other text: .* of its sources"),
        ("vocabulary", "another vocabulary: .* of its vocabulary is"),
    ],
)
def test_a_finished_table_is_not_that_of_other_text(changed, match, tmp_path):
    data, own = tmp_path / "data", tmp_path / "vocabulary.model"
    shutil.copytree(tiny_runs.tiny_corpus(), data)
    shutil.copy(tiny_runs.trained_run() / "vocabulary.model", own)
    values = tiny_runs.tiny_values(data__path=str(data), vocabulary__path=str(own))
    scale = Scale(str(tiny_runs.write_preset(tmp_path / "preset.py", values)))
    table = Experiment("t", {"base": {}}, {"small": scale})
    [job] = make_jobs(table, "small", tmp_path / "t" / "small")
    sums = texts.text_sums(job.config().data, "test")
    sums[texts.VOCABULARY] = load_vocabulary(own).digest
    kept = {name: sums[name] for name in (*TEXTS.values(), texts.SOURCES, texts.VOCABULARY)}
    digest = job.digest()
    write_results(tmp_path, [line("base", 0, 1.0, config_digest=digest, text_sha256=kept)])
    if changed == "gone":
        shutil.rmtree(data)
    elif changed == "vocabulary":
        lines = tiny_runs.read_lines(tiny_runs.tiny_corpus() / "train.de")
        train_vocabulary(lines, VocabularyConfig(size=350), 0).save(own)
    elif changed:
        edit(data / changed, "e", "a")
    flags = {"scale": "small", "overrides": {}, "runs": str(tmp_path), "out": str(tmp_path)}
    match = match and f"^base, seed 0 was recorded with {match}"
    with pytest.raises(RunError, match=match) if match else contextlib.nullcontext():
        command.run(table, flags)


def test_a_picture_replaces_a_link_that_leads_nowhere(call, folder):
    (folder / "perplexity.png").symlink_to("/nowhere/x.png")
    edit(folder / FILE, '"perplexity": 5.0', '"perplexity": 6.0')
    call("--report")
    assert (folder / "perplexity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("of_base", "in_folder", "of_row", "is_tested"),
    [
        ("", "", "", True),
        (NOW, "", NOW, True),
        (NOW, NOW, "other", False),
        ("other", "", "", False),
        ("", "other", "", False),
    ],
)
def test_rows_with_other_references_have_no_p(
    of_base, in_folder, of_row, is_tested, call, folder, monkeypatch, caplog
):
    """Those of the base's scores, of the row's and those that are there now must be the same."""
    sums = {"references": of_base}
    base, wide = read_results(folder)
    write_results(folder, [base._replace(text_sha256=sums), wide])
    found = {"base": in_folder, "wide": of_row}
    monkeypatch.setattr(report, "translations_of", lambda _, job: (SAID, found[job.row]))
    call("--report")
    assert bool(read_results(folder)[1].p) == is_tested
    wrong = "no p of wide, seed 0: the references differ (SHA-256: "
    assert (wrong in caplog.text and f" other, the text now {NOW:.12}" in caplog.text) != is_tested


def test_rows_with_a_time_have_their_number_of_updates(call, folder):
    with pytest.raises(DataError, match=r"pace.csv has no line of 'base', which .*results.jsonl"):
        call("--list", f"--minutes={MINUTES}")
    for row in ROWS:
        keep_pace(
            folder / "pace.csv", Pace(row, MINUTES, 700, 0.1, 1.0, 2.0, "cpu", "2026-01-01", "")
        )
    with pytest.raises(ConfigError, match="gives each row 3 minutes: add --minutes=3, or give"):
        call("--report")
    with pytest.raises(RunError, match="It took 10 updates, not 700: if pace.csv has the number"):
        call("--report", f"--minutes={MINUTES}")
    steps = [(",700,", f",{wrong},", f"steps='{wrong}'") for wrong in ("0", "9" * 20)]
    for old, new, wrong in (*steps, (",0.1,", ",nan,", "step='nan'")):
        edit(folder / "pace.csv", old, new)
        with pytest.raises(DataError, match=f"pace.csv, line 2: .*{wrong} is not of its range"):
            call("--list", f"--minutes={MINUTES}")
        edit(folder / "pace.csv", new, old)


PLAN = {
    "experiment": "edited",
    "scale": "small",
    "minutes": None,
    "code": "c",
    "revision": "r",
    "overrides": {},
    "jobs": [{"row": "base", "seed": 0, "config": "d", "text": "t", "vocabulary": "v"}],
    "paces": [],
    "parts": ["part0"],
    "sha256": "s",
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("jobs", [{"seed": 0}], "is not the plan of a pack"),
        ("jobs", [], "plan.json has no jobs"),
        ("jobs", [{**PLAN["jobs"][0], "seed": "0"}], "seed is '0'; expected int"),
        ("overrides", ["train.steps"], "overrides is .'train.steps'.; expected dict"),
        ("paces", [{"row": "base", "minutes": 1}], "is not the plan of a pack"),
        ("minutes", "ten", "minutes is 'ten'; expected float | None"),
        ("parts", "part0", "parts is 'part0'; expected list"),
    ],
)
def test_an_edited_plan_is_no_plan(folder, call, name, value, message):
    path = folder / "pack"
    path.mkdir()
    (path / pack.PLAN).write_text(json.dumps(PLAN))
    assert pack.read_plan(path).to_json() == (json.dumps(PLAN, indent=1) + "\n").encode()
    with pytest.raises(ConfigError, match="--scale: the pack has its own"):
        call(f"--packed={path}", "--scale=paper")
    (path / pack.PLAN).write_text(json.dumps({**PLAN, name: value}))
    with pytest.raises(DataError, match=re.escape(message) if "|" in message else message):
        pack.read_plan(path)


def test_a_finding_is_a_part_of_a_page(call):
    found = EXPERIMENT._replace(findings=lambda folder, jobs: ["text"])
    with pytest.raises(ConfigError, match=r"findings gives \['text'\]; expected a list of parts"):
        call("--report", experiment=found)
    call("--report", experiment=EXPERIMENT._replace(findings=lambda folder, jobs: [Text("so")]))


def test_types_are_those_of_the_annotations():
    assert fits([Text("a")], list[Part]) and not fits(["a"], list[Part])
    assert fits(1, float) and not fits(True, float) and not fits(1.5, int)
    assert fits(None, list[str] | None) and not fits("text", list[str] | None)
    assert wrong_field(Pace("a", 1, 2, 0.1, 1, 2, "cpu", "d", "")) == ""
    assert wrong_field(Pace("a", 1, "2", 0.1, 1, 2, "cpu", "d", "")) == "steps is '2'; expected int"
    assert Output(Path("x")).paces == Path("x/pace.csv")
