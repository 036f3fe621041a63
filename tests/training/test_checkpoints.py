"""What is kept, what a damaged file does, and which parameters a name stands for."""

import json
import logging
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from transformer_jax.errors import RunError
from transformer_jax.training.checkpoints import (
    Checkpoints,
    abstract_params,
    average,
    committed_steps,
    damaged_file,
    load_params,
)
from transformer_jax.training.run_folder import RunFolder
from transformer_jax.training.state import TrainState, Window


def state_at(step: int) -> TrainState:
    """A state in which every array depends on the step."""
    number = jnp.float32(step)
    return TrainState(
        step=jnp.int32(step),
        params={"layer": {"matrix": jnp.arange(6.0).reshape(2, 3) + number}},
        opt_state=(jnp.full(4, 2 * number), {"count": jnp.int32(step)}),
        key=jnp.array([7, step], jnp.uint32),
        skipped=jnp.int32(1),
        skipped_in_a_row=jnp.int32(0),
        window=Window(*(number + i for i in range(len(Window._fields)))),
    )


def like() -> TrainState:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), state_at(0)
    )


def save(folder: Path, scores: dict[int, float | None], keep_last: int = 2) -> Path:
    checkpoints = Checkpoints(folder, keep_last)
    for step, score in scores.items():
        checkpoints.save(state_at(step), step, score)
    checkpoints.close()
    return folder


def restored_step(folder: Path) -> int:
    """The step that is gone on from, every array of it checked."""
    checkpoints = Checkpoints(folder, keep_last=2)
    state = checkpoints.restore_latest(like())
    checkpoints.close()
    assert state is not None
    step = int(state.step)
    jax.tree.map(np.testing.assert_array_equal, state, state_at(step))
    return step


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Path:
    """Checkpoints of steps 10, 20 and 30; 10 is the best."""
    return save(tmp_path_factory.mktemp("three") / "checkpoints", {10: 0.9, 20: None, 30: 0.5})


@pytest.fixture
def copied(three, tmp_path) -> Path:
    return Path(shutil.copytree(three, tmp_path / "checkpoints"))


def manifests(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.json"))


# What is kept ----------------------------------------------------------------------------------


def test_the_best_and_the_last_are_kept_each_with_a_manifest(tmp_path):
    folder = save(tmp_path, {1: 0.1, 2: 0.8, 3: None, 4: 0.7, 5: None, 6: 0.2})
    assert committed_steps(folder) == [2, 5, 6]
    assert manifests(folder) == ["2.sha256.json", "5.sha256.json", "6.sha256.json"]
    assert all(damaged_file(folder / str(step)) is None for step in (2, 5, 6))
    save(folder, {7: 0.9})
    assert committed_steps(folder) == [6, 7], "2 is no longer the best"
    assert manifests(folder) == ["6.sha256.json", "7.sha256.json"]


def test_without_scores_the_last_are_kept(tmp_path):
    assert committed_steps(save(tmp_path, dict.fromkeys(range(1, 5)))) == [3, 4]


def test_a_manifest_does_not_wait_for_the_next_checkpoint(tmp_path):
    """A run that is killed between two checkpoints has the manifest of the first."""
    checkpoints = Checkpoints(tmp_path, 2)
    checkpoints.save(state_at(1), 1, None)
    deadline = time.monotonic() + 60
    while not manifests(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert manifests(tmp_path) == ["1.sha256.json"]
    checkpoints.close()


def test_what_cannot_be_written_is_an_error_and_not_silence(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformer_jax.training.checkpoints.write_manifest", full)
    checkpoints = Checkpoints(tmp_path, 2)
    checkpoints.save(state_at(1), 1, None)
    with pytest.raises(RunError, match="could not be written to .*: No space left on device"):
        checkpoints.close()


# Damage ----------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["flipped", "cut", "missing"])
def test_any_damaged_file_sends_the_run_back_to_the_checkpoint_before(
    damage, three, tmp_path, caplog
):
    names = [path.relative_to(three) for path in files_of(three / "30") if path.stat().st_size]
    assert {Path("30/metrics/metrics"), Path("30/_CHECKPOINT_METADATA")} < set(names)
    for number, name in enumerate(names):
        folder = Path(shutil.copytree(three, tmp_path / str(number)))
        damage(folder / name)
        caplog.clear()
        assert restored_step(folder) == 20
        assert f"checkpoint {folder / '30'} is damaged: {name.relative_to('30')} " in caplog.text
        assert committed_steps(folder) == [10, 20]
        assert manifests(folder) == ["10.sha256.json", "20.sha256.json"]


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_manifest_counts_as_damage(content, copied):
    (copied / "30.sha256.json").write_text(content)
    assert restored_step(copied) == 20


def test_after_damage_the_run_goes_on_saving(copied):
    flip(next((copied / "30" / "params").glob("d/*")))
    checkpoints = Checkpoints(copied, 2)
    state = checkpoints.restore_latest(like())
    assert state is not None and int(state.step) == 20
    checkpoints.save(state_at(30), 30, 1.0)
    checkpoints.close()
    assert committed_steps(copied) == [20, 30]
    assert restored_step(copied) == 30


def test_a_damaged_score_of_an_older_checkpoint_stops_nothing(copied, caplog):
    (copied / "10" / "metrics" / "metrics").write_text("{")
    checkpoints = Checkpoints(copied, 2)
    checkpoints.restore_latest(like())
    checkpoints.save(state_at(40), 40, None)
    checkpoints.close()
    assert f"removing the damaged checkpoint {copied / '10'}" in caplog.text
    assert committed_steps(copied) == [30, 40]


def test_all_damaged_is_an_error_that_touches_nothing(copied):
    for step in ("10", "20", "30"):
        flip(next((copied / step / "params").glob("d/*")))
    before = runs.contents(copied)
    checkpoints = Checkpoints(copied, 2)
    with pytest.raises(RunError, match=r"Every checkpoint in .* is damaged \(3 tried\)"):
        checkpoints.restore_latest(like())
    checkpoints.close()
    assert runs.contents(copied) == before


def test_killed_between_commit_and_manifest(copied, caplog):
    (copied / "30.sha256.json").unlink()
    assert restored_step(copied) == 30
    assert "checkpoint 30 has no manifest; its files are not verified" in caplog.text
    cut(copied / "30" / "rest" / "manifest.ocdbt")
    assert restored_step(copied) == 20
    assert "30 is damaged: it has no manifest and cannot be restored" in caplog.text


def test_half_written_checkpoints_are_ignored_and_removed(copied):
    half = copied / "40.orbax-checkpoint-tmp-1234"
    shutil.copytree(copied / "30" / "params", half / "params")
    assert committed_steps(copied) == [10, 20, 30]
    assert restored_step(copied) == 30
    save(copied, {40: None})
    assert not half.exists()
    assert committed_steps(copied) == [10, 30, 40]


def test_no_checkpoints_is_no_error(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none", 2)
    assert checkpoints.restore_latest(like()) is None
    checkpoints.close()
    assert not (tmp_path / "none").exists()


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


# Another mesh ----------------------------------------------------------------------------------


def test_a_checkpoint_restores_on_another_mesh(tmp_path):
    workdir, out = runs.trained_run(), tmp_path / "out.json"
    process = runs.forkserver().Process(target=restore_on_two, args=(workdir, out))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    sums = json.loads(out.read_text())
    assert sums.pop("divided") > 10
    want = runs.arrays(workdir / "checkpoints" / str(runs.STEPS))
    assert sums == {name: leaf.astype(np.float64).sum().item() for name, leaf in want.items()}


def restore_on_two(workdir: Path, out: Path) -> None:
    """In a process with two devices: the sums of all arrays, and how many are divided."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    logging.disable()
    from transformer_jax.config import with_values
    from transformer_jax.model.transformer import Transformer
    from transformer_jax.training.optimizer import make_optimizer
    from transformer_jax.training.sharding import make_mesh, tree_shardings
    from transformer_jax.training.state import init_state

    config = with_values(RunFolder(workdir).read_config(), {"mesh.fsdp": 2})
    model = Transformer(config.model, config.vocabulary.size)
    state = jax.eval_shape(lambda: init_state(config, model, make_optimizer(config)))
    state = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        state,
        tree_shardings(state, make_mesh(config.mesh)),
    )
    restored = Checkpoints(workdir / "checkpoints", 3).restore_latest(state)
    assert restored is not None
    if len(jax.devices()) != 2:
        sys.exit(3)
    fields = restored._asdict()
    items = {"params": fields.pop("params"), "rest": fields}
    leaves = jax.tree_util.tree_leaves_with_path(items)
    divided = sum(not leaf.is_fully_replicated for _, leaf in leaves)
    sums = {runs.dotted(path): np.asarray(leaf, np.float64).sum().item() for path, leaf in leaves}
    out.write_text(json.dumps(sums | {"divided": divided}))
