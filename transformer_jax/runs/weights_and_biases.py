"""Metrics of a run at Weights & Biases (wandb.ai), if train.wandb_project is set.

wandb itself reads the key, the server and the mode from its login or from WANDB_* variables;
WANDB_MODE=offline keeps everything in the run's folder.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.config.schema import KEYS, value_at
from transformer_jax.config.serialization import to_dict
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.runs.run_folder import RunFolder


def run_id(run: RunFolder) -> str:
    """The id of a run: the same whenever the run continues, and different for other runs.

    It depends on the folder's name, the training text, the seed and the other immutable keys that
    are not at their defaults, so a key of a later version does not change it.
    """
    config = run.read_config()
    changed = {
        key.name: value_at(config, key.name)
        for key in KEYS.values()
        if not key.mutable and value_at(config, key.name) != key.default
    }
    text = json.dumps([run.path.absolute().name, config.seed, changed, *run.fingerprints()[:1]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class WandbWriter:
    """Writes metrics to a W&B run, which a continued run continues."""

    def __init__(self, project: str, workdir: Path):
        """Starts or continues the W&B run of a run's folder, which has a config.json.

        Raises:
          ConfigError: wandb is not installed.
          RunError: wandb cannot start, for example without a login.
        """
        wandb = import_wandb(project)
        run = RunFolder(workdir)
        try:
            self._run = wandb.init(
                project=project,
                id=run_id(run),
                name=workdir.absolute().name,
                config=to_dict(run.read_config()),
                dir=str(workdir),
                resume="allow",
                settings=wandb.Settings(console="off"),
            )
        except Exception as error:
            raise RunError(
                f"Weights & Biases cannot start ({error}). Log in with `wandb login`, set "
                "WANDB_MODE=offline, or give --config.train.wandb_project=none."
            ) from error
        # Steps since the last checkpoint are taken again by a continued run, and W&B ignores values
        # of past steps unless the step is a metric of its own.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Adds one point to each curve, under the name "kind/name"."""
        named = {f"{kind}/{name}": float(value) for name, value in values.items()}
        self._run.log({"step": step, **named})

    def close(self) -> None:
        """Ends the W&B run."""
        self._run.finish()


def import_wandb(project: str) -> Any:
    """The package wandb. Raises ConfigError, naming the project, if it is not installed."""
    try:
        import wandb
    except ImportError:
        raise ConfigError(
            f"train.wandb_project={project!r} needs the package wandb: pip install wandb, or give "
            "--config.train.wandb_project=none."
        ) from None
    return wandb
