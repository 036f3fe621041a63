"""A run's folder: what stands where, and whose run it is."""

import os
from pathlib import Path

from transformer_jax.config import Config, from_json, identity_differences, to_json
from transformer_jax.errors import ConfigError, RunError


class RunFolder:
    """Paths in a run's folder, and its config."""

    def __init__(self, workdir: str | os.PathLike) -> None:
        self.path = Path(workdir).absolute()
        self.config_file = self.path / "config.json"
        self.vocabulary_file = self.path / "vocabulary.model"
        self.checkpoints = self.path / "checkpoints"
        self.averages = self.path / "averages"
        self.evaluations = self.path / "evaluations"

    def read_config(self) -> Config:
        """The config of the run that lives here.

        Raises:
          RunError: there is no run here.
        """
        if not self.config_file.is_file():
            raise RunError(
                f"{self.path} holds no run: it has no config.json. Train one with "
                f"`python -m transformer_jax train --config=CONFIG --workdir={self.path}`."
            )
        try:
            return from_json(self.config_file.read_text(encoding="utf-8"))
        except (ConfigError, UnicodeDecodeError) as error:
            raise RunError(f"{self.config_file} cannot be read: {error}") from None

    def check(self, config: Config) -> None:
        """Writes nothing.

        Raises:
          RunError: another run lives here (each key that differs is named), or files that are no run's.
        """
        if self.config_file.exists():
            differences = identity_differences(self.read_config(), config)
            if differences:
                raise RunError(
                    f"{self.path} holds another run: {'; '.join(differences)}. "
                    "Choose another --workdir, or go back to that run's settings."
                )
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise RunError(
                f"{self.path} is not empty and holds no run. Choose another --workdir, or empty it."
            )

    def claim(self, config: Config) -> None:
        """Creates the folder for this config, after `check`. Raises RunError where it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.config_file, to_json(config).encode())
        except OSError as error:
            raise RunError(f"Cannot write into {self.path}: {error.strerror}. Choose another --workdir.") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
