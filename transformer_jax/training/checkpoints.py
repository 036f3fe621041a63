"""Checkpoints of a run, by Orbax; each has a manifest of SHA-256 sums, since Orbax restores a flipped bit silently."""

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy
from etils import epath

from transformer_jax.config import ModelConfig
from transformer_jax.errors import RunError
from transformer_jax.model.transformer import Transformer
from transformer_jax.training.run_folder import RunFolder, write_atomically
from transformer_jax.training.state import Params, TrainState, init_params

log = logging.getLogger(__name__)
SCORE = "score"  # higher is better


def write_manifest(checkpoint: Path) -> None:
    """Writes CHECKPOINT.sha256.json beside a committed checkpoint: the sum of each of its files."""
    sums = {
        str(path.relative_to(checkpoint)): _sha256(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }
    write_atomically(_manifest(checkpoint), json.dumps(sums, indent=1).encode())


def damaged_file(checkpoint: Path) -> str | None:
    """The first file that its manifest does not confirm, with what is wrong; None for a sound checkpoint.

    A checkpoint without a manifest (killed between Orbax's commit and the manifest) is taken as Orbax left it.
    """
    manifest = _manifest(checkpoint)
    if not manifest.exists():
        log.warning("checkpoint %s has no manifest; its files are not verified", checkpoint.name)
        return None
    try:
        sums = json.loads(manifest.read_text())
    except ValueError:
        return f"{manifest.name} is not JSON"
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
    """Steps of the finished checkpoints in a folder, ascending; half-written ones have another name."""
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if re.fullmatch(r"\d+", p.name) and p.is_dir())


class Checkpoints:
    """The checkpoints of a run being trained: saved asynchronously, the best and the last k kept."""

    def __init__(self, folder: Path, keep_last: int) -> None:
        self.folder = folder

        def score(metrics: dict[str, float]) -> float:
            return metrics[SCORE]

        keep = [
            preservation_policy.LatestN(keep_last),
            preservation_policy.BestN(
                get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False
            ),
        ]
        options = ocp.CheckpointManagerOptions(
            best_fn=score,
            preservation_policy=preservation_policy.AnyPreservationPolicy(keep),
            cleanup_tmp_directories=True,
        )
        self.manager = ocp.CheckpointManager(folder, options=options)

    def save(self, state: TrainState, step: int, score: float | None) -> None:
        """Starts to write a checkpoint; `score` is the validation's, where there was one at this step."""
        self._finish()
        params, rest = _split(state)
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params), rest=ocp.args.StandardSave(rest)
        )
        self.manager.save(step, args=items, metrics=None if score is None else {SCORE: score})

    def restore_latest(self, like: TrainState) -> TrainState | None:
        """The newest sound checkpoint, with the shardings of `like`; None where there are no checkpoints at all.

        Raises:
          RunError: there are checkpoints, and every one is damaged.
        """
        steps = committed_steps(self.folder)
        params, rest = _split(like)
        for step in reversed(steps):
            wrong = damaged_file(self.folder / str(step))
            if wrong:
                log.warning("checkpoint %s is damaged: %s; trying the one before", step, wrong)
                continue
            items = ocp.args.Composite(
                params=ocp.args.StandardRestore(params), rest=ocp.args.StandardRestore(rest)
            )
            restored = self.manager.restore(step, args=items)
            self._drop_after(step)
            return TrainState(params=restored["params"], **restored["rest"])
        if steps:
            raise RunError(f"Every checkpoint in {self.folder} is damaged ({len(steps)} tried). Train anew.")
        return None

    def best_score(self) -> float | None:
        """The highest validation score among the checkpoints kept."""
        step = self.manager.best_step()
        metrics = None if step is None else self.manager.metrics(step)
        return metrics[SCORE] if metrics else None

    def close(self) -> None:
        """Waits until everything is written."""
        self._finish()
        self.manager.close()

    def _drop_after(self, step: int) -> None:
        for later in committed_steps(self.folder):
            if later > step:
                self.manager.delete(later)
                _manifest(self.folder / str(later)).unlink(missing_ok=True)

    def _finish(self) -> None:
        """Waits for the save in flight; writes missing manifests and removes those of deleted checkpoints."""
        self.manager.wait_until_finished()
        steps = committed_steps(self.folder)
        for step in steps:
            if not _manifest(self.folder / str(step)).exists():
                write_manifest(self.folder / str(step))
        for manifest in self.folder.glob("*.sha256.json"):
            if manifest.name.split(".")[0] not in map(str, steps):
                manifest.unlink()


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
    folder = _find(run, which)
    wrong = damaged_file(folder)
    if wrong:
        raise RunError(f"Checkpoint {folder} is damaged: {wrong}. Choose another with --checkpoint.")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or device), like
    )
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(epath.Path(folder / "params"), like), folder.name


def _find(run: RunFolder, which: str) -> Path:
    steps = committed_steps(run.checkpoints)
    if which == "average":
        averages = [p for p in run.averages.glob("*-last*") if p.is_dir()] if run.averages.is_dir() else []
        if not averages:
            raise RunError(f"{run.path} has no averaged checkpoint: run `average --workdir={run.path}` first.")
        return max(averages, key=lambda p: [int(n) for n in re.findall(r"\d+", p.name)])
    if not steps:
        raise RunError(f"{run.path} has no checkpoint yet: `train` writes the first after train.checkpoint_every steps.")
    if which == "latest":
        return run.checkpoints / str(steps[-1])
    if which == "best":
        manager = Checkpoints(run.checkpoints, keep_last=len(steps)).manager
        return run.checkpoints / str(manager.best_step() or steps[-1])
    if which.isdigit() and int(which) in steps:
        return run.checkpoints / str(int(which))
    raise RunError(f"--checkpoint={which} is not there. Valid: latest, best, average, {', '.join(map(str, steps))}.")


def average(workdir: str, last: int = 5) -> Path:
    """Averages the parameters of the last k checkpoints into one that the other commands take as `average`.

    Returns:
      Its folder, WORKDIR/averages/STEP-lastK.

    Raises:
      RunError: the run has fewer checkpoints.
    Source: Vaswani et al. 2017, section 6.1.
    """
    from transformer_jax.text.vocabulary import load_vocabulary

    run = RunFolder(workdir)
    config = run.read_config()
    steps = committed_steps(run.checkpoints)
    if last < 1 or len(steps) < last:
        raise RunError(f"--last={last}: {run.path} has {len(steps)} checkpoints ({', '.join(map(str, steps))}).")
    like = abstract_params(config.model, load_vocabulary(run.vocabulary_file).size)
    total = None
    for step in steps[-last:]:
        params = jax.tree.map(lambda x: x.astype("float64"), jax.device_get(load_params(run, str(step), like)[0]))
        total = params if total is None else jax.tree.map(lambda a, b: a + b, total, params)
    mean = jax.tree.map(lambda x: (x / last).astype("float32"), total)
    folder = run.averages / f"{steps[-1]}-last{last}"
    folder.mkdir(parents=True, exist_ok=True)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(epath.Path(folder / "params"), mean, force=True)
    write_manifest(folder)
    log.info("averaged checkpoints %s into %s", ", ".join(map(str, steps[-last:])), folder)
    return folder
