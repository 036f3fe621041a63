"""The `experiment` command: `python -m experiments.NAME`, also where there is no checkout."""

import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.config.files import shipped
from transformer_jax.errors import ConfigError

IS_COMMAND = re.compile(r'^(if __name__ == "__main__"|main\()', re.MULTILINE)


def experiment(name: str = "", arguments: Sequence[str] = ()) -> None:
    """Runs an experiment of ./experiments, or else of those that are installed; lists them for "".

    Args:
      name: the experiment's module, a file or a package.
      arguments: its own command line.

    Raises:
      ConfigError: there is no such experiment.
      SystemExit: the experiment ended.
    """
    folder = Path("experiments")
    file = find_module(folder, name) if name else None
    if file is None:
        folder = shipped("experiments")
        file = find_module(folder, name or "__main__")
    # A module that the project's experiments share does nothing when it is run.
    is_ours = folder.resolve() == shipped("experiments").resolve()
    if file and is_ours and not IS_COMMAND.search(file.read_text(encoding="utf-8")):
        file = None
    if file is None:
        raise ConfigError(
            f"there is no experiment {name!r}. `transformer-jax experiment` lists them."
        )
    sys.path.insert(0, str(folder.absolute().parent))  # experiments import one another
    sys.argv = [str(file), *arguments]
    try:
        runpy.run_path(str(file), run_name="__main__")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "grammar":
            raise
        needs = "needs the folder grammar of a checkout: run it in one."
        raise ConfigError(f"experiment {name} {needs}") from None


def find_module(folder: Path, name: str) -> Path | None:
    """What `python -m` runs for a module or package of a folder; None if it is neither."""
    if Path(name).name != name:  # such as ../other
        return None
    files = (folder / f"{name}.py", folder / name / "__main__.py")
    return next((file for file in files if file.is_file()), None)
