"""The host's loop over training steps."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax.config.schema import Config
from transformer_jax.config.train import TrainConfig
from transformer_jax.model.interfaces import Params
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import own_rows, put_rows
from transformer_jax.runs.checkpoints import Checkpoints, add_score
from transformer_jax.runs.metrics import FILE, Reports, clock, open_reports
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.training.data import TrainingData
from transformer_jax.training.program import Program, shardings_of
from transformer_jax.training.state import States, TrainState, Window
from transformer_jax.training.stopping import StopRequest
from transformer_jax.training.validation import Patience, Validate, make_validate, past_scores
from transformer_jax.training.window import WindowReader

log = logging.getLogger(__name__)
TIMED = 3  # steps at the beginning whose time is logged


class Direction(NamedTuple):
    """A direction of translation in training, and where its results are written."""

    run: RunFolder
    config: Config
    data: TrainingData
    checkpoints: Checkpoints
    # Scores parameters on the validation split, or returns None if a signal came. Without it the
    # score of a checkpoint is minus the validation loss.
    bleu: Callable[[Params], float | None] | None = None


def train_steps(
    states: States,
    train: TrainConfig,
    program: Program,
    directions: Sequence[Direction],
    stop: StopRequest,
) -> int:
    """Trains to the last step, until train.patience runs out, or until a signal asks to stop.

    Args:
      states: the state of each direction.
      directions: one, or with train.agreement_weight two; the batches are those of the first.
      stop: whether a signal asks to stop.

    Returns:
      The step that the run has reached; steps of earlier processes count.

    Raises:
      RunError: training diverged, or a checkpoint cannot be written.
    """
    first = int(states[0].step)
    data = directions[0].data
    lacking = processes.first_does(
        lambda: [_lacks_validation(one.run.path, first, train) for one in directions]
    )
    past = processes.first_does(lambda: past_scores(directions[0].run.path, first))
    patience = Patience(train.patience, past)
    if (first >= train.steps or patience.is_over) and not any(lacking):
        why = f"; {patience}" if patience.is_over else ""
        log.info("nothing to do: trained to step %d of train.steps=%d%s", first, train.steps, why)
        return first
    rows = data.shape.rows
    own = own_rows(program.mesh, rows)
    with contextlib.ExitStack() as opened:
        observers = _Observers(states, train, program, directions, patience, opened)
        batches = data.train_batches(own, first)
        opened.enter_context(contextlib.closing(batches))
        if any(lacking) and not observers.catch_up(first, states, lacking):
            return first
        step, begun = first, None
        to_take = range(first + 1, 1 + (first if patience.is_over else train.steps))
        for step, batch in zip(to_take, batches, strict=False):  # reads no batch beyond the last
            if step in (first + 2, first + 2 + TIMED):
                jax.block_until_ready(states[0].step)
                begun = _log_beginning(step - 1, train, begun)
            states = program.train_step(states, put_rows(program.mesh, rows, own, batch))
            last = step == train.steps
            scores: Sequence[float | None] = [None] * len(directions)
            if step % train.log_every == 0 or last:
                states = observers.report(step, states)
            if step % train.valid_every == 0 or last:
                scores = observers.validate(step, states)
            ends = stop.at_step(step) or last or patience.is_over
            if step % train.checkpoint_every == 0 or ends:
                observers.save(step, states, scores)
            if ends:
                break
    return step


class _Observers:
    """The metrics, validations and checkpoints of each direction."""

    def __init__(
        self,
        states: States,
        train: TrainConfig,
        program: Program,
        directions: Sequence[Direction],
        patience: Patience,
        opened: contextlib.ExitStack,
    ) -> None:
        """Opens the metrics files; `opened` closes them."""
        self.program, self.directions = program, directions
        self.validations: list[_Validation] = []
        for number, (one, state) in enumerate(zip(directions, states, strict=True)):
            silent = not processes.is_first()
            is_main = number == 0
            project = train.wandb_project if is_main else None
            reporting = open_reports(
                one.run.path, train.steps, int(state.step), silent, project, is_main
            )
            validate = make_validate(one.data, program, one.bleu)
            reports = opened.enter_context(reporting)  # its start is not in the first rates
            read_window = WindowReader(train, one.data, program, state.window)
            self.validations.append(_Validation(validate, read_window, reports, patience))

    def report(self, step: int, states: States) -> States:
        """Reports the metrics since the last call; returns the states with empty windows."""
        for one, own, state in zip(self.directions, self.validations, states, strict=True):
            own.reports.trained(step, own.read_window(state))
            one.checkpoints.check()
        return tuple(map(_with_empty_window, states))

    def validate(
        self, step: int, states: States, which: Sequence[bool] = (True, True)
    ) -> list[float | None]:
        """Validates the directions marked by `which`; None for the others, and if a signal came."""
        with self._paused(states):
            return [
                own(step, state.params) if asked else None
                for own, state, asked in zip(self.validations, states, which, strict=False)
            ]

    def save(self, step: int, states: States, scores: Sequence[float | None]) -> None:
        """Starts to write a checkpoint of each direction, when all have written the one before."""
        with self._paused(states):
            for one in self.directions:
                one.checkpoints.check(wait=True)
            for one, state, score in zip(self.directions, states, scores, strict=True):
                one.checkpoints.save(self.program.to_save(state), step, score)

    @contextlib.contextmanager
    def _paused(self, states: States) -> Iterator[None]:
        """A context whose time is not that of training; the steps before it end first."""
        jax.block_until_ready([state.step for state in states])
        with contextlib.ExitStack() as paused:
            for own in self.validations:
                paused.enter_context(own.read_window.paused())
            yield

    def catch_up(self, step: int, states: States, lacking: Sequence[bool]) -> bool:
        """Validates what a signal prevented when this step was saved; False if a signal came."""
        scores = self.validate(step, states, lacking)

        def add() -> None:
            for one, score in zip(self.directions, scores, strict=True):
                if score is not None:
                    add_score(one.checkpoints.folder / str(step), score)

        processes.first_does(add)  # the others wait: their managers read the scores too
        return (None, True) not in zip(scores, lacking, strict=True)


class _Validation(NamedTuple):
    """What the loop needs to validate one direction and to report its metrics."""

    validate: Validate
    read_window: WindowReader
    reports: Reports
    patience: Patience

    def __call__(self, step: int, params: Params) -> float | None:
        """Validates, reports, counts for train.patience; the score, or None if a signal came."""
        result = self.validate(params)
        if result is None:
            return None
        self.reports.validated(step, result[0])
        if not math.isfinite(result[0]["nats_per_token"]):
            log.warning(
                "the validation loss at step %d is not finite: training diverged. Lower "
                "train.peak_learning_rate, or raise train.warmup_steps, in a new run",
                step,
            )
        self.patience.note(step, result[1])
        if self.patience.is_over:
            log.info("training ends at step %d: %s", step, self.patience)
        return result[1]


def _lacks_validation(workdir: Path, step: int, train: TrainConfig) -> bool:
    """Whether a validation was due at this step and is not recorded."""
    due = step > 0 and (step % train.valid_every == 0 or step == train.steps)
    return due and (workdir / FILE).exists() and step not in dict(past_scores(workdir, step))


def _log_beginning(step: int, train: TrainConfig, begun: float | None) -> float:
    """Logs that this first step was taken or, some steps later, how long the others will take.

    Returns the time of the first call, which is `begun` in the second.
    """
    now = time.monotonic()
    if begun is None:
        log.info("step %d taken; metrics follow every %d", step, train.log_every)
        return now
    each = (now - begun) / TIMED
    left = train.steps - step
    log.info("a step takes %.3g s: %s for the other %d", each, clock(left * each), left)
    return begun


def _with_empty_window(state: TrainState) -> TrainState:
    """The state with zero sums, on the same devices."""
    zeros = Window.zero(), {name: np.float32(0) for name in state.auxiliary}
    window, auxiliary = jax.device_put(zeros, shardings_of((state.window, state.auxiliary)))
    return state._replace(window=window, auxiliary=auxiliary)
