"""A run's folder: which run it belongs to; its files are complete or missing."""

import os
import subprocess
import sys

import pytest

from tests import tiny_runs as runs
from tests.fixtures.cases import full
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import Config
from transformer_jax.errors import RunError
from transformer_jax.runs import run_folder
from transformer_jax.runs.run_folder import LOCK, NO_TEACHER, RunFolder

CONFIG = with_values(Config(), {"data.path": "corpus", "seed": 3})


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl"])
def test_links_to_nowhere_are_refused_before_anything_is_written(name, tmp_path):
    run = runs.copy_of_run(tmp_path / "run")
    (run / name).rename(tmp_path / "away")
    (run / name).symlink_to(tmp_path / "unmounted")
    before = runs.contents(run)
    for use in (RunFolder(run).read_config, lambda: RunFolder(run).check(runs.tiny_config())):
        with pytest.raises(RunError, match=f"{name} is a link that leads nowhere"):
            use()
    assert runs.contents(run) == before


def test_a_claimed_folder_gives_its_config_back(tmp_path):
    run = RunFolder(tmp_path / "new" / "run")
    run.check(CONFIG)
    assert not run.path.exists(), "checking writes nothing"
    run.claim(CONFIG, "abc")
    assert run.read_config() == CONFIG
    run.check(CONFIG)
    run.check_corpus("abc")
    with pytest.raises(RunError, match="other text"):
        run.check_corpus("abd")
    run.check_corpus("abc", "of a run that did not record it")
    run.claim(CONFIG, "abc", "def")
    run.check_corpus("abc", "def")
    with pytest.raises(RunError, match=f"other validation text.*--init_from={tmp_path}"):
        run.check_corpus("abc", "deg")
    run.check_corpus("abc", "def", NO_TEACHER)  # an older run has recorded no teacher
    with pytest.raises(RunError, match="train.teacher was added"):
        run.check_corpus("abc", "def", "123")
    run.claim(CONFIG, "abc", "def", "123")
    run.check_corpus("abc", "def", "123")
    with pytest.raises(RunError, match="another teacher"):
        run.check_corpus("abc", "def", NO_TEACHER)
    run.corpus_file.unlink()
    run.check_corpus("abc")
    (run.checkpoints / "4").mkdir(parents=True)
    with pytest.raises(RunError, match="has checkpoints and no corpus.sha256: put"):
        run.check_corpus("abc")
    for damaged in ("ABC", "ab", "abc de\uff46"):
        run.corpus_file.write_text(damaged, encoding="utf-8")
        with pytest.raises(RunError, match="corpus.sha256 is damaged: .* Put that run's file back"):
            run.check_corpus("abc", "def")
    run.corpus_file.write_text("")
    with pytest.raises(RunError, match="corpus.sha256 is empty: put that run's file back"):
        run.check_corpus("abc", "def")


def test_a_kill_while_the_config_was_written_leaves_a_usable_folder(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.json.123.tmp").write_text('{"model"')
    RunFolder(tmp_path).check(CONFIG)


def test_a_folder_without_a_run_says_how_to_make_one(tmp_path):
    with pytest.raises(RunError, match=f"Train one with .*'--workdir={tmp_path}/my run'`"):
        RunFolder(tmp_path / "my run").read_config()


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    below = RunFolder(tmp_path / "file" / "run")
    with pytest.raises(RunError, match="Cannot write into .*/file is a file"):
        below.check(CONFIG)
    with pytest.raises(RunError, match="Cannot write into .*Not a directory"):
        below.claim(CONFIG, "abc")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(RunError, match="is not writable. Choose another --workdir"):
        RunFolder(tmp_path / "run").check(CONFIG)


def test_a_full_disk_is_not_called_the_wrong_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "write_atomically", full)
    with pytest.raises(OSError, match="No space left on device"):
        RunFolder(tmp_path / "run").claim(CONFIG, "abc")


def test_checkpoints_that_cannot_be_written_are_refused_before_training(tmp_path, monkeypatch):
    run = RunFolder(tmp_path)
    run.claim(CONFIG, "abc")
    run.checkpoints.mkdir()
    run.check(CONFIG)
    monkeypatch.setattr(os, "access", lambda path, mode: path != run.checkpoints)
    with pytest.raises(RunError, match="Cannot write into .*/checkpoints: change its permissions"):
        run.check(CONFIG)


def test_another_process_can_lock_a_run_once_it_is_unlocked(tmp_path):
    run = RunFolder(tmp_path)
    run.claim(CONFIG, "abc")
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    locking = [sys.executable, "-c", code, str(run.path / LOCK)]
    assert b"BlockingIOError" in subprocess.run(locking, capture_output=True).stderr
    run.unlock()
    assert subprocess.run(locking).returncode == 0


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def unsupported(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.lockf", unsupported)
    RunFolder(tmp_path).claim(CONFIG, "abc")
    assert "cannot be locked" in caplog.text and "do not start a second `train`" in caplog.text


@pytest.mark.parametrize("name", ["v[2]", "why?", "a*b", "back\\slash", os.fsdecode(b"na\xefve")])
def test_a_path_that_orbax_cannot_use_is_refused(name, tmp_path):
    with pytest.raises(RunError, match="so checkpoints cannot be written there"):
        RunFolder(tmp_path / name / "run").check(CONFIG)
    RunFolder(tmp_path / "na\u00efve #1 {a, b} 100% \U0001f600" / "run").check(CONFIG)
