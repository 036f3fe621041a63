"""The `average` command: the mean of a run's last checkpoints."""

import logging
from pathlib import Path

from transformer_jax.errors import RunError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import load_params, mean_params, save_average, saved_steps
from transformer_jax.text.vocabulary import load_vocabulary

log = logging.getLogger(__name__)


def average(workdir: str, last: int = 5) -> Path:
    """Averages the parameters of the last checkpoints, for --checkpoint=average.

    Args:
      workdir: the run's folder.
      last: the number of checkpoints.

    Returns:
      The average's folder, WORKDIR/averages/STEP-lastK.

    Raises:
      RunError: the run has fewer checkpoints, or is configured to keep fewer.
    """
    run = RunFolder(workdir)
    config = run.read_config()
    # The folder may hold one checkpoint more: the best one is kept, however old it is.
    steps = saved_steps(run)[-config.train.keep_last :]
    if not 1 <= last <= len(steps):
        raise RunError(
            f"--last={last}: {run.path} has its last {len(steps)} checkpoints "
            f"({', '.join(map(str, steps))}) and train.keep_last={config.train.keep_last}. "
            f"Give 1 to {len(steps)}, or train with more."
        )
    averaged = steps[-last:]
    vocabulary = load_vocabulary(run.vocabulary_file)
    like = abstract_params(make_model(config.model, vocabulary.size))
    mean = mean_params(load_params(run, str(step), like)[0] for step in averaged)
    folder = save_average(run, f"{averaged[-1]}-last{last}", mean)
    log.info("averaged checkpoints %s into %s", ", ".join(map(str, averaged)), folder)
    return folder
