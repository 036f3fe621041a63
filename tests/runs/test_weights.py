"""Parameters by the name of a checkpoint, and averages."""

import json
import math
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.runs.test_checkpoints import flip
from transformer_jax.errors import RunError
from transformer_jax.runs.checkpoints import committed_steps, damaged_file
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import abstract_params, average, load_params

# By name ---------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A copy of the trained run, which keeps its last three checkpoints."""
    folder = RunFolder(runs.copy_of_run(tmp_path / "run"))
    assert committed_steps(folder.checkpoints) == [30, 35, 40]
    return folder


def shapes() -> Any:
    config = runs.tiny_config()
    return abstract_params(config.model, config.vocabulary.size)


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


def test_the_best_is_that_of_the_highest_score(run):
    (run.checkpoints / "30" / "metrics" / "metrics").write_text('{"score": 1.0}')
    (run.checkpoints / "30.sha256.json").unlink()
    assert load_params(run, "best", shapes())[1] == "30"


def test_the_best_without_scores_is_the_latest(run):
    for step in (30, 40):
        shutil.rmtree(run.checkpoints / str(step) / "metrics")
        (run.checkpoints / f"{step}.sha256.json").unlink()
    assert load_params(run, "best", shapes())[1] == "40"


@pytest.mark.parametrize(
    ("scores", "step"),
    [
        ((math.nan, 1.0, 0.5), 35),
        ((1.0, 0.5, math.nan), 30),
        ((math.nan, 0.5, 1.0), 40),
        ((math.nan, -2.0, math.nan), 35),
        ((math.nan, math.nan, math.nan), 40),
    ],
)
def test_a_score_of_nan_is_below_every_other_wherever_it_comes(scores, step, run):
    for at, score in zip((30, 35, 40), scores, strict=True):
        file = run.checkpoints / str(at) / "metrics" / "metrics"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"score": score}))
        (run.checkpoints / f"{at}.sha256.json").unlink()
    assert load_params(run, "best", shapes())[1] == str(step)


def test_the_newest_average_has_the_largest_step_however_many_digits_it_has(run):
    for name in ("900-last5", "1000-last5", "1000-last20"):
        shutil.copytree(run.checkpoints / "35", run.averages / name)
        shutil.copy(run.checkpoints / "35.sha256.json", run.averages / f"{name}.sha256.json")
    assert load_params(run, "average", shapes())[1] == "1000-last20"
    shutil.rmtree(run.averages / "1000-last20")
    assert load_params(run, "average", shapes())[1] == "1000-last5"


@pytest.mark.parametrize("which", ["latest", "best", "35"])
def test_loading_leaves_the_folder_as_it_is_even_while_a_run_writes_there(which, run):
    half = run.checkpoints / "45.orbax-checkpoint-tmp-7"
    half.mkdir()
    before = runs.contents(run.path)
    load_params(run, which, shapes())
    assert runs.contents(run.path) == before


@pytest.mark.parametrize("which", ["31", "first", "", "-40", "²"])
def test_an_unknown_checkpoint_is_refused_with_the_known_ones(which, run):
    with pytest.raises(RunError, match="is not there. Valid: latest, best, 30, 35, 40."):
        load_params(run, which, shapes())


def test_a_damaged_checkpoint_is_refused_by_name(run):
    flip(next((run.checkpoints / "40" / "params").glob("d/*")))
    with pytest.raises(RunError, match="40 is damaged: params/d/.* Choose another"):
        load_params(run, "latest", shapes())


# Averages --------------------------------------------------------------------------------------


def test_an_average_is_the_mean_in_double_precision(run):
    folder = average(str(run.path), last=3)
    want = [params_of(run, step) for step in (30, 35, 40)]
    mean = {
        name: (sum(one[name].astype(np.float64) for one in want) / 3).astype(np.float32)
        for name in want[0]
    }
    params, name = load_params(run, "average", shapes())
    assert name == folder.name == "40-last3"
    assert_params(params, mean)
    assert damaged_file(folder) is None


def test_an_average_of_one_is_that_checkpoint(run):
    average(str(run.path), last=1)
    params, name = load_params(run, "average", shapes())
    assert name == "40-last1"
    assert_params(params, params_of(run, 40))


def test_the_newest_average_is_taken_and_may_be_made_again(run):
    for last in (3, 2, 3):
        average(str(run.path), last)
    assert load_params(run, "average", shapes())[1] == "40-last3"


def test_an_average_that_was_killed_does_not_count(run):
    average(str(run.path), 2)
    (run.averages / "50-last2").mkdir()
    assert load_params(run, "average", shapes())[1] == "40-last2"


@pytest.mark.parametrize("last", [0, -1, 4])
def test_more_than_there_are_cannot_be_averaged(last, run):
    with pytest.raises(RunError, match=rf"--last={last}: .* last 3 checkpoints \(30, 35, 40\)"):
        average(str(run.path), last)
    assert not run.averages.exists()


def test_an_old_best_is_none_of_the_last(run):
    """The best is kept however old: it and the last three are not the last four."""
    for name in ("30", "30.sha256.json"):
        (run.checkpoints / name).rename(run.checkpoints / name.replace("30", "5"))
    shutil.copytree(run.checkpoints / "35", run.checkpoints / "30")
    assert committed_steps(run.checkpoints) == [5, 30, 35, 40]
    with pytest.raises(RunError, match=r"last 3 checkpoints \(30, 35, 40\)"):
        average(str(run.path), 4)


def test_no_average_yet_says_how_to_make_one(run):
    with pytest.raises(RunError, match="no averaged checkpoint: run `average --workdir="):
        load_params(run, "average", shapes())
