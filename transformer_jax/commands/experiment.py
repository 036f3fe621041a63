"""The `experiment` command: `python -m experiments.NAME`, also where there is no checkout."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.config.files import shipped
from transformer_jax.errors import ConfigError


def experiment(name: str = "", arguments: Sequence[str] = ()) -> None:
    """Runs an experiment of ./experiments, or else of those that are installed; lists them for "".

    Args:
      name: the experiment's module.
      arguments: its own command line.

    Raises:
      ConfigError: there is no such experiment.
      SystemExit: the experiment ended.
    """
    own = Path("experiments", f"{name}.py")
    file = own if own.is_file() else shipped("experiments") / f"{name or '__main__'}.py"
    if not file.is_file() or file.name != f"{name or '__main__'}.py":
        raise ConfigError(
            f"there is no experiment {name!r}. `transformer-jax experiment` lists them."
        )
    sys.path.insert(0, str(file.absolute().parent.parent))  # experiments import one another
    sys.argv = [str(file), *arguments]
    runpy.run_path(str(file), run_name="__main__")
