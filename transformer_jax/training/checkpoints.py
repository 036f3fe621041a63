"""Checkpoints of a run, by Orbax, and averages of them.

Each has a manifest of SHA-256 sums beside it, since Orbax restores a flipped bit silently.
"""

import concurrent.futures
import functools
import hashlib
import json
import logging
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_jax import processes
from transformer_jax.config import ModelConfig
from transformer_jax.errors import RunError
from transformer_jax.files import write_atomically
from transformer_jax.model.transformer import Transformer
from transformer_jax.training.run_folder import RunFolder
from transformer_jax.training.state import Params, TrainState, init_params

log = logging.getLogger(__name__)
SCORE = "score"  # higher is better
FULL = ("No space left on device", "Disk quota exceeded")


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Not every checkpoint falls on a validation, and a save that fails is told of here, once."""
    return record.exc_info is None and "tracked_metric" not in record.getMessage()


for _name in ("absl", "asyncio"):
    logging.getLogger(_name).addFilter(_worth_a_line)


def _ignore_closed_loops(unraisable: Any) -> None:
    """After a save that failed, TensorStore still calls an event loop that Orbax has closed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


if sys.unraisablehook is sys.__unraisablehook__:
    sys.unraisablehook = _ignore_closed_loops


def write_manifest(checkpoint: Path) -> None:
    """Writes CHECKPOINT.sha256.json beside a committed checkpoint: the sum of each of its files."""
    sums = {
        str(path.relative_to(checkpoint)): _sha256(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }
    write_atomically(_manifest(checkpoint), json.dumps(sums, indent=1).encode())


def damaged_file(checkpoint: Path) -> str | None:
    """What is wrong with the first file that the manifest does not confirm; None: sound.

    A checkpoint without a manifest (killed between commit and manifest) is taken as Orbax left it.
    """
    manifest = _manifest(checkpoint)
    if not manifest.exists():
        log.warning("checkpoint %s has no manifest; its files are not verified", checkpoint.name)
        return None
    try:
        sums = dict(json.loads(manifest.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        sums = {}
    if not sums:
        return f"{manifest.name} is no manifest"
    for name, want in sums.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if _sha256(path) != want:
            return f"{name} does not have the SHA-256 sum that was written"
    return None


def _manifest(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.sha256.json")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def committed_steps(folder: Path) -> list[int]:
    """Steps of the finished checkpoints, ascending; half-written ones have another name."""
    if not folder.is_dir():
        return []
    folders = (path for path in folder.iterdir() if path.is_dir())
    return sorted(int(path.name) for path in folders if re.fullmatch(r"\d+", path.name))


class Checkpoints:
    """Those of a run being trained: saved asynchronously, the best and the last k kept."""

    def __init__(self, folder: Path, keep_last: int, on_save_error: str = "stop") -> None:
        self.folder, self.keep_last, self.on_save_error = folder, keep_last, on_save_error
        self._sealer = concurrent.futures.ThreadPoolExecutor(1, "manifests")
        self._sealed: concurrent.futures.Future[None] | None = None
        self._newest_failed = False

    @functools.cached_property
    def manager(self) -> ocp.CheckpointManager:
        """Orbax's manager, made at the first save: it removes what a kill left half-written."""

        def score(metrics: dict[str, float]) -> float:
            return metrics[SCORE]

        keep = [
            preservation_policy.LatestN(self.keep_last),
            preservation_policy.BestN(
                get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False
            ),
        ]
        options = ocp.CheckpointManagerOptions(
            best_fn=score,
            preservation_policy=preservation_policy.AnyPreservationPolicy(keep),
            cleanup_tmp_directories=True,
        )
        if processes.is_first():
            for manifest in self.folder.glob(".*.tmp"):
                manifest.unlink()
        return ocp.CheckpointManager(self.folder, options=options)

    def save(self, state: TrainState, step: int, score: float | None) -> None:
        """Starts to write a checkpoint; `score` is the validation's, where there was one.

        Raises:
          RunError: this one, or the one before, cannot be written, and `on_save_error` is "stop".
        """
        self.check(wait=True)
        self._newest_failed = False
        params, rest = _split(state)
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params), rest=ocp.args.StandardSave(rest)
        )
        metrics = None if score is None else {SCORE: score}
        try:
            self.manager.save(step, args=items, metrics=metrics)
        except Exception as error:
            self._failed(error)
            return
        # In a thread: a run that is killed before its next checkpoint has the manifest of this one.
        self._sealed = self._sealer.submit(self._seal)

    def check(self, wait: bool = False) -> None:
        """Sees how the save in flight went, once it has ended or, if asked to wait, at its end.

        Raises:
          RunError: it failed, and `on_save_error` is "stop".
        """
        if self._sealed is None or not (wait or self._sealed.done()):
            return
        sealed, self._sealed = self._sealed, None
        try:
            sealed.result()
        except Exception as error:
            self._failed(error)

    def restore_latest(self, like: TrainState) -> TrainState | None:
        """The newest sound checkpoint, with the shardings of `like`; None where there are none.

        Those after it are damaged and removed: their steps will be taken, and written, again.

        Raises:
          RunError: there are checkpoints, and every one is damaged.
        """
        steps = processes.first_does(lambda: committed_steps(self.folder))
        for step in reversed(steps):
            folder = self.folder / str(step)
            state, wrong = _restore_sound(folder, like)
            if state is not None:
                processes.first_does(lambda: self._drop(steps, step))  # noqa: B023  called at once
                return state
            if processes.is_first():
                log.warning("checkpoint %s is damaged: %s; trying the one before", folder, wrong)
        if steps:
            raise RunError(
                f"Every checkpoint in {self.folder} is damaged ({len(steps)} tried). "
                "Train anew in another --workdir."
            )
        return None

    def close(self) -> None:
        """Waits until everything is written.

        Raises:
          RunError: the newest could not be, and no other comes after it.
        """
        try:
            self.check(wait=True)
        finally:
            self._sealer.shutdown()
            self._close_manager()
            if self._newest_failed:
                self._remove_half_written()
        if self._newest_failed and self.on_save_error == "continue":  # else it is raised already
            raise RunError(
                f"the last checkpoint could not be written to {self.folder}, only those up to step "
                f"{max(committed_steps(self.folder), default=0)}: make room and call `train` again."
            )

    def _close_manager(self) -> None:
        if "manager" in self.__dict__:
            try:
                self.manager.close()
            except Exception as error:  # a save that failed is told of once more
                log.debug("closing the checkpoints: %s", error)
            del self.__dict__["manager"]

    def _failed(self, error: Exception) -> None:
        """Says so, and removes what was written of it: the older ones are whole, and need room."""
        self._newest_failed = True
        self._close_manager()
        self._remove_half_written()
        message = " ".join(str(error).split())
        reason = next((known for known in FULL if known in message), message[:200])
        text = f"a checkpoint could not be written to {self.folder}: {reason}"
        if self.on_save_error == "stop":
            raise RunError(
                f"{text}. The checkpoints before it are whole: make room and call `train` again, "
                "or set train.on_save_error=continue to go on without."
            ) from error
        log.warning("%s; going on, as train.on_save_error=continue says", text)

    def _remove_half_written(self) -> None:
        if processes.is_first():
            for left in self.folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(left, ignore_errors=True)

    def _drop(self, steps: list[int], restored: int) -> None:
        """Removes what is newer, and so damaged, and what Orbax would stumble over."""
        for step in steps:
            folder = self.folder / str(step)
            if step > restored or _unreadable_score(folder):
                log.warning("removing the damaged checkpoint %s", folder)
                shutil.rmtree(folder)
                _manifest(folder).unlink(missing_ok=True)

    def _seal(self) -> None:
        """After the commit: adds missing manifests, removes those of deleted checkpoints."""
        self.manager.wait_until_finished()
        if not processes.is_first():
            return
        steps = committed_steps(self.folder)
        for step in steps:
            if not _manifest(self.folder / str(step)).exists():
                write_manifest(self.folder / str(step))
        for manifest in self.folder.glob("*.sha256.json"):
            if manifest.name.split(".")[0] not in map(str, steps):
                manifest.unlink()


def _restore_sound(folder: Path, like: TrainState) -> tuple[TrainState | None, str]:
    """The state in a checkpoint, or what is wrong with it."""
    wrong = processes.first_does(lambda: damaged_file(folder))
    if wrong:
        return None, wrong
    params, rest = _split(like)
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            params = checkpointer.restore(epath.Path(folder / "params"), params)
            rest = checkpointer.restore(epath.Path(folder / "rest"), rest)
    except Exception as error:  # whatever Orbax and its libraries raise on what is not whole
        if _manifest(folder).exists():
            raise  # the files are as they were written
        return None, f"it has no manifest and cannot be restored ({type(error).__name__})"
    return TrainState(params=params, **rest), ""


def _score_of(checkpoint: Path) -> float | None:
    """The validation score that was saved with a checkpoint, where there was one."""
    file = checkpoint / "metrics" / "metrics"
    return float(json.loads(file.read_text())[SCORE]) if file.exists() else None


def _unreadable_score(checkpoint: Path) -> bool:
    """Whether Orbax would stumble over it: it reads the scores of all checkpoints at the start."""
    try:
        _score_of(checkpoint)
    except (ValueError, KeyError, TypeError):
        return True
    return False


def _split(state: TrainState) -> tuple[Params, dict[str, Any]]:
    """Parameters alone, so that translation reads nothing else, and the rest by field name."""
    fields = state._asdict()
    return fields.pop("params"), fields


def abstract_params(config: ModelConfig, vocabulary_size: int) -> Params:
    """Shapes and types of a model's parameters."""
    model = Transformer(config, vocabulary_size)
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
    return [p for p in run.averages.glob("*-last*") if p.is_dir() and _manifest(p).exists()]


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
    scores = [None if _unreadable_score(f) else _score_of(f) for f in folders]
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
