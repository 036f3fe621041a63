"""What Weights & Biases gets, from a module in the place of wandb."""

import sys
import types
from pathlib import Path

import pytest

from tests import tiny_runs as runs
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import Config
from transformer_jax.config.serialization import to_dict, to_json
from transformer_jax.errors import RunError
from transformer_jax.runs.metrics import open_reports
from transformer_jax.runs.weights_and_biases import run_id

CONFIG = with_values(Config(), {"seed": 3, "model.d_ff": 64, "train.wandb_project": "mine"})


class FakeRun:
    """A W&B run that keeps what it is given."""

    def __init__(self, **settings):
        self.settings = settings
        self.logged = []
        self.metrics = []
        self.finished = False

    def define_metric(self, *arguments, **options):
        self.metrics.append((*arguments, options))

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.finished = True


@pytest.fixture
def started(monkeypatch) -> list[FakeRun]:
    """The runs that a fake wandb has started."""
    found: list[FakeRun] = []
    fake = types.ModuleType("wandb")
    fake.Settings = dict
    fake.init = lambda **settings: found.append(FakeRun(**settings)) or found[-1]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return found


def report(folder: Path, first: int, silent: bool = False, project: str | None = "mine") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(to_json(CONFIG))
    with open_reports(folder, 10, first, silent, project) as reports:
        reports.trained(first + 1, {"nats_per_token": 2.5})
        reports.validated(first + 1, {"perplexity": 12})


def test_metrics_go_to_the_project_beside_the_files(started, tmp_path):
    report(tmp_path / "my run", 0)
    (run,) = started
    assert run.logged == [
        {"step": 1, "train/nats_per_token": 2.5},
        {"step": 1, "valid/perplexity": 12.0},
    ]
    assert run.settings["project"] == "mine" and run.settings["name"] == "my run"
    assert run.settings["dir"] == str(tmp_path / "my run"), "where offline runs are kept"
    assert run.settings["config"] == to_dict(CONFIG) and run.settings["resume"] == "allow"
    assert ("*", {"step_metric": "step"}) in run.metrics and run.finished
    assert len((tmp_path / "my run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_continued_run_continues_its_own_w_and_b_run(started, tmp_path):
    report(tmp_path / "run", 0)
    report(tmp_path / "run", 1)
    report(tmp_path / "other", 0)
    first, second, other = (run.settings["id"] for run in started)
    assert first == second != other
    moved = with_values(CONFIG, {"train.steps": 7, "data.path": "elsewhere"})
    assert run_id("run", moved) == first, "mutable keys may change"
    for change in ({"seed": 4}, {"model.num_heads": 4}):  # rows and seeds of an experiment
        assert run_id("run", with_values(CONFIG, change)) != first


def test_only_the_first_process_logs_and_nobody_without_a_project(started, tmp_path):
    report(tmp_path / "run", 0, silent=True)
    report(tmp_path / "run", 0, project=None)
    assert started == []


def test_a_wandb_that_cannot_start_is_a_user_s_error(started, monkeypatch, tmp_path):
    def refuse(**_):
        raise RuntimeError("api_key not configured")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(RunError, match="cannot start .api_key not configured.*wandb login"):
        report(tmp_path / "run", 0)


def test_train_without_the_package_says_how_to_install_it_before_it_does_anything(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert runs.train(tmp_path / "run", train__wandb_project="mine") == 2
    error = capsys.readouterr().err
    assert "train.wandb_project='mine' needs the package wandb: pip install wandb" in error
    assert not (tmp_path / "run").exists()
