"""Checkpoints: which are kept, and what happens if a file is damaged."""

import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.cases import full
from transformer_jax.errors import RunError
from transformer_jax.runs.checkpoints import (
    Checkpoints,
    add_score,
    committed_steps,
    damaged_file,
    manifest_of,
    score_of,
    write_manifest,
)
from transformer_jax.runs.together import restore_newest
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
    state = jax.eval_shape(lambda: state_at(0))
    return jax.tree.map(lambda x: x.update(sharding=device), state)


def save(folder: Path, scores: dict[int, float | None], keep_last: int = 2, **how: Any) -> Path:
    checkpoints = Checkpoints(folder, keep_last, **how)
    for step, score in scores.items():
        checkpoints.save(state_at(step), step, score)
    checkpoints.close()
    return folder


def restored_step(folder: Path) -> int:
    """The step from which the run continues, after a check of each of its arrays."""
    [state] = restore_newest([Checkpoints(folder, keep_last=2)], like())
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
    without_scores = save(tmp_path / "other", dict.fromkeys(range(1, 5)))
    assert committed_steps(without_scores) == [3, 4]


def test_where_a_run_was_stopped_nothing_stays_once_there_is_a_later_one(tmp_path):
    folder = save(tmp_path, dict.fromkeys((10, 20, 23)))
    assert committed_steps(folder) == [20, 23]
    save(folder, {30: None}, every=10)
    assert committed_steps(folder) == [20, 30], "as if it had never been stopped"


def test_a_score_that_is_not_a_number_is_the_worst(tmp_path):
    scores = {1: -2.0, 2: -2.5, 3: math.nan, 4: -2.6}
    assert committed_steps(save(tmp_path, scores, keep_last=1)) == [1, 4]


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_score_that_is_added_later_counts_as_one_that_was_saved(has_manifest, tmp_path):
    folder = save(tmp_path, {1: 0.1, 2: None})
    if not has_manifest:
        manifest_of(folder / "2").unlink()
    add_score(folder / "2", 0.8)
    add_score(folder / "1", 0.9)
    assert [score_of(folder / "1"), score_of(folder / "2")] == [0.1, 0.8], "none is overwritten"
    assert manifest_of(folder / "2").exists() == has_manifest
    save(folder, {3: 0.2, 4: 0.3, 5: 0.4})
    assert committed_steps(folder) == [2, 4, 5]
    assert damaged_file(folder / "2") is None
    (folder / "2" / "metrics" / "metrics").write_text("0.9")
    assert "metrics/metrics" in damaged_file(folder / "2"), "the sum of the score is kept"


def test_a_score_that_cannot_be_added_stops_nothing(tmp_path, monkeypatch, caplog):
    folder = save(tmp_path, {1: None})
    monkeypatch.setattr("transformer_jax.runs.checkpoints.write_atomically", full)
    add_score(folder / "1", 0.8)
    assert "the score of" in caplog.text and "No space left on device" in caplog.text


def test_a_manifest_does_not_wait_for_the_next_checkpoint(tmp_path):
    """A run that is killed between two checkpoints has the manifest of the first."""
    checkpoints = Checkpoints(tmp_path, 2)
    checkpoints.save(state_at(1), 1, None)
    deadline = time.monotonic() + 60
    while not manifests(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert manifests(tmp_path) == ["1.sha256.json"]
    checkpoints.close()


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("No space left on device", "free disk space and call `train` again"),
        ("Disk quota exceeded", "free disk space and call `train` again"),
        ("Input/output error", "was touched: put that right and call `train` again"),
        (f"OUT_OF_RANGE: {'path ' * 99}write [os_error_code='27'", "was touched: put that right"),
    ],
)
def test_what_cannot_be_written_is_an_error_and_not_silence(reason, fix, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(5, reason)

    monkeypatch.setattr("transformer_jax.runs.checkpoints.write_manifest", fail)
    shown = "File too large" if "27" in reason else reason
    with pytest.raises(RunError, match=f"could not be written to .*: {shown}.*{fix}"):
        save(tmp_path, {1: None})


@pytest.mark.parametrize(("to", "saved"), [("elsewhere", True), (None, True), (None, False)])
def test_a_run_whose_folder_is_moved_or_removed_ends(tmp_path, to, saved):
    """Orbax would make a folder of its name, without config and vocabulary."""
    run = tmp_path / "run"
    checkpoints = Checkpoints(run / "checkpoints", 2, "continue")
    run.mkdir()
    if saved:
        checkpoints.save(state_at(1), 1, None)
        checkpoints.check(wait=True)
    shutil.move(run, tmp_path / to) if to else shutil.rmtree(run)
    with pytest.raises(RunError, match="run was moved or removed while the run trains, so step 2"):
        checkpoints.save(state_at(2), 2, None)
    checkpoints.abandon()
    assert not run.exists()


def test_training_goes_on_without_a_checkpoint_if_asked_but_its_end_needs_the_last(
    tmp_path, monkeypatch, caplog
):
    checkpoints = Checkpoints(tmp_path, 2, "continue")
    with monkeypatch.context() as patch:
        patch.setattr("transformer_jax.runs.checkpoints.write_manifest", full)
        checkpoints.save(state_at(1), 1, None)
        checkpoints.check(wait=True)
    assert "No space left on device; training continues" in caplog.text
    checkpoints.save(state_at(2), 2, None)
    checkpoints.close()
    assert manifests(tmp_path) == ["1.sha256.json", "2.sha256.json"]
    monkeypatch.setattr("transformer_jax.runs.checkpoints.write_manifest", full)
    with pytest.raises(RunError, match="the last checkpoint could not be written to"):
        save(tmp_path, {3: None}, on_save_error="continue")


# Damage ----------------------------------------------------------------------------------------


def test_a_manifest_that_may_not_be_read_is_no_damage(tmp_path, monkeypatch):
    """Otherwise training would set the checkpoint aside and repeat its steps."""
    save(tmp_path, {1: None})

    def denied(path: Path, *_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(PermissionError):
        damaged_file(tmp_path / "1")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@pytest.mark.slow("writes and damages many checkpoints")
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
        aside = "30.damaged.sha256.json"  # moved aside with what is left of the checkpoint
        assert manifests(folder) == ["10.sha256.json", "20.sha256.json", aside]
        left = {path.relative_to(folder / "30.damaged") for path in files_of(folder / "30.damaged")}
        others = {path.relative_to(three / "30") for path in files_of(three / "30")}
        assert others - left <= {name.relative_to("30")}


@pytest.mark.parametrize("content", ["", "[]", "{", None])
def test_what_is_no_manifest_is_damage_and_set_aside(content, copied):
    manifest = manifest_of(copied / "30")
    manifest.unlink()
    manifest.mkdir() if content is None else manifest.write_text(content)
    assert restored_step(copied) == 20
    assert (copied / "30.damaged").is_dir() and manifest_of(copied / "30.damaged").exists()


@pytest.mark.parametrize(
    ("name", "one", "other", "what"),
    [
        ("vocabulary.model", "one", "two", "vocabulary of the run"),
        ("run.sha256.json", '{"run": "a"}', '{"run": "b"}', "settings of the run"),
    ],
)
def test_a_checkpoint_of_another_run_is_damage(copied, name, one, other, what):
    file = copied.parent / name
    file.write_text(one)
    for step in ("20", "30"):
        write_manifest(copied / step)
    assert damaged_file(copied / "30") is None
    file.write_text(other)
    assert f"it is of another run than {copied.parent}: see the {what}" in damaged_file(
        copied / "30"
    )
    file.unlink()  # what loads it says that it is gone
    assert damaged_file(copied / "30") is None


def test_what_an_earlier_version_wrote_about_the_run_is_not_read(copied):
    (copied.parent / "run.sha256.json").write_text('{"run": "a"}')
    manifest = manifest_of(copied / "30")
    sums = json.loads(manifest.read_text()) | {"immutable keys of the run": "of other keys"}
    manifest.write_text(json.dumps(sums))
    assert damaged_file(copied / "30") is None


def continued_from(folder: Path, step: int) -> int:
    """The step that a run restores before it saves this one."""
    checkpoints = Checkpoints(folder, 2)
    [state] = restore_newest([checkpoints], like())
    checkpoints.save(state_at(step), step, None)
    checkpoints.close()
    return int(state.step)


def test_a_checkpoint_that_is_damaged_again_gets_another_name(copied):
    for _ in range(2):
        flip(next((copied / "30" / "params").glob("d/*")))
        assert continued_from(copied, 30) == 20
        assert restored_step(copied) == 30, "what was set aside is not a checkpoint"
    names = {path.name for path in copied.iterdir() if path.is_dir()}
    assert names == {"10", "20", "30", "30.damaged", "30.damaged2"}
    assert damaged_file(copied / "30.damaged") is not None, "with its own manifest"


@pytest.mark.parametrize("name", ["99999999999999999999", "2147483648", "40", "007", "\u0663"])
def test_a_stray_folder_is_no_checkpoint(name, copied, caplog):
    stray = copied / name
    (stray / "notes").mkdir(parents=True)
    assert committed_steps(copied) == [10, 20, 30]
    assert restored_step(copied) == 30
    save(copied, {40: None, 50: None})
    assert committed_steps(copied) == [10, 40, 50]
    assert restored_step(copied) == 50
    kept = copied / "40.damaged" if name == "40" else stray
    assert (kept / "notes").is_dir(), "it is moved at most"
    warnings = caplog.text.count(f"{stray} is ignored: it is not a checkpoint")
    assert warnings == (name[0] in "0123456789")


def test_what_is_in_the_way_of_a_checkpoint_or_its_manifest_is_moved(copied):
    (copied / "40.sha256.json").mkdir()
    (copied / "50").symlink_to(copied / "nowhere")
    for step in (40, 50):
        assert step not in committed_steps(copied)
        save(copied, {step: None})
        assert restored_step(copied) == step
    assert (copied / "40.sha256.json").is_file() and (copied / "50.damaged").is_symlink()


def test_a_damaged_score_of_an_older_checkpoint_stops_nothing(copied, caplog):
    (copied / "10" / "metrics" / "metrics").write_text("{")
    assert continued_from(copied, 40) == 30
    assert f"the damaged checkpoint {copied / '10'} is now 10.damaged" in caplog.text
    assert committed_steps(copied) == [30, 40]


@pytest.mark.parametrize("steps", [("10", "20", "30"), ("30",)], ids=len)
def test_all_damaged_is_an_error_that_touches_nothing(steps, copied):
    for path in copied.iterdir():
        if path.is_dir() and path.name not in steps:
            shutil.rmtree(path)
    for step in steps:
        flip(next((copied / step / "params").glob("d/*")))
    before = runs.contents(copied)
    with pytest.raises(RunError, match=rf"is in {copied} \({len(steps)} tried\). Put"):
        restore_newest([Checkpoints(copied, 2)], like())
    assert runs.contents(copied) == before


def test_undamaged_checkpoints_that_cannot_be_restored_are_left_as_they_are(copied):
    """As if the device had no memory left: nothing is wrong with the files."""
    before = runs.contents(copied)
    other = like()._replace(params={"layer": {"matrix": like().key}})
    with pytest.raises(ValueError, match="shape"):
        restore_newest([Checkpoints(copied, 2)], other)
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


# Another mesh ----------------------------------------------------------------------------------


def test_a_checkpoint_restores_on_another_mesh(copied):
    process = runs.forkserver().Process(target=restore_on_two, args=(copied,))
    process.start()
    process.join(300)
    assert process.exitcode == 0


def restore_on_two(folder: Path) -> None:
    """Restores, in a process with two devices, arrays that are divided over both."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    mesh = jax.make_mesh((2,), ("both",))

    def divided(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        axes = jax.sharding.PartitionSpec(*["both"][: array.ndim])
        sharding = jax.sharding.NamedSharding(mesh, axes)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    [state] = restore_newest([Checkpoints(folder, 3)], jax.tree.map(divided, like()))
    assert not state.params["layer"]["matrix"].is_fully_replicated
    jax.tree.map(np.testing.assert_array_equal, state, state_at(30))


def test_a_checkpoint_under_another_name_is_set_aside(tmp_path, caplog):
    folder = save(tmp_path, {2: None, 4: None})
    for path in (folder / "4", manifest_of(folder / "4")):
        path.rename(path.with_name(path.name.replace("4", "9", 1)))
    assert restored_step(folder) == 2
    assert "it is the checkpoint of step 4, under another name" in caplog.text
    assert committed_steps(folder) == [2]


def test_a_file_that_the_manifest_does_not_list_is_damage(tmp_path):
    folder = save(tmp_path, {2: None}) / "2"
    sums = json.loads(manifest_of(folder).read_text())
    name = next(iter(sums))
    manifest_of(folder).write_text(json.dumps({name: sums[name]}))
    assert "is not in 2.sha256.json" in (damaged_file(folder) or "")
    manifest_of(folder).write_text(json.dumps(sums))
    assert damaged_file(folder) is None


# Two runs that are trained together -------------------------------------------------------------


def restored_steps(folders: tuple[Path, Path]) -> list[int] | None:
    """The step of each run's state."""
    states = restore_newest([Checkpoints(folder, 3) for folder in folders], like())
    return None if states is None else [int(state.step) for state in states]


def test_damage_in_one_run_sends_both_back_to_the_checkpoint_before(tmp_path, caplog):
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        save(folder, {10: None, 20: None})
    flip(next((folders[1] / "20" / "params").glob("d/*")))
    assert restored_steps(folders) == [10, 10]
    assert f"checkpoint {folders[1] / '20'} is damaged: params/d/" in caplog.text
    assert [committed_steps(folder) for folder in folders] == [[10], [10]]
    assert all((folder / "20.unused").is_dir() for folder in folders)


def test_a_kill_between_the_very_first_two_checkpoints_begins_again(tmp_path):
    folders = tmp_path / "a", tmp_path / "b"
    save(folders[0], {10: None})
    assert restored_steps(folders) is None
    assert committed_steps(folders[0]) == [] and (folders[0] / "10.unused").is_dir()
