"""What Weights & Biases gets, from a module in the place of wandb."""

import sys
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from tests import tiny_runs as runs
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import Config
from transformer_jax.config.serialization import to_dict, to_json
from transformer_jax.errors import RunError
from transformer_jax.runs.metrics import open_reports
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights_and_biases import run_id

CONFIG = with_values(Config(), {"seed": 3, "model.d_ff": 64, "train.wandb_project": "mine"})


@pytest.fixture
def wandb(monkeypatch) -> Mock:
    """A module in the place of wandb, whose runs keep what they are given."""
    fake = Mock(Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def report(folder: Path, first: int, silent: bool = False, project: str | None = "mine") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(to_json(CONFIG))
    with open_reports(folder, 10, first, silent, project) as reports:
        reports.trained(first + 1, {"nats_per_token": 2.5})
        reports.validated(first + 1, {"perplexity": 12})


def test_metrics_go_to_the_project_beside_the_files(wandb, tmp_path):
    report(tmp_path / "my run", 0)
    [started] = wandb.init.call_args_list
    run = wandb.init.return_value
    assert run.log.call_args_list == [
        call({"step": 1, "train/nats_per_token": 2.5}),
        call({"step": 1, "valid/perplexity": 12.0}),
    ]
    settings = started.kwargs
    assert settings["project"] == "mine" and settings["name"] == "my run"
    assert settings["dir"] == str(tmp_path / "my run"), "where offline runs are kept"
    assert settings["config"] == to_dict(CONFIG) and settings["resume"] == "allow"
    run.define_metric.assert_any_call("*", step_metric="step")
    run.finish.assert_called_once()
    assert len((tmp_path / "my run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_continued_run_continues_its_own_w_and_b_run(wandb, tmp_path):
    report(tmp_path / "run", 0)
    report(tmp_path / "run", 1)
    report(tmp_path / "other", 0)
    first, second, other = (started.kwargs["id"] for started in wandb.init.call_args_list)
    assert first == second != other
    run = RunFolder(tmp_path / "run")
    run.config_file.write_text(
        to_json(with_values(CONFIG, {"train.steps": 7, "data.path": "elsewhere"}))
    )
    assert run_id(run) == first, "mutable keys may change"
    ids = {first}
    for change in ({"seed": 4}, {"model.num_heads": 4}, {}):  # rows and seeds of an experiment
        run.config_file.write_text(to_json(with_values(CONFIG, change)))
        if not change:
            run.corpus_file.write_text("0123\n")  # other text
        ids.add(run_id(run))
    assert len(ids) == 4


def test_only_the_first_process_logs_and_nobody_without_a_project(wandb, tmp_path):
    report(tmp_path / "run", 0, silent=True)
    report(tmp_path / "run", 0, project=None)
    wandb.init.assert_not_called()


def test_a_wandb_that_cannot_start_is_a_user_s_error(wandb, tmp_path):
    wandb.init.side_effect = RuntimeError("api_key not configured")
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
