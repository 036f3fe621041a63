"""Parameters by the name of a checkpoint, and their mean."""

import json
import math
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.cases import full
from transformer_jax.errors import RunError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.runs import orbax_files
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import load_params, save_average, save_weights


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A copy of the trained run, which keeps its last three checkpoints."""
    folder = RunFolder(runs.copy_of_run(tmp_path / "run"))
    assert committed_steps(folder.checkpoints) == [30, 35, 40]
    return folder


def shapes() -> Any:
    config = runs.tiny_config()
    return abstract_params(make_model(config.model, config.vocabulary.size))


def params_of(run: RunFolder, step: int) -> dict[str, np.ndarray]:
    return {
        name.removeprefix("params."): leaf
        for name, leaf in runs.arrays(run.checkpoints / str(step)).items()
        if name.startswith("params.")
    }


def assert_params(got: Any, want: dict[str, np.ndarray]) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(got)
    assert {runs.dotted(path) for path, _ in leaves} == want.keys()
    for path, leaf in leaves:
        name = runs.dotted(path)
        assert leaf.dtype == np.float32
        np.testing.assert_array_equal(leaf, want[name], err_msg=name)


@pytest.mark.parametrize(
    ("which", "step"), [("latest", 40), ("35", 35), ("0035", 35), ("best", 40)]
)
def test_names_of_checkpoints(which, step, run):
    params, name = load_params(run, which, shapes())
    assert name == str(step)
    assert_params(params, params_of(run, step))


def test_a_checkpoint_that_is_removed_while_it_is_read_is_not_called_damaged(run, monkeypatch):
    def removed(*_):
        shutil.rmtree(run.checkpoints / "40")
        raise FileNotFoundError

    monkeypatch.setattr(orbax_files, "read_arrays", removed)
    with pytest.raises(RunError, match="40 was removed while it was read, .* Try again"):
        load_params(run, "latest", shapes())


def test_a_folder_whose_name_orbax_cannot_read_is_not_called_damaged(run):
    moved = RunFolder(run.path.rename(run.path.with_name("a\\b")))
    with pytest.raises(RunError, match=r"path contains \\, so checkpoints cannot be read there"):
        load_params(moved, "latest", shapes())


def test_a_checkpoint_under_another_name_is_refused(run):
    for path in (run.checkpoints / "40", run.checkpoints / "40.sha256.json"):
        path.rename(path.with_name(path.name.replace("40", "60")))
    with pytest.raises(RunError, match="/60 is the checkpoint of step 40, under another name"):
        load_params(run, "latest", shapes())


@pytest.mark.parametrize(
    ("scores", "step"),
    [
        ((math.nan, 1.0, 0.5), 35),
        ((1.0, 0.5, math.nan), 30),
        ((math.nan, 0.5, 1.0), 40),
        ((math.nan, -2.0, math.nan), 35),
        ((math.nan, math.nan, math.nan), 40),
        ((None, -1.0, "damaged"), 35),
        ((None, None, None), 40),
    ],
)
def test_the_best_has_the_highest_score_and_any_is_above_nan_and_none(scores, step, run, caplog):
    for at, score in zip((30, 35, 40), scores, strict=True):
        (run.checkpoints / f"{at}.sha256.json").unlink()
        shutil.rmtree(run.checkpoints / str(at) / "metrics", ignore_errors=True)
        if score is not None:
            (run.checkpoints / str(at) / "metrics").mkdir()
            text = "{" if score == "damaged" else json.dumps({"score": score})
            (run.checkpoints / str(at) / "metrics" / "metrics").write_text(text)
    assert load_params(run, "best", shapes())[1] == str(step)
    assert ("no checkpoint has a validation score" in caplog.text) == (scores == (None,) * 3)


def test_the_newest_average_is_found_and_one_without_a_manifest_is_not(run):
    """It has the largest step, however many digits it has, and then the most checkpoints."""
    params, _ = load_params(run, "35", shapes())
    for name in ("900-last5", "1000-last20", "1000-last5"):
        save_average(run, name, params)
    (run.averages / "2000-last2").mkdir()  # its writer was killed
    found, name = load_params(run, "average", shapes())
    assert name == "1000-last20"
    assert_params(found, params_of(run, 35))
    assert load_params(run, "900-last5", shapes())[1] == "900-last5"
    with pytest.raises(RunError, match="best, average, 1000-last20, 1000-last5, 900-last5, 30, "):
        load_params(run, "900-last4", shapes())


@pytest.mark.parametrize("which", ["latest", "best", "35"])
def test_loading_leaves_the_folder_as_it_is_even_while_a_run_writes_there(which, run):
    half = run.checkpoints / "45.orbax-checkpoint-tmp-7"
    half.mkdir()
    before = runs.contents(run.path)
    load_params(run, which, shapes())
    assert runs.contents(run.path) == before


def test_weights_that_cannot_be_written_are_an_error_and_leave_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.runs.weights.write_manifest", full)
    run = RunFolder(tmp_path)
    with pytest.raises(RunError, match="checkpoints/0: No space left on device. Free disk space"):
        save_weights(run, {"matrix": np.ones(2)})
    assert not (run.checkpoints / "0").exists()


def test_a_device_that_fails_is_no_damage(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr("transformer_jax.runs.orbax_files.read_arrays", fail)
    (tmp_path / "checkpoints" / "5" / "params").mkdir(parents=True)
    with pytest.raises(jax.errors.JaxRuntimeError):
        load_params(RunFolder(tmp_path), "latest", {})
