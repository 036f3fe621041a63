"""Run folders that earlier code made: they translate as before, and training continues."""

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_runs import command, metrics, trained_run, write_preset
from transformer_jax.config.schema import KEYS, value_at
from transformer_jax.errors import ConfigError
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.use.loading import load_model

pytestmark = pytest.mark.slow("trains runs of each old form on")

OLD = Path(__file__).parents[1] / "fixtures" / "old_runs"
MODELS = pytest.mark.parametrize("name", ["transformer", "recurrent"])


@pytest.fixture
def old_run(name, tmp_path) -> Path:
    with tarfile.open(OLD / f"{name}.tar.gz") as archive:
        # The filter came with Python 3.11.4; from 3.12 on, Python warns without it.
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **safely)
    return tmp_path / name


@MODELS
def test_an_old_run_gives_the_same_translations_and_scores(
    name, old_run, monkeypatch, capsysbinary
):
    sources = (OLD / "sources.en").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sources)))
    assert command("translate", f"--workdir={old_run}", "--n_best=2", "--beam_size=3") == 0
    got = capsysbinary.readouterr().out.decode().splitlines()
    want = (OLD / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert len(got) == len(want) == 10
    for line, recorded in zip(got, want, strict=True):
        *text, score = line.split(" ||| ")
        *recorded_text, recorded_score = recorded.split(" ||| ")
        assert text == recorded_text
        assert float(score) == pytest.approx(float(recorded_score), rel=1e-5)


@MODELS
def test_training_continues_an_old_run_with_the_keys_of_today(name, old_run, tmp_path, capsys):
    config = RunFolder(old_run).read_config()
    assert (config.model.encoder, config.model.decoder) == (name, name)
    assert config.model.score == ("dot" if name == "transformer" else "scaled_dot")
    values = {key: value_at(config, key) for key in KEYS} | {"train.steps": 123}
    preset = write_preset(tmp_path / "preset.py", values)
    assert command("train", f"--config={preset}", f"--workdir={old_run}") == 0, capsys.readouterr()
    assert committed_steps(old_run / "checkpoints")[-1] == 123
    trained = [record for record in metrics(old_run) if record["kind"] == "train"]
    assert trained[-1]["step"] == 123 and trained[-1]["perplexity"] < 30, "it starts from 26"
    other = "recurrent" if name == "transformer" else "transformer"
    changed = f"--config.model.decoder={other}"
    assert command("train", f"--config={preset}", f"--workdir={old_run}", changed) == 2
    assert "model.decoder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["transformer"])
def test_runs_with_other_vocabularies_are_no_ensemble(old_run):
    with pytest.raises(ConfigError, match="has another vocabulary than"):
        load_model([str(trained_run()), str(old_run)])
