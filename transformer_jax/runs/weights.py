"""Parameters from a run's folder: of one checkpoint, or the mean of several."""

import contextlib
import fcntl
import hashlib
import logging
import math
import re
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np

from transformer_jax.errors import RunError
from transformer_jax.parallel import processes
from transformer_jax.runs.checkpoints import (
    INT8,
    Params,
    committed_steps,
    damaged_file,
    manifest_of,
    reason_of,
    score_of,
    unreadable_score,
    write_manifest,
)
from transformer_jax.runs.run_folder import LOCK, RunFolder

log = logging.getLogger(__name__)


def load_params(run: RunFolder, which: str, like: Params) -> tuple[Params, str]:
    """Restores the parameters of a checkpoint.

    Args:
      which: "latest", "best", "average" (the average at the latest step; if there are several, that
        of the most checkpoints), a step's number, or an average's name, such as "40-last5".
      like: shapes, types and shardings to restore to; without shardings: the first device.

    Returns:
      The parameters, and the checkpoint's name, such as "40" or "40-last5".

    Raises:
      RunError: there is no such checkpoint, or it is damaged.
    """
    from transformer_jax.runs.orbax_files import read_step

    # Each process has a path of its own to the run, whose weights must be the same.
    name = processes.first_does(lambda: str(_find(run, which).relative_to(run.path)))
    folder = Path(run.path, name)
    if (number := processes.first_unlike(_sum_of(manifest_of(folder)))) is not None:
        raise RunError(
            f"process {number} has other weights than process 0 in {folder}, or none: give every "
            "machine the same run."
        )
    wrong = processes.first_does(lambda: damaged_file(folder))
    if wrong:
        fix = (
            "if it is the latest, `train` replaces it"
            if folder.name.isdecimal()
            else "`average` makes it again"
        )
        raise RunError(f"{folder} is damaged: {wrong}. Use other checkpoints; {fix}.")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or device), like
    )
    state = folder / "rest"  # imported weights have none
    try:
        is_saved = folder.name.isdecimal() and state.is_dir()
        step = str(read_step(state)) if is_saved else folder.name
        params = _read_params(folder, like)
    except jax.errors.JaxRuntimeError:  # the device failed, not the files
        raise
    except Exception as error:  # Orbax and its libraries raise many types on damaged files
        if _find(run, which) != folder:
            raise RunError(
                f"{folder} was removed while it was read, as by training that goes on. Try again."
            ) from error
        run.check_name("read")
        raise RunError(
            f"{folder / 'params'} cannot be restored ({type(error).__name__}): it is damaged, or "
            "not of the model that config.json and vocabulary.model describe."
        ) from error
    if step != folder.name:
        raise RunError(f"{folder} is the checkpoint of step {step}, under another name.")
    return params, folder.name


def _sum_of(file: Path) -> str:
    """The SHA-256 sum of a file; "" if it cannot be read, as a pipe."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    return ""


def _read_params(folder: Path, like: Params) -> Params:
    """The parameters of a checkpoint; those in int8 are multiplied by their scales."""
    from transformer_jax.runs.orbax_files import read_arrays

    if not (folder / INT8).is_dir():
        return read_arrays(folder / "params", like)
    found = read_arrays(folder / INT8)
    return jax.tree.map(
        lambda x, scale, like: jax.device_put(
            (np.asarray(x) * scale).astype(like.dtype), like.sharding
        ),
        found["params"],
        found["scales"],
        like,
    )


def _find(run: RunFolder, which: str) -> Path:
    # Finished averages have a manifest: it is written last.
    averages = [p for p in run.averages.glob("*-last*") if p.is_dir() and manifest_of(p).exists()]
    if which == "average":
        if not averages:
            raise RunError(
                f"{run.path} has no averaged checkpoint: run `average "
                f"{shlex.quote(f'--workdir={run.path}')}` first."
            )
        newest = max(averages, key=lambda p: [int(n) for n in re.findall(r"\d+", p.name)])
        step = newest.name.split("-")[0]
        if others := [x.name for x in averages if x.name.startswith(f"{step}-") and x != newest]:
            log.warning("using %s; --checkpoint=%s is there too", newest.name, others[0])
        steps = committed_steps(run.checkpoints)
        if steps and int(step) < steps[-1]:
            log.warning("%s is older than checkpoint %d: see `average`", newest, steps[-1])
        return newest
    named = {path.name: path for path in averages}
    if which in named:
        return named[which]
    steps = saved_steps(run)
    if which == "latest":
        manifests = [one.name.split(".")[0] for one in run.checkpoints.glob("*.sha256.json")]
        if later := [name for name in manifests if name.isdecimal() and int(name) > steps[-1]]:
            gone = run.checkpoints / max(later, key=int)
            log.warning("%s is gone; using the one of step %d", gone, steps[-1])
        return run.checkpoints / str(steps[-1])
    if which == "best":
        return _best(run, steps)
    if re.fullmatch("[0-9]{1,18}", which) and int(which) in steps:
        return run.checkpoints / str(int(which))
    names = ["average", *sorted(named)] if named else []
    known = ", ".join(["latest", "best", *names, *map(str, steps)])
    raise RunError(f"{run.path}: --checkpoint={which} is not there. Valid: {known}.")


def _best(run: RunFolder, steps: list[int]) -> Path:
    """The checkpoint with the highest validation score; of equal scores, or of none, the newest."""
    folders = [run.checkpoints / str(step) for step in steps]
    scores = [None if unreadable_score(f) else score_of(f) for f in folders]
    if scores == [None] * len(scores):
        log.warning("%s: no checkpoint has a validation score; the newest is used", run.path)
    # NaN counts as the lowest score: `max` would keep a NaN that comes first.
    ranked = [(-math.inf if s is None or math.isnan(s) else s, at) for at, s in enumerate(scores)]
    return folders[max(ranked)[1]]


def saved_steps(run: RunFolder) -> list[int]:
    """Steps of the run's checkpoints, ascending. Raises RunError if there are none."""
    steps = committed_steps(run.checkpoints)
    if not steps:
        raise RunError(
            f"{run.path} has no checkpoint yet: `train` writes the first after "
            "train.checkpoint_every steps."
        )
    return steps


def mean_params(trees: Iterable[Params]) -> Params:
    """The mean of several parameter trees, as float32 NumPy arrays, summed in float64.

    It holds one tree at a time, beside the sum.

    Args:
      trees: at least one; all have the same structure and shapes.

    Source: Vaswani et al. 2017, section 6.1.
    """
    total = None
    count = 0
    for tree in trees:
        tree = jax.tree.map(lambda x: np.asarray(x, np.float64), tree)
        total = tree if total is None else jax.tree.map(np.add, total, tree)
        count += 1
    return jax.tree.map(lambda x: (x / count).astype(np.float32), total)


def save_weights(run: RunFolder, params: Params, scales: Params = None) -> None:
    """Writes parameters without a training state as the checkpoint of step 0.

    Other runs can start from it (train.init_from), but this run cannot continue.

    Args:
      scales: a tree as `params`; a parameter whose scale has axes is int8, and is multiplied by it
        when it is read. None: no parameter is.

    Raises:
      RunError: the folder cannot be written.
    """
    fix = "Free disk space and run the command again."
    _write_params(run.checkpoints / "0", params, "weights", fix, scales)


def save_average(run: RunFolder, name: str, params: Params) -> Path:
    """Writes WORKDIR/averages/NAME, which `load_params` finds as "average"; returns that folder.

    It waits for any other process that is writing an average of this run.

    Raises:
      RunError: the folder cannot be written.
    """
    folder = run.averages / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(run.averages / LOCK, "ab")  # noqa: SIM115  closed below, which unlocks it
    except OSError as error:
        raise RunError(f"Cannot write into {folder}: {error.strerror}.") from None
    with lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.lockf(lock, fcntl.LOCK_EX)
        manifest_of(folder).unlink(missing_ok=True)  # until the new files are complete
        fix = "The run's checkpoints are intact: free disk space and call `average` again."
        _write_params(folder, params, "average", fix)
    return folder


def _write_params(folder: Path, params: Params, what: str, fix: str, scales: Params = None) -> None:
    """Writes parameters and their manifest. Raises RunError, and leaves nothing, if it cannot."""
    from transformer_jax.runs.orbax_files import write_arrays

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if scales is None:
            write_arrays(folder / "params", params)
        else:
            write_arrays(folder / INT8, {"params": params, "scales": scales})
        write_manifest(folder)
    except Exception as error:  # Orbax and its libraries raise many types
        shutil.rmtree(folder, ignore_errors=True)
        raise RunError(
            f"the {what} could not be written to {folder}: {reason_of(error)}. {fix}"
        ) from error
