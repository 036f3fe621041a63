"""The checkpoint from which two runs that are trained together continue."""

from pathlib import Path

from tests.runs.test_checkpoints import flip, like, save
from transformer_jax.runs.checkpoints import Checkpoints, committed_steps
from transformer_jax.runs.together import restore_newest


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
