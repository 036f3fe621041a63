"""The `average` command: the mean of a run's last checkpoints."""

import itertools
import logging
import time
from pathlib import Path

from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import RunError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import load_params, mean_params, save_average, saved_steps
from transformer_jax.text.vocabulary import load_vocabulary

log = logging.getLogger(__name__)
SETTLE_SECONDS = 1.0  # time for a deletion to end


def average(workdir: str, last: int = 5) -> Path:
    """Averages the parameters of a run's `last` checkpoints, for --checkpoint=average.

    Returns:
      The average's folder, WORKDIR/averages/STEP-lastK.

    Raises:
      RunError: the run has fewer checkpoints, or is configured to keep fewer; or a `train` deleted
        one of them while it was read, and again at the second attempt.
    """
    run = RunFolder(workdir)
    run.check_name()
    config = run.read_config()
    if run.made is not None:
        raise RunError(f"{run.path} has one checkpoint only: it was not trained here.")
    vocabulary = load_vocabulary(run.vocabulary_file)
    like = abstract_params(make_model(config.model, vocabulary.sizes))
    for is_again in (False, True):
        steps = _last_steps(run, last, config.train)
        try:
            mean = mean_params(load_params(run, str(step), like)[0] for step in steps)
            break
        except (RunError, FileNotFoundError):
            time.sleep(SETTLE_SECONDS)  # a checkpoint looks damaged while it is being deleted
            gone = sorted(set(steps) - set(committed_steps(run.checkpoints)))
            if not gone:
                raise
        deleted = (
            f"checkpoint {gone[0]} was deleted while it was averaged: a `train` in {run.path} "
            "keeps only its last ones (train.keep_last)"
        )
        if is_again:
            raise RunError(
                f"{deleted}. Call `average` when that `train` has ended, or with a smaller --last."
            )
        log.info("%s; averaging those that are there now", deleted)
    folder = save_average(run, f"{steps[-1]}-last{last}", mean)
    log.info("averaged checkpoints %s into %s", ", ".join(map(str, steps)), folder)
    regular = [step for step in steps if step % config.train.checkpoint_every == 0]
    if len({after - before for before, after in itertools.pairwise(regular)}) > 1:
        log.warning("these checkpoints are not evenly spaced: the first may be the best of before")
    return folder


def _last_steps(run: RunFolder, last: int, train: TrainConfig) -> list[int]:
    """The steps of the checkpoints to average: as if the run had never been stopped.

    The folder may hold more: the best, however old, and the one where the run was stopped.
    """
    saved, keep_last = saved_steps(run), train.keep_last
    usual = [step for step in saved if step % train.checkpoint_every == 0 or step == saved[-1]]
    steps = (usual if len(usual) >= last else saved)[-keep_last:]
    if not 1 <= last <= len(steps):
        count = len(steps)
        kept, choice = (f"{count} checkpoints", f"1 to {count}") if count > 1 else ("checkpoint", 1)
        raise RunError(
            f"--last={last}: {run.path} has its last {kept} ({', '.join(map(str, steps))}) and "
            f"train.keep_last={keep_last}. Give {choice}, or train longer with a larger "
            "train.keep_last."
        )
    return steps[-last:]
