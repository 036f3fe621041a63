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
    is_known = file.is_file() and file.name == f"{name or '__main__'}.py"
    # A module that the project's experiments share does nothing when it is run.
    is_shared = is_known and file != own and '__name__ == "__main__"' not in file.read_text()
    if not is_known or is_shared:
        raise ConfigError(
            f"there is no experiment {name!r}. `transformer-jax experiment` lists them."
        )
    sys.path.insert(0, str(file.absolute().parent.parent))  # experiments import one another
    sys.argv = [str(file), *arguments]
    runpy.run_path(str(file), run_name="__main__")
