"""The `plot` command: the training curves of any runs in one figure."""

import logging
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.errors import ConfigError
from transformer_jax.reporting.plots import printable, runs_figure, save_figure
from transformer_jax.runs.metrics import read_metrics

log = logging.getLogger(__name__)


def plot(workdir: Sequence[str], output: str) -> None:
    """Draws the curves of runs; the legend has the names of their folders.

    Args:
      output: the .png file to write.

    Raises:
      UserError: a folder has no metrics, or the output is not a .png file.
    """
    if Path(output).is_dir():
        raise ConfigError(f"--output={output} is a folder: name a file in it.")
    if Path(output).suffix != ".png":
        raise ConfigError(f"--output={output}: a PNG is written; name a file that ends in .png.")
    folders = list(dict.fromkeys(workdir))
    names = [Path(folder).absolute().name for folder in folders]
    if len(set(names)) < len(names):
        names = folders
    runs = {name: read_metrics(folder) for name, folder in zip(names, folders, strict=True)}
    if empty := [name for name, metrics in runs.items() if not metrics]:
        log.warning("not drawn, without any metrics: %s", ", ".join(map(printable, empty)))
    log.info("curves: %s", save_figure(runs_figure(runs), output))
