"""How long the parts of a run take on this device, measured before the run begins."""

import itertools
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from transformer_jax.config.schema import Config
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import own_rows, put_rows
from transformer_jax.training.data import TrainingData
from transformer_jax.training.program import Program
from transformer_jax.training.state import States, TrainState
from transformer_jax.training.validation import make_validate

WARM_UP = 5  # updates before the timed ones
ROUND = 10  # the number of updates is rounded down to a multiple of this, if it is larger


class Timing(NamedTuple):
    """Seconds that a device needs for the parts of a run."""

    step: float  # an update
    check: float  # a validation, and the start of a checkpoint
    first_check: float  # the first validation, which compiles
    device: str  # with its number, or that of cores

    def updates(self, minutes: float, every: int) -> int:
        """How many updates fit into the minutes, if a check follows every `every` of them."""
        left = 60 * minutes - (self.first_check - self.check)
        count = int(left / (self.step + self.check / every))
        return max(1, count - count % ROUND if count > ROUND else count)

    def seconds(self, updates: int, every: int) -> float:
        """How long the updates take, if a check follows every `every` of them."""
        return updates * (self.step + self.check / every) + self.first_check - self.check


def measure(
    config: Config,
    data: TrainingData,
    program: Program,
    at_least: int,
    for_seconds: float,
    save: Callable[[TrainState, int], None] | None = None,
) -> Timing:
    """Times updates and a validation of a run.

    Args:
      at_least: updates that are timed.
      for_seconds: seconds that updates are timed, at least.
      save: starts a checkpoint of a state at a step, which then counts too.
    """
    ways = 1 if config.train.agreement_weight is None else 2
    states: States = tuple(program.init(config.seed) for _ in range(ways))
    rows = data.shape.rows
    own = own_rows(program.mesh, rows)
    batches = data.train_batches(own, 0)
    start, taken = 0.0, 0
    for step in itertools.count(1 - WARM_UP):
        states = program.train_step(states, put_rows(program.mesh, rows, own, next(batches)))
        if step == 0 or (step >= at_least and step % at_least == 0):
            jax.block_until_ready(states)
            taken = step
            start = start or time.monotonic()
            # One clock decides for all processes, which take the same updates.
            if step and processes.first_does(lambda: time.monotonic() - start > for_seconds):  # noqa: B023
                break
    per_step = (time.monotonic() - start) / taken
    batches.close()
    state = states[0]
    validate = make_validate(data, program, None)
    # Each model of two is validated, and the first validation compiles.
    checks = [_seconds(lambda: validate(state.params)) for _ in range(1 + ways)]
    first, check = sum(checks[:-1]), sum(checks[1:])
    saving = 0.0 if save is None else _seconds(lambda: save(state, taken))
    device = jax.devices()[0]
    count = len(os.sched_getaffinity(0)) if device.platform == "cpu" else jax.device_count()
    kind = f"{count} x {device.device_kind}"
    return Timing(per_step, check + saving, first + saving, kind)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start
