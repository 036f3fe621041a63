"""Parameters out of a run's folder: of a checkpoint by its name, or averaged over several."""

import logging
import math
import re
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from etils import epath

from transformer_jax.config.schema import ModelConfig
from transformer_jax.errors import RunError
from transformer_jax.model.kinds import make_model
from transformer_jax.parallel import processes
from transformer_jax.runs.checkpoints import (
    committed_steps,
    damaged_file,
    manifest_of,
    score_of,
    unreadable_score,
    write_manifest,
)
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.training.state import Params, init_params

log = logging.getLogger(__name__)


def abstract_params(config: ModelConfig, vocabulary_size: int) -> Params:
    """Shapes and types of a model's parameters."""
    model = make_model(config, vocabulary_size)
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def load_params(run: RunFolder, which: str, like: Params) -> tuple[Params, str]:
    """Parameters of a checkpoint and its name.

    Args:
      run: the run's folder.
      which: "latest", "best", "average" (the newest) or a step's number.
      like: shapes (and shardings, where not the default device) to restore to.

    Raises:
      RunError: there is no such checkpoint, or it is damaged.
    """
    folder = Path(processes.first_does(lambda: str(_find(run, which))))
    wrong = processes.first_does(lambda: damaged_file(folder))
    if wrong:
        raise RunError(f"{folder} is damaged: {wrong}. Choose another with --checkpoint.")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or device), like
    )
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(epath.Path(folder / "params"), like), folder.name
    except jax.errors.JaxRuntimeError:  # of the device, not of the files
        raise
    except Exception as error:  # whatever Orbax and its libraries raise on what is not whole
        raise RunError(
            f"{folder / 'params'} cannot be restored ({type(error).__name__}): it is damaged, or "
            "not of the model that config.json and vocabulary.model describe."
        ) from error


def _find(run: RunFolder, which: str) -> Path:
    if which == "average":
        averages = _averages(run)
        if not averages:
            raise RunError(
                f"{run.path} has no averaged checkpoint: run `average --workdir={run.path}` first."
            )
        return max(averages, key=lambda p: [int(n) for n in re.findall(r"\d+", p.name)])
    steps = _some_steps(run)
    if which == "latest":
        return run.checkpoints / str(steps[-1])
    if which == "best":
        return _best(run, steps)
    if re.fullmatch("[0-9]{1,18}", which) and int(which) in steps:
        return run.checkpoints / str(int(which))
    average = ["average"] if _averages(run) else []
    known = ", ".join(["latest", "best", *average, *map(str, steps)])
    raise RunError(f"--checkpoint={which} is not there. Valid: {known}.")


def _averages(run: RunFolder) -> list[Path]:
    """Folders of the averages; a manifest is written last: without one, `average` was killed."""
    return [p for p in run.averages.glob("*-last*") if p.is_dir() and manifest_of(p).exists()]


def _some_steps(run: RunFolder) -> list[int]:
    """Steps of the run's checkpoints, ascending. Raises RunError where there are none."""
    steps = committed_steps(run.checkpoints)
    if not steps:
        raise RunError(
            f"{run.path} has no checkpoint yet: `train` writes the first after "
            "train.checkpoint_every steps."
        )
    return steps


def _best(run: RunFolder, steps: list[int]) -> Path:
    """The checkpoint of the highest validation score, the newest of equals."""
    folders = [run.checkpoints / str(step) for step in steps]
    scores = [None if unreadable_score(f) else score_of(f) for f in folders]
    # A score that is not a number is above none: `max` would keep the first of them.
    ranked = [(-math.inf if s is None or math.isnan(s) else s, at) for at, s in enumerate(scores)]
    return folders[max(ranked)[1]]


def average(workdir: str, last: int = 5) -> Path:
    """Averages the last k checkpoints' parameters; the other commands take it as `average`.

    Returns:
      Its folder, WORKDIR/averages/STEP-lastK.

    Raises:
      RunError: the run has, or keeps, fewer checkpoints.

    Source: Vaswani et al. 2017, section 6.1.
    """
    from transformer_jax.text.vocabulary import load_vocabulary

    run = RunFolder(workdir)
    config = run.read_config()
    # Beside the last ones, the best is kept, however old.
    steps = _some_steps(run)[-config.train.keep_last :]
    if not 1 <= last <= len(steps):
        raise RunError(
            f"--last={last}: {run.path} has its last {len(steps)} checkpoints "
            f"({', '.join(map(str, steps))}) and train.keep_last={config.train.keep_last}. "
            f"Give 1 to {len(steps)}, or train with more."
        )
    like = abstract_params(config.model, load_vocabulary(run.vocabulary_file).size)
    total = None
    for step in steps[-last:]:
        params = jax.device_get(load_params(run, str(step), like)[0])
        params = jax.tree.map(lambda x: x.astype("float64"), params)
        total = params if total is None else jax.tree.map(lambda a, b: a + b, total, params)
    mean = jax.tree.map(lambda x: (x / last).astype("float32"), total)
    folder = run.averages / f"{steps[-1]}-last{last}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"Cannot write into {folder}: {error.strerror}.") from None
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(epath.Path(folder / "params"), mean, force=True)
    write_manifest(folder)
    log.info("averaged checkpoints %s into %s", ", ".join(map(str, steps[-last:])), folder)
    return folder
