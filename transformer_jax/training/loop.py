"""The host's loop over training steps."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax.config.schema import TrainConfig
from transformer_jax.model.records import Params
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import own_rows, put_rows
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.metrics import FILE, Reports, open_reports, read_metrics
from transformer_jax.text.batches import Batch
from transformer_jax.training.data import TrainingData
from transformer_jax.training.patience import Patience, past_scores
from transformer_jax.training.program import Program, shardings_of
from transformer_jax.training.state import TrainState, Window
from transformer_jax.training.stopping import StopRequest
from transformer_jax.training.validation import Validate, make_validate
from transformer_jax.training.window import WindowReader

log = logging.getLogger(__name__)


def train_steps(
    state: TrainState,
    train: TrainConfig,
    data: TrainingData,
    program: Program,
    checkpoints: Checkpoints,
    workdir: Path,
    stop: StopRequest,
    bleu: Callable[[Params], float | None] | None = None,
) -> int:
    """Trains to the last step, until train.patience is over, or until a signal asks to stop.

    `bleu` scores parameters on the validation split, or returns None if a signal came. Without it
    the score of a checkpoint is minus the validation loss.

    Returns:
      The number of steps taken.

    Raises:
      RunError: training diverged, or a checkpoint cannot be written.
    """
    first, rows = int(state.step), data.shape.rows
    owes_validation = processes.first_does(lambda: _owes_validation(workdir, first, train))
    past = processes.first_does(lambda: past_scores(workdir, first))
    patience = Patience(train.patience, past)
    if (first >= train.steps or patience.is_over) and not owes_validation:
        why = f"; {patience}" if patience.is_over else ""
        log.info("nothing to do: trained to step %d of train.steps=%d%s", first, train.steps, why)
        return first
    read_window = WindowReader(train, data, program, state.window)
    own = own_rows(program.mesh, rows)
    batches = data.train_batches(own, first, train.data_workers)
    silent = not processes.is_first()
    reporting = open_reports(workdir, train.steps, first, silent, train.wandb_project)
    with contextlib.closing(batches), reporting as reports:
        validate = make_validate(data, program, bleu)
        validation = _Validation(validate, read_window, reports, patience)
        if owes_validation:
            validation(first, state.params)
        step = first
        for step, batch in _counted(batches, first + 1, 0 if patience.is_over else train.steps):
            if step == first + 2:  # logged once: training runs, and this is how long a step takes
                jax.block_until_ready(state.step)
                log.info("step %d taken; metrics follow every %d", first + 1, train.log_every)
            state = program.train_step(state, put_rows(program.mesh, rows, own, batch))
            last = step == train.steps
            score = None
            if step % train.log_every == 0 or last:
                values = read_window(state)
                state = _with_empty_window(state)
                reports.trained(step, values)
                checkpoints.check()
            if step % train.valid_every == 0 or last:
                score = validation(step, state.params)
            ends = stop.at_step(step) or last or patience.is_over
            if step % train.checkpoint_every == 0 or ends:
                checkpoints.save(program.to_save(state), step, score)
            if ends:
                break
    return step


class _Validation(NamedTuple):
    """Validates, reports the metrics and counts for train.patience."""

    validate: Validate
    read_window: WindowReader
    reports: Reports
    patience: Patience

    def __call__(self, step: int, params: Params) -> float | None:
        """The score at a step; None if a signal came."""
        with self.read_window.paused():
            result = self.validate(params)
        if result is None:
            return None
        self.reports.validated(step, result[0])
        self.patience.note(step, result[1])
        if self.patience.is_over:
            log.info("training ends at step %d: %s", step, self.patience)
        return result[1]


def _owes_validation(workdir: Path, step: int, train: TrainConfig) -> bool:
    """Whether a signal stopped the run before it could validate at this step."""
    due = step > 0 and (step % train.valid_every == 0 or step == train.steps)
    if not due or not (workdir / FILE).exists():
        return False
    records = read_metrics(workdir)
    return not any(record["kind"] == "valid" and record["step"] == step for record in records)


def _counted(batches: Iterator[Batch], first: int, last: int) -> Iterator[tuple[int, Batch]]:
    """Yields (step, batch) up to the last step; reads no batch beyond it."""
    for step in range(first, last + 1):
        yield step, next(batches)


def _with_empty_window(state: TrainState) -> TrainState:
    zeros = Window.zero(), {name: np.float32(0) for name in state.auxiliary}
    window, auxiliary = jax.device_put(zeros, shardings_of((state.window, state.auxiliary)))
    return state._replace(window=window, auxiliary=auxiliary)
