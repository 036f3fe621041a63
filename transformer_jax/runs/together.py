"""The checkpoint from which a run continues, or two runs that are trained together.

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


def restore_newest(runs: Sequence[Checkpoints], like: State) -> list[State] | None:
    """The newest checkpoint that each run has, undamaged, by run; None if there are none.

    Later ones are renamed to STEP.damaged, or STEP.unused of several runs: their steps will be
    repeated, and they will be written again.

    Args:
      like: shapes, types and shardings of each run's state.

    Raises:
      RunError: no undamaged checkpoint is in every run, though there are more checkpoints than
        the one that a kill can leave in one of two runs.
    """
    folders = [run.folder for run in runs]
    steps = processes.first_does(lambda: [committed_steps(folder) for folder in folders])

    def set_aside_after(step: int) -> None:
        for folder, own in zip(folders, steps, strict=True):
            set_aside_later(folder, own, step, "damaged" if len(runs) == 1 else "unused")

    for step in sorted(set.intersection(*map(set, steps)), reverse=True):
        found = [restore_if_undamaged(folder / str(step), like) for folder in folders]
        states = [state for state, _ in found if state is not None]
        if len(states) == len(runs):
            processes.first_does(lambda: set_aside_after(step))  # noqa: B023
            return states
        for folder, (_, wrong) in zip(folders, found, strict=True):
            if wrong and processes.is_first():
                path = folder / str(step)
                log.warning("checkpoint %s is damaged: %s; trying the one before", path, wrong)
    if (tried := sum(map(len, steps))) >= len(runs):
        raise RunError(
            f"No undamaged checkpoint is in {' and in '.join(map(str, folders))} ({tried} tried). "
            "Put the missing ones back, or start a new run in another --workdir."
        )
    processes.first_does(lambda: set_aside_after(-1))
    return None
