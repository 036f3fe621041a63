"""A table's runs on another machine and back, and the updates that fit into a time."""

import gzip
import json
import shlex
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from experiments import sweep
from tests import tiny_runs as runs
from transformer_jax.config.changes import with_values
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import write_csv
from transformer_jax.tables import command, launch, merge, pace, pack
from transformer_jax.tables.collect import counts
from transformer_jax.tables.experiment import Experiment, Job, Scale, make_jobs
from transformer_jax.tables.pace import Pace, keep_pace, read_paces, with_pace, with_paces
from transformer_jax.tables.report import Output
from transformer_jax.tables.results import Answer, read_answers, read_results, write_answers
from transformer_jax.text.vocabulary import load_vocabulary
from transformer_jax.training.cost import parameter_count
from transformer_jax.training.timing import Timing

MINUTES = 0.01
LINEAR = {"train.schedule": "linear", "train.warmup_steps": 2, "train.decay_steps": 40}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """The tiny corpus with two test sets, `test` and `other`."""
    folder = Path(shutil.copytree(runs.tiny_corpus(), tmp_path_factory.mktemp("own") / "corpus"))
    for side in ("en", "de"):
        runs.write_lines(folder / f"other.{side}", runs.read_lines(folder / f"valid.{side}")[:4])
    return folder


@pytest.fixture(scope="module")
def experiment(corpus, tmp_path_factory) -> Experiment:
    """Two rows of a tiny model."""
    preset = runs.write_preset(tmp_path_factory.mktemp("preset") / "preset.py", runs.TINY)
    keys = {"data.path": str(corpus), "data.test": ("test", "other"), "train.checkpoint_every": 10}
    scale = Scale(str(preset), keys, average=1, minutes=MINUTES)
    rows: dict[str, dict[str, Any]] = {"base": {}, "linear": LINEAR}
    prepare = (corpus / "train.en").stat  # which fails where the pack alone has the text
    return Experiment("tiny", rows, {"small": scale}, findings=asked, prepare=prepare)


def asked(folder, jobs):
    """Asks runs a question where they were trained."""
    if folder.parent.name == "there":
        own = [job.digest() for job in jobs if job.row == "linear"]
        write_answers(folder, [Answer("asked there", own, {})])
    return []


def in_process(jobs, done, processes=1, commands=launch.commands_of):
    """What `run_here` does, without processes of their own."""
    for job in jobs:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        for module, *arguments in commands(job):
            if module == launch.PACKAGE:
                assert runs.command(*arguments) == 0
            else:
                assert module == "transformer_jax.tables.pace"
                pace.main(arguments)
        done(job, "")


@pytest.fixture
def call(monkeypatch, experiment, capsys):
    """Runs the experiment's command with results and runs in a folder; what it printed."""
    monkeypatch.setattr(command, "run_here", in_process)
    monkeypatch.setattr(pace, "SECONDS", 0.1)
    measure = pace.measure_run

    def measured(config):
        """Times the run, but says what no machine changes: 30 updates in MINUTES."""
        found = measure(config)
        assert 0 < found.step < 5 and 0 < found.check < found.first_check
        return Timing(0.01, 0.1, 0.1, found.device)

    monkeypatch.setattr(pace, "measure_run", measured)
    monkeypatch.setattr(pack, "EVERY", 0.05)

    def run(folder: Path, *flags: str) -> str:
        folders = [f"--out={folder / 'out'}", f"--runs={folder / 'runs'}"]
        monkeypatch.setattr(sys, "argv", ["tiny", *folders, *flags])
        capsys.readouterr()
        command.run(experiment)
        return capsys.readouterr().out

    return run


@pytest.mark.slow("trains a row twice")
def test_a_row_runs_elsewhere_and_its_results_come_back(call, tmp_path, monkeypatch, corpus):
    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.setattr(pack, "PART_BYTES", 8_000)
    printed = call(here, "--rows=linear", f"--pack={tmp_path / 'pack'}")
    plan = pack.read_plan(tmp_path / "pack")
    assert f"{len(plan.parts)} parts for linear (seed 0)" in printed and len(plan.parts) > 2
    assert all((tmp_path / "pack" / name).stat().st_size <= 8_000 for name in plan.parts)
    corpus.rename(tmp_path / "away")  # only the pack has the text now
    try:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("transformer_jax.tables.collect.revision", lambda: "unknown")
            call(there, f"--packed={tmp_path / 'pack'}")
    finally:
        (tmp_path / "away").rename(corpus)
    file = there / "out" / pack.RESULTS
    names = tarfile.open(file).getnames()
    call(there, f"--packed={tmp_path / 'pack'}")  # as after a stop: the finished run stays in it
    assert tarfile.open(file).getnames()[: len(names)] == names
    assert not [name for name in names if "checkpoints" in name]

    measured = Pace("linear", MINUTES, 77, 0.1, 1.0, 2.0, "another", "2026-11-27", "")
    keep_pace(here / "out" / "pace.csv", measured)
    with pytest.raises(RunError, match=r"linear, seed 0: .*pace.csv has another number of updates"):
        call(here, f"--merge={file}")
    other = measured._replace(row="base", device="9 x card")
    # An earlier version wrote no digest of the config.
    write_csv(here / "out" / "pace.csv", Pace._fields[:-1], [other[:-1]])
    before = runs.contents(here)
    with pytest.raises(RunError, match="'linear' has .* and 'base' had 9 x card"):
        call(here, f"--merge={file}")
    assert runs.contents(here) == before
    (here / "out" / "pace.csv").unlink()

    assert "| linear | 1 |" in call(here, f"--merge={file}")
    [line] = read_results(here / "out")
    [theirs] = read_results(there / "out")
    assert line == theirs._replace(revision=plan.revision) != theirs
    known = read_paces(here / "out" / "pace.csv", MINUTES)["linear"]
    assert line.steps == known.steps == 30 and known.seconds_per_step == 0.01
    config = json.loads((here / "runs/tiny/small/linear/seed-0/config.json").read_text())
    assert config["train"]["decay_steps"] == config["train"]["steps"] == line.steps
    assert [*read_answers(here / "out")] == ["asked there"]
    assert line.samples and set(line.sets) == {"test", "other"}
    each = [line.sets[name]["chrf"] for name in ("test", "other")]
    assert line.chrf not in each and min(each) < line.chrf < max(each)
    before = runs.contents(here / "out")
    with pytest.raises(RunError, match=r"linear, seed 0 is in .*results.jsonl already"):
        call(here, f"--merge={file}")
    assert runs.contents(here / "out") == before

    with pytest.raises(ConfigError, match="every run that you ask for is recorded already"):
        call(here, "--rows=linear", f"--pack={tmp_path / 'none'}")
    # A second seed takes as many updates, without another measurement.
    monkeypatch.setattr(pace, "measure_run", None)
    call(here, "--rows=linear", "--seeds=1", f"--pack={tmp_path / 'second'}")
    again = pack.read_plan(tmp_path / "second")
    assert again.paces == [known]
    elsewhere = tmp_path / "elsewhere"
    assert "--config.train.steps=30" in call(
        elsewhere, f"--packed={tmp_path / 'second'}", "--print"
    )


def test_a_pace_of_another_config_or_device_is_refused(experiment, tmp_path, monkeypatch):
    [job, other] = make_jobs(experiment, "small", tmp_path, ("linear", "base"))
    own = Pace("linear", MINUTES, 77, 0.1, 1.0, 2.0, "2 x cpu", "2026-11-30", pace._timed(job))
    output = Output(tmp_path)
    keep_pace(output.paces, own)
    [timed] = with_paces([job], output.paces, MINUTES)
    assert timed.overrides["train.steps"] == 77
    changed = job._replace(overrides={**job.overrides, "model.d_ff": 24})
    with pytest.raises(ConfigError, match="'linear' were measured for another config"):
        with_paces([changed], output.paces, MINUTES)
    found = own._replace(row="base", device="1 x cpu", config=pace._timed(other))
    monkeypatch.setattr(command, "pace_of", lambda job, minutes: found)
    monkeypatch.setattr(command, "run_here", lambda jobs, done, *_: [done(*jobs, "")])
    with pytest.raises(RunError, match="'base' has 1 x cpu, and 'linear' had 2 x cpu"):
        command._paced([other], {"minutes": MINUTES, "jobs": 2}, output)


def test_rows_with_a_time_are_measured_before_they_are_submitted(call, tmp_path):
    with pytest.raises(ConfigError, match=r"slurm: .*pace.csv has no number of updates for 'base'"):
        call(tmp_path, "--rows=base", "--launcher=slurm")


def test_a_pack_keeps_the_keys_that_it_was_made_with(call, tmp_path):
    keys = ("--config.model.d_ff=16", "--config.data.test=test")
    call(tmp_path, "--rows=base", f"--pack={tmp_path / 'pack'}", *keys)
    listed = call(tmp_path, f"--packed={tmp_path / 'pack'}", "--print")
    assert "--config.model.d_ff=16" in listed and "--config.data.test=(" in listed
    assert "other" not in listed
    assert f"its updates in {MINUTES:g} minutes are measured first" in listed
    predicted = call(tmp_path, "--dry_run")
    assert predicted.count(f"| as many as fit | {MINUTES:.1f} |") == 2
    empty = tmp_path / "empty.tgz"
    tarfile.open(empty, "w:gz").close()
    with pytest.raises(DataError, match="empty.tgz is not a results.tgz: it has no plan.json"):
        call(tmp_path, f"--merge={empty}")


def test_a_given_vocabulary_is_packed_and_counted(call, tmp_path, experiment):
    own = runs.trained_run() / "vocabulary.model"
    keys = (f"--config.vocabulary.path={own}", "--config.vocabulary.size=350")
    call(tmp_path, "--rows=base", f"--pack={tmp_path / 'pack'}", *keys)
    [job] = pack.read_plan(tmp_path / "pack").jobs
    vocabulary = load_vocabulary(own)
    assert job.vocabulary == f"vocabulary/{vocabulary.digest[:12]}.model"
    changes = {"vocabulary.path": str(own), "vocabulary.size": 350}
    [row] = make_jobs(experiment, "small", tmp_path, ("base",), (), changes)
    size = vocabulary.size
    assert size != 350 and counts(row.config())[0] == parameter_count(row.config().model, size)
    [gone] = make_jobs(
        experiment, "small", tmp_path, ("base",), (), {**changes, "vocabulary.path": "/none"}
    )
    assert counts(gone.config())[0] == parameter_count(row.config().model, 350)


def test_a_pack_of_another_scale_says_which(call, tmp_path, experiment):
    call(tmp_path, "--rows=base", f"--pack={tmp_path / 'pack'}")
    other = experiment._replace(scales={"of_other_keys": experiment.scales["small"]})
    flags = {"packed": str(tmp_path / "pack"), "scale": "of_other_keys", "out": str(tmp_path)}
    with pytest.raises(ConfigError, match="is of 'small', and these flags make of_other_keys. Giv"):
        command.run(other, {**flags, "overrides": {}})


def test_a_pack_that_does_not_fit_is_refused(call, tmp_path, monkeypatch):
    folder = tmp_path / "pack"
    call(tmp_path, "--rows=base", f"--pack={folder}")
    with pytest.raises(ConfigError, match="is not empty"):
        call(tmp_path, "--rows=base", f"--pack={folder}")
    for flag in ("--rows=linear", "--seeds=9", "--minutes=1"):
        with pytest.raises(ConfigError, match="the pack has its own. Leave it out with --packed"):
            call(tmp_path, f"--packed={folder}", flag)
    packed = [f"--packed={folder}", "--list"]
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / ".#mine.py").symlink_to("/none")  # an editor's lock
    with monkeypatch.context() as changed:
        changed.setattr(pack, "ROOT", tmp_path)
        assert len(pack.code_digest()) == 12
    with pytest.raises(RunError, match="base, seed 0 was packed for another config"):
        call(tmp_path, *packed, "--config.model.d_ff=16")
    with monkeypatch.context() as changed:
        changed.setattr(pack, "code_digest", lambda: "another")
        with pytest.raises(RunError, match="was packed by other code"):
            call(tmp_path, *packed)
    part = folder / pack.read_plan(folder).parts[0]
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="its parts are damaged"):
        call(tmp_path, *packed)
    part.unlink()
    with pytest.raises(DataError, match="lacks part0 of 1 parts"):
        call(tmp_path, *packed)
    part.write_bytes(whole)
    (folder / pack.PLAN).write_text('{"rows": 1}')
    with pytest.raises(DataError, match="is not the plan of a pack"):
        call(tmp_path, *packed)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "folder/../../outside", "link"])
def test_an_archive_writes_nothing_but_files_below_its_folder(name, tmp_path):
    file = tmp_path / "results.tgz"
    with tarfile.open(file, "w:gz") as tar:
        above = tarfile.TarInfo(".")
        above.type = tarfile.DIRTYPE
        tar.addfile(above)  # which is skipped
        info = tarfile.TarInfo(name)
        if name == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(DataError, match="is not a file below its folder"):
        merge.extract_results(file, tmp_path / "to")
    assert [path.name for path in tmp_path.rglob("*")] == ["results.tgz"]


@pytest.mark.parametrize(
    ("name", "content", "flag", "message"),
    [
        ("test.de", b"x\n" * 7, "", r"has 7\. Line n of one must be the translation"),
        ("valid.en", b"\xff\n" * 20, "", "valid.en, line 1: not UTF-8"),
        ("other.en.gz", gzip.compress(b"x\n" * 4)[:-9], "", "other.en.gz is not a whole gzip"),
        ("", b"", "data.test={}/test", "a pack cannot hold the stem '/.*/corpus/test'"),
        ("", b"", "data.test=../../..{}/test", r"a pack cannot hold the stem '\.\./.*/test'"),
    ],
    ids=["lines", "utf-8", "gzip", "absolute", "outside"],  # gzip has the time
)
def test_what_the_other_machine_would_refuse_is_not_packed(
    call, tmp_path, corpus, name, content, flag, message
):
    own = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    if name:
        (own / name.removesuffix(".gz")).unlink()
        (own / name).write_bytes(content)
    flag = flag.format(own).replace("../../..", "../" * len(own.parents))
    keys = [f"--config.{key}" for key in (f"data.path={own}", flag) if key]
    with pytest.raises((ConfigError, DataError), match=message):
        call(tmp_path, "--rows=base", f"--pack={tmp_path / 'pack'}", *keys)
    assert not (tmp_path / "pack").exists()


def test_a_row_that_needs_a_run_is_refused_before_its_text_is_made(call, tmp_path, corpus):
    (corpus / "train.en").rename(tmp_path / "train.en")  # `prepare` reads it
    flags = f"--pack={tmp_path / 'pack'}", "--config.train.init_from=x"
    try:
        with pytest.raises(ConfigError, match="0 has train.init_from='x', and a pack holds no ru"):
            call(tmp_path, "--rows=base", *flags)
    finally:
        (tmp_path / "train.en").rename(corpus / "train.en")
    with pytest.raises(ConfigError, match="train.steps changes nothing: each row gets"):
        call(tmp_path, "--list", "--config.train.steps=9")
    # It says that the schedule ends, and the row's time when.
    assert "linear" in call(tmp_path, "--list", "--rows=linear", "--config.train.decay_steps=9")


def test_each_pack_has_its_own_text_and_links(call, tmp_path, corpus):
    """Whatever its folder is called, and however data.path names it."""
    own = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    (own / "below").mkdir()
    keys = [f"--config.data.path={own / 'below' / '..'}", "--config.data.test=test"]
    call(tmp_path, "--rows=base", f"--pack={tmp_path / 'first'}", *keys)
    for language in "en", "de":
        (own / f"valid.{language}").unlink()
    (own / "train.align.gz").write_bytes(gzip.compress(b"0-0\n" * runs.SIZES["train"]))
    runs.write_lines(own / "train.doc", map(str, range(runs.SIZES["train"])))
    aligned = [*keys, "--config.data.alignments=True", "--config.train.alignment_weight=0.1"]
    call(tmp_path, "--rows=base", f"--pack={tmp_path / 'second'}", *aligned)
    documents = [*keys, "--config.data.context=1", "--config.model.sources=2"]
    call(tmp_path, "--rows=base", f"--pack={tmp_path / 'third'}", *documents)
    packs = "first", "second", "third"
    for name in packs:
        call(tmp_path, f"--packed={tmp_path / name}", "--list")
    names = "train.en train.de test.en test.de".split()
    each = {
        folder.parent.name: sorted(path.name for path in folder.rglob("*.*"))
        for folder in (tmp_path / "runs" / "tiny" / "small" / "packed").glob("*/text")
    }
    digests = [pack.read_plan(tmp_path / name).sha256[:12] for name in packs]
    assert each[digests[0]] == sorted([*names, "valid.en", "valid.de"])
    assert each[digests[1]] == sorted([*names, "train.align"])
    assert each[digests[2]] == sorted([*names, "train.doc"])


@pytest.mark.parametrize("table", ["sweep", "tiny"])
def test_the_printed_commands_work(experiment, tmp_path, corpus, monkeypatch, capsys, table):
    preset = runs.write_preset(tmp_path / "a.py", {**runs.TINY, "data.path": str(corpus)})
    own = f"--config={preset} --config.model.num_heads=2,4" if table == "sweep" else "--rows=base"

    def start(flags: str) -> str:
        monkeypatch.setattr(sys, "argv", [table, *shlex.split(flags)])
        sweep.main() if table == "sweep" else command.run(experiment)
        return capsys.readouterr().out

    folder = tmp_path / "pack"
    keys = f"--config.model.d_ff=16 --seeds=1 --out={tmp_path / 'out'}"
    _, there, here = start(f"{own} {keys} --pack={folder}").splitlines()
    there, here = (one.partition(f"experiments.{table}")[2] for one in (there, here))
    start(f"{there.replace('FOLDER', str(folder))} --list --runs={tmp_path}")
    assert here == f" {own} {keys} --merge=RESULTS/results.tgz"
    with pytest.raises(DataError, match=r"--merge=RESULTS/results.tgz is not a whole"):
        start(here)


def test_results_that_cannot_be_written_stop_nothing_before_the_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(pack, "EVERY", 0.01)
    (tmp_path / pack.RESULTS / "folder").mkdir(parents=True)
    plan = pack.Plan("tiny", "small", None, "c", "r", {}, [], [], [], "s")
    done = False
    with pytest.raises(RunError, match=r"cannot write .*results.tgz: .* give the same command"):
        with pack.results_kept(tmp_path, [], plan):
            for _ in range(500):  # 5 s at most
                done = len(caplog.records) > 1
                time.sleep(0 if done else 0.01)
    assert done


def test_updates_fit_into_the_time_with_their_checks():
    # 2 minutes: 1 s more for the first check, so 119 s. 10 updates and a check: 10 x 0.2 + 0.5 s.
    timing = Timing(step=0.2, check=0.5, first_check=1.5, device="cpu")
    assert timing.updates(2, 10) == 470  # 119 / 0.25 = 476, rounded down
    assert timing.updates(0.1, 10) == 20
    assert timing.updates(0.001, 10) == 1
    assert timing.seconds(470, 10) == pytest.approx(470 * 0.25 + 1)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.teacher", "runs/large", "a row with train.teacher cannot be timed"),
        ("train.valid_bleu", True, "a row with train.valid_bleu cannot be timed"),
        ("train.valid_every", 7, "valid_every=7 must be train.checkpoint_every=5"),
    ],
)
def test_a_row_whose_time_is_more_than_steps_and_checks_is_refused(key, value, words):
    with pytest.raises(ConfigError, match=words):
        pace.measure_run(with_values(runs.tiny_config(), {key: value}))


def test_rows_of_one_table_get_one_time(tmp_path):
    path = tmp_path / "pace.csv"
    one = Pace("base", 9.0, 100, 0.1, 1.0, 2.0, "cpu", "2026-11-27", "")
    keep_pace(path, one)
    keep_pace(path, one._replace(steps=200))
    assert read_paces(path, 9.0) == {"base": one._replace(steps=200)}
    with pytest.raises(ConfigError, match=r"--minutes=5: .*pace.csv has 9 minutes for 'base'"):
        read_paces(path, 5.0)


def test_the_schedule_ends_with_the_time(experiment, tmp_path):
    scale = experiment.scales["small"]
    found = Pace("linear", 9.0, 77, 0.1, 1.0, 2.0, "cpu", "2026-11-27", "")
    for row, end in (("base", None), ("linear", 77)):
        whole = {**scale.overrides, **experiment.rows[row]}
        job = Job("tiny", row, 0, scale, whole, tmp_path)
        train = with_pace(job, found).config().train
        assert (train.steps, train.decay_steps) == (77, end)
        assert with_pace(job, None) is job
