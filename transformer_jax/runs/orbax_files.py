"""Arrays in files and the folder of checkpoints, by Orbax.

Import this module inside functions: Orbax takes 0.1 s to import, and a new run needs it only at its
first checkpoint.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.checkpoint_managers import preservation_policy


def write_arrays(folder: Path, arrays: Any) -> None:
    """Writes a tree of arrays and overwrites what is there."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(epath.Path(folder), arrays, force=True)


def read_arrays(folder: Path, like: Any = None) -> Any:
    """The arrays of a folder, with the shapes, types and shardings of `like`.

    None: as they were saved; NumPy arrays come back as such.
    """
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(epath.Path(folder), like)


def read_step(folder: Path) -> int:
    """The number of steps in the folder of a training state without its parameters."""
    asked = ocp.args.PyTreeRestore(
        item={"step": np.int32(0)},
        restore_args={"step": ocp.RestoreArgs(restore_type=np.ndarray)},  # on every process
        partial_restore=True,
    )
    with ocp.PyTreeCheckpointer() as checkpointer:
        return int(checkpointer.restore(epath.Path(folder), args=asked)["step"])


class Manager(ocp.CheckpointManager):
    """Orbax's manager without its own check for signals; the training loop does that check."""

    def reached_preemption(self, step: int) -> bool:
        return False

    def save_parts(self, step: int, parts: Mapping[str, Any], metrics: Any) -> None:
        """Starts to write a checkpoint, each part in a folder of its own."""
        items = {name: ocp.args.StandardSave(part) for name, part in parts.items()}
        self.save(step, args=ocp.args.Composite(**items), metrics=metrics)


@dataclasses.dataclass
class _Last(preservation_policy.PreservationPolicy):
    """Keeps the last n checkpoints, and one where a run was stopped until there is a later one."""

    n: int
    stopped_at: int | None

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        steps = [one.step for one in checkpoints]
        kept = {*[step for step in steps if step != self.stopped_at][-self.n :], *steps[-1:]}
        return [step in kept for step in steps]


def make_manager(
    folder: Path, keep_last: int, every: int, score: str, is_checkpoint: Callable[[Path], bool]
) -> Manager:
    """A manager that keeps the last checkpoints and the best, and removes unfinished ones.

    Args:
      folder: the folder of all checkpoints.
      keep_last: how many of the last ones it keeps.
      every: steps from one to the next; the newest is another one if the run was stopped there.
      score: the name of the metric; the highest value is the best.
      is_checkpoint: whether a path is a checkpoint; others are left alone.
    """
    newest = max((int(one.name) for one in folder.glob("*") if is_checkpoint(one)), default=0)

    def score_of(metrics: dict[str, float]) -> float:
        return -math.inf if math.isnan(metrics[score]) else metrics[score]

    last = _Last(keep_last, newest if newest % every else None)
    best = preservation_policy.BestN(
        get_metric_fn=score_of, n=1, keep_checkpoints_without_metrics=False
    )
    options = ocp.CheckpointManagerOptions(
        best_fn=score_of,
        preservation_policy=preservation_policy.AnyPreservationPolicy([last, best]),
        cleanup_tmp_directories=True,
        step_name_format=_StepNames(is_checkpoint),
    )
    return Manager(folder, options=options)


class _StepNames(ocp.path.step.NameFormat):
    """Orbax's names of checkpoints; it finds only folders that `is_checkpoint` accepts."""

    def __init__(self, is_checkpoint: Callable[[Path], bool]) -> None:
        self._names = ocp.path.step.standard_name_format()
        self._is_checkpoint = is_checkpoint

    def build_name(self, step: int) -> str:
        return self._names.build_name(step)

    def find_all(self, base_path: Any) -> Iterator[Any]:
        found = self._names.find_all(base_path)
        return (one for one in found if self._is_checkpoint(Path(one.path)))

    def find_step(self, base_path: Any, step: int) -> Any:
        return self._names.find_step(base_path, step)
