"""Checkpoints of a run, written by Orbax.

Beside each checkpoint is a manifest of SHA-256 sums, since Orbax restores a flipped bit silently.
"""

import concurrent.futures
import functools
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax

from transformer_jax.errors import RunError
from transformer_jax.files import inode, is_stream, write_atomically
from transformer_jax.parallel import processes
from transformer_jax.runs.run_sums import identity_of

if TYPE_CHECKING:
    from transformer_jax.runs.orbax_files import Manager

Params = Any  # a pytree of arrays
# A training state: a NamedTuple of pytrees, among them `params`.
State = TypeVar("State", bound=NamedTuple)

log = logging.getLogger(__name__)
SCORE = "score"  # higher is better
METRICS = "metrics/metrics"  # the file in a checkpoint that holds the score
INT8 = "int8"  # in a checkpoint, in place of params: a folder of parameters and their scales
# In a manifest, beside the names of files.
VOCABULARY, SETTINGS = "vocabulary of the run", "settings of the run"
# What earlier versions wrote for SETTINGS; it changed with each new key, and so it is not read.
OLD_SETTINGS = "immutable keys of the run"
LARGEST_STEP = 2**31 - 1  # the training state counts its steps as int32
FULL = ("No space left on device", "Disk quota exceeded")


def reason_of(error: BaseException) -> str:
    """Why a save failed, in a few words: the system's reason, or the end of its message."""
    message = " ".join(str(error).split())
    codes = re.findall(r"\[(?:os_error_code='|Errno )(\d+)", message)
    known = [x for x in FULL if x in message] + [os.strerror(int(code)) for code in codes[-1:]]
    return known[0] if known else message[-200:]


def write_manifest(checkpoint: Path) -> None:
    """Writes CHECKPOINT.sha256.json, the sum of each file, beside a committed checkpoint.

    It has sums of the run's vocabulary and settings too: so it does not fit another run.
    """
    sums = {name: _sha256(path) for name, path in _files(checkpoint).items()}
    _write_sums(checkpoint, sums | _sums_of_run(checkpoint))


def _sums_of_run(checkpoint: Path) -> dict[str, str]:
    """Sums of what a run cannot change, also if a link leads to the checkpoints.

    A file that is missing, or damaged, has none: what reads it reports that.
    """
    folder = checkpoint.absolute().parent.parent
    sums = {}
    if (vocabulary := folder / "vocabulary.model").is_file():
        sums[VOCABULARY] = _sha256(vocabulary)
    if (identity := identity_of(folder / "run.sha256.json")) is not None:
        sums[SETTINGS] = identity
    return sums


def _files(checkpoint: Path) -> dict[str, Path]:
    """The files of a checkpoint by their names in it."""
    paths = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    return {str(path.relative_to(checkpoint)): path for path in paths}


def _write_sums(checkpoint: Path, sums: dict[str, str]) -> None:
    write_atomically(manifest_of(checkpoint), json.dumps(sums, indent=1).encode())


def damaged_file(checkpoint: Path) -> str | None:
    """Describes the first file that does not match the manifest; None if all files match.

    A checkpoint without a manifest (the run was killed between commit and manifest) is accepted.
    """
    manifest = manifest_of(checkpoint)
    if not manifest.exists():
        log.warning("checkpoint %s has no manifest; its files are not verified", checkpoint.name)
        return None
    try:
        sums = {} if is_stream(manifest) else dict(json.loads(manifest.read_text()))
    except PermissionError:
        raise  # it is not damaged: training must not set the checkpoint aside
    except (OSError, ValueError, TypeError, RecursionError):
        sums = {}
    if not sums:
        return f"{manifest.name} is not a manifest"
    # The score may be written after the manifest.
    unlisted = _files(checkpoint).keys() - sums.keys() - {METRICS}
    of_run = _sums_of_run(checkpoint)
    sums.pop(OLD_SETTINGS, None)
    for what in (VOCABULARY, SETTINGS):
        own = sums.pop(what, None)
        if own not in (None, of_run.get(what, own)):
            return f"it is of another run than {checkpoint.parent.parent}: see the {what}"
    for name, want in sums.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if _sha256(path) != want:
            return f"{name} does not have the SHA-256 sum that was written"
    return f"{min(unlisted)} is not in {manifest.name} (remove it)" if unlisted else None


def manifest_of(checkpoint: Path) -> Path:
    """The path of a checkpoint's manifest, whether it exists or not."""
    return checkpoint.with_name(f"{checkpoint.name}.sha256.json")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def committed_steps(folder: Path) -> list[int]:
    """Steps of the finished checkpoints, ascending; unfinished ones have another name."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if _is_checkpoint(path))


def _is_checkpoint(path: Path) -> bool:
    """Whether this is the folder of a checkpoint; logs a path that only has such a name."""
    if not re.fullmatch("[0-9]+", path.name) or not path.is_dir():
        return False
    is_step = len(path.name) < 11 and str(int(path.name)) == path.name
    if is_step and int(path.name) <= LARGEST_STEP:
        # A checkpoint that lost its parameters still has one of the others, and counts as damaged.
        names = "params", INT8, "_CHECKPOINT_METADATA"
        signs = (*(path / name for name in names), manifest_of(path))
        if any(sign.exists() for sign in signs):
            return True
    _log_stray(path)
    return False


@functools.cache
def _log_stray(path: Path) -> None:  # once, since training lists the folder at each save
    log.warning("%s is ignored: it is not a checkpoint that `train` wrote", path)


def set_aside(path: Path, reason: str = "damaged") -> Path:
    """Renames a checkpoint and its manifest to STEP.REASON, or STEP.REASON2 if that exists, ..."""
    names = (f"{path.name}.{reason}{n if n > 1 else ''}" for n in itertools.count(1))
    new = next(one for one in map(path.with_name, names) if not os.path.lexists(one))
    path.rename(new)
    if manifest_of(path).exists():
        manifest_of(path).rename(manifest_of(new))
    return new


def set_aside_later(folder: Path, steps: Sequence[int], kept: int, reason: str = "damaged") -> None:
    """Sets aside the checkpoints after the step `kept`, and those that Orbax cannot list."""
    for step in steps:
        path = folder / str(step)
        if step > kept or unreadable_score(path):
            new = set_aside(path, reason)
            log.warning("the %s checkpoint %s is now %s", reason, path, new.name)


class Checkpoints:
    """A run's checkpoints: saves asynchronously, keeps the best and the last `keep_last`."""

    def __init__(
        self, folder: Path, keep_last: int, on_save_error: str = "stop", every: int = 1
    ) -> None:
        self.folder, self.on_save_error, self.kept = folder, on_save_error, (keep_last, every)
        self._sealer = concurrent.futures.ThreadPoolExecutor(1, "manifests")
        self._sealing: concurrent.futures.Future[None] | None = None
        self._newest_failed, self._run = False, inode(folder.parent)

    @functools.cached_property
    def manager(self) -> "Manager":
        """Orbax's manager, created at the first save; it removes unfinished checkpoints."""
        from transformer_jax.runs.orbax_files import make_manager

        if processes.is_first():
            for manifest in self.folder.glob(".*.tmp"):
                manifest.unlink()
        return make_manager(self.folder, *self.kept, SCORE, _is_checkpoint)

    def save(self, state: NamedTuple, step: int, score: float | None) -> None:
        """Starts to write a checkpoint.

        Args:
          step: the number of training steps taken.
          score: the validation score; None: there was no validation at this step.

        Raises:
          RunError: this checkpoint or the one before cannot be written, and `on_save_error` is
            "stop"; or the run's folder was moved or removed.
        """
        self.check(wait=True)
        self._newest_failed = False
        processes.first_does(lambda: self._make_way(step))
        params, rest = _split(state)
        metrics = None if score is None else {SCORE: score}
        error = None
        try:
            self.manager.save_parts(step, {"params": params, "rest": rest}, metrics)
        except Exception as raised:
            error = raised
        if self._any_failed(error):
            return
        # The manifest is written in a thread, not at the next save: a run that is killed before its
        # next checkpoint has the manifest of this one.
        self._sealing = self._sealer.submit(self._seal)

    def check(self, wait: bool = False) -> None:
        """Checks whether the current save failed, if it has ended; with `wait`, waits for its end.

        Several processes check only with `wait`, and all get the same answer.

        Raises:
          RunError: the save failed, and `on_save_error` is "stop".
        """
        if self._sealing is None:
            return
        if not wait and (processes.count() > 1 or not self._sealing.done()):
            return
        error = self._sealing.exception()
        self._sealing = None
        self._any_failed(error)

    def abandon(self) -> None:
        """Call it after a failure. Waits for the current save, unless there are several processes.

        Errors of the save are suppressed, so that the original failure is reported.
        """
        if processes.count() == 1:
            if self._sealing is not None:
                self._sealing.exception()
            self._sealer.shutdown()
            self._close_manager()

    def close(self) -> None:
        """Waits until all processes have written everything.

        Raises:
          RunError: the last checkpoint of the run could not be written.
        """
        try:
            self.check(wait=True)
        finally:
            self._sealer.shutdown()
            self._close_manager()
            if self._newest_failed:
                self._remove_half_written()
        processes.gather(None)
        if self._newest_failed and self.on_save_error == "continue":  # "stop" raised already
            raise RunError(
                f"the last checkpoint could not be written to {self.folder}; the newest is of step "
                f"{max(committed_steps(self.folder), default=0)}. Free disk space and call `train` "
                "again."
            )

    def _close_manager(self) -> None:
        if "manager" in self.__dict__:
            try:
                self.manager.close()
            except Exception as error:  # Orbax raises a save's error again
                log.debug("closing the checkpoints: %s", error)
            del self.__dict__["manager"]

    def _any_failed(self, error: BaseException | None) -> bool:
        """Whether a save failed on some process; all report it, and its files make space."""
        reasons = processes.gather(None if error is None else f"{type(error).__name__}: {error}")
        found = next((reason for reason in reasons if reason), None)
        if found is None:
            return False
        error = error or RuntimeError(found)
        self._newest_failed = True
        self._close_manager()
        self._remove_half_written()
        text = f"a checkpoint could not be written to {self.folder}: {reason_of(error)}"
        if self.on_save_error == "stop":
            fix = "free disk space" if text.endswith(FULL) else "put that right"
            raise RunError(
                f"{text}. No earlier checkpoint was touched: {fix} and call `train` again, or "
                "set train.on_save_error=continue to train on without this checkpoint."
            ) from error
        log.warning("%s; training continues (train.on_save_error=continue)", text)
        return True

    def _remove_half_written(self) -> None:
        if processes.is_first():
            for left in self.folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(left, ignore_errors=True)

    def _make_way(self, step: int) -> None:
        """Sets aside files that have the name of the next checkpoint, or of its manifest.

        Raises RunError if the run's folder is not the one that it was: Orbax would make a new one.
        """
        found = inode(self.folder.parent)
        self._run = self._run or found
        if found is None or found != self._run:  # a new run had no folder when it began
            raise RunError(
                f"{self.folder.parent} was moved or removed while the run trains, so step {step} "
                "is not saved. Call `train` again where its checkpoints are now."
            )
        folder = self.folder / str(step)
        if _is_checkpoint(folder):
            return
        for path in (folder, manifest_of(folder)):
            if os.path.lexists(path):  # a link may lead nowhere
                log.warning("%s is in the way; it is now %s", path, set_aside(path).name)

    def _seal(self) -> None:
        """After the commit: adds missing manifests and removes those of deleted checkpoints."""
        self.manager.wait_until_finished()
        if not processes.is_first():
            return
        steps = committed_steps(self.folder)
        for step in steps:
            if not manifest_of(self.folder / str(step)).exists():
                write_manifest(self.folder / str(step))
        for manifest in self.folder.glob("*.sha256.json"):
            name = manifest.name.removesuffix(".sha256.json")
            if name.isdecimal() and manifest.is_file() and int(name) not in steps:
                manifest.unlink()


def restore_if_undamaged(folder: Path, like: State) -> tuple[State | None, str]:
    """The state in a checkpoint and "", or None and what is wrong with the checkpoint."""
    wrong = processes.first_does(lambda: damaged_file(folder))
    if wrong:
        return None, wrong
    from transformer_jax.runs.orbax_files import read_arrays

    params, rest = _split(like)
    try:
        params = read_arrays(folder / "params", params)
        rest = read_arrays(folder / "rest", rest)
    except Exception as error:  # Orbax and its libraries raise many types on damaged files
        if manifest_of(folder).exists():
            raise  # the files match their manifest, so the error has another cause
        return None, f"it has no manifest and cannot be restored ({type(error).__name__})"
    if (step := int(rest.get("step", folder.name))) != int(folder.name):
        return None, f"it is the checkpoint of step {step}, under another name"
    return like._replace(params=params, **rest), ""


def score_of(checkpoint: Path) -> float | None:
    """The validation score that was saved with a checkpoint; None if none was saved."""
    file = checkpoint / METRICS
    return float(json.loads(file.read_text())[SCORE]) if file.exists() else None


def add_score(checkpoint: Path, score: float) -> None:
    """Adds the validation score to a checkpoint that was saved before its validation had ended.

    Orbax's manager does not read it if the manager exists already.
    """
    file = checkpoint / METRICS
    if file.exists():
        return
    try:
        write_atomically(file, json.dumps({SCORE: score}).encode())
        if manifest_of(checkpoint).exists():  # otherwise the next save writes it
            sums = json.loads(manifest_of(checkpoint).read_text())
            _write_sums(checkpoint, sums | {METRICS: _sha256(file)})
    except OSError as error:
        log.warning("the score of %s could not be written: %s", checkpoint, error)


def unreadable_score(checkpoint: Path) -> bool:
    """Whether the score's file is damaged; Orbax reads all scores at its start and would fail."""
    try:
        score_of(checkpoint)
    except (ValueError, KeyError, TypeError):
        return True
    return False


def _split(state: NamedTuple) -> tuple[Params, dict[str, Any]]:
    """Splits a state into parameters, which translation reads alone, and the rest by name.

    Fields without arrays are left out, so that checkpoints made before such a field existed load.
    """
    fields = {name: value for name, value in state._asdict().items() if jax.tree.leaves(value)}
    return fields.pop("params"), fields
