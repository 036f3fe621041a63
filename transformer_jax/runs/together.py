"""The checkpoint from which two runs that are trained together continue.

Both write a checkpoint at the same steps, and neither begins to write one before both have written
the one before. So a run that is killed leaves at most one checkpoint that the other lacks.
"""

import logging
from collections.abc import Sequence

from transformer_jax.errors import RunError
from transformer_jax.parallel import processes
from transformer_jax.runs.checkpoints import (
    Checkpoints,
    State,
    committed_steps,
    restore_if_undamaged,
    set_aside_later,
)

log = logging.getLogger(__name__)


def restore_together(runs: Sequence[Checkpoints], like: State) -> list[State] | None:
    """The newest checkpoint that each run has, undamaged, by run; None if there are none.

    Later ones are renamed to STEP.unused: the runs will repeat their steps and write them again.

    Args:
      runs: the checkpoints of each run.
      like: shapes, types and shardings of each run's state.

    Raises:
      RunError: no undamaged checkpoint is in every run, though there are more checkpoints than
        the one that a kill can leave.
    """
    steps = processes.first_does(lambda: [committed_steps(run.folder) for run in runs])
    shared = sorted(set.intersection(*map(set, steps)))
    for step in reversed(shared):
        found = [restore_if_undamaged(run.folder / str(step), like) for run in runs]
        states = [state for state, _ in found if state is not None]
        if len(states) == len(runs):
            processes.first_does(lambda: _set_aside_after(step, runs, steps))  # noqa: B023
            return states
        for run, (_, wrong) in zip(runs, found, strict=True):
            if wrong and processes.is_first():
                path = run.folder / str(step)
                log.warning("checkpoint %s is damaged: %s; trying the one before", path, wrong)
    if sum(map(len, steps)) > 1:
        folders = " and ".join(str(run.folder) for run in runs)
        raise RunError(
            f"No undamaged checkpoint is in both {folders}, which are trained together. Put the "
            "missing ones back, or start a new run in another --workdir."
        )
    processes.first_does(lambda: _set_aside_after(-1, runs, steps))
    return None


def _set_aside_after(
    step: int, runs: Sequence[Checkpoints], steps: Sequence[Sequence[int]]
) -> None:
    """Renames each run's checkpoints of later steps, and those whose scores Orbax cannot read."""
    for run, own in zip(runs, steps, strict=True):
        set_aside_later(run.folder, own, step, "unused")
