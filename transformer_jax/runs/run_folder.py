"""A run's folder: the paths in it, the checks that it belongs to a run, and its lock."""

import fcntl
import functools
import logging
import os
import re
import shlex
from pathlib import Path
from typing import IO

from transformer_jax.config.changes import REVERSE, immutable_differences
from transformer_jax.config.checks import check_values
from transformer_jax.config.schema import Config
from transformer_jax.config.serialization import from_json, to_json
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.files import (
    DISK_FULL,
    in_the_way,
    is_stream,
    is_temporary,
    leads_nowhere,
    read_utf8,
    write_atomically,
)
from transformer_jax.runs.run_sums import check_sums, identity_of, write_sums

log = logging.getLogger(__name__)
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
PATTERN = re.compile(r"[*?\[\\]")
# In corpus.sha256, first: how a run was made that was not trained in its folder.
IMPORTED, PRUNED = "imported: trained elsewhere", "pruned: not trained since"
QUANTIZED = "quantized: not trained since"
MADE = (IMPORTED, PRUNED, QUANTIZED)  # then come the fingerprints of the run that it was made of
# Flags that name a run beside --workdir.
ORIGIN, TEACHER = "--init_from", "--config.train.teacher"
NO_TEACHER = "0" * 64  # in place of a teacher's fingerprint
LOCK = ".lock"  # the file stays; a running `train` holds a lock of the operating system on it


class RunFolder:
    """Paths in a run's folder, and its config."""

    def __init__(self, workdir: str | os.PathLike, flag: str = "--workdir") -> None:
        self._flag = flag  # with which a user chose the folder
        if URL.match(str(workdir)):
            raise ConfigError(
                f"{flag}={workdir}: a run's folder is on a disk or a network disk, whose "
                "renames are atomic (docs/many_machines.md). Copy the run there when it has ended."
            )
        self.path = Path(workdir).absolute()
        self.config_file = self.path / "config.json"
        self.corpus_file = self.path / "corpus.sha256"
        self.vocabulary_file = self.path / "vocabulary.model"
        self.sums_file = self.path / "run.sha256.json"
        self.checkpoints = self.path / "checkpoints"
        self.averages = self.path / "averages"
        self.evaluations = self.path / "evaluations"
        self._lock: IO[bytes] | None = None
        self._identity: str | None = None  # of the run that was here before `claim`

    def read_config(self) -> Config:
        """The config of the run in this folder; every command that uses a run calls this.

        Raises:
          RunError: the folder holds no run, or its config or vocabulary was changed by hand.
        """
        self._check_files()
        if not self.config_file.is_file():
            raise RunError(f"{self.path} holds no run: it has no config.json. {self._advice()}")
        try:
            text = self.config_file.read_text(encoding="utf-8")
            config = from_json(text)
            check_values(config)
        except (ConfigError, UnicodeDecodeError) as error:
            if isinstance(error, ConfigError) and '"architectures"' in text:
                raise RunError(
                    f"{self.path} is a model of Hugging Face, not a run. Make a run of it: "
                    f"`transformer-jax import --from={self.path} --workdir=OTHER`."
                ) from None
            raise RunError(f"{self.config_file} cannot be read: {error}") from None
        check_sums(self.sums_file, self.config_file, self.vocabulary_file)
        return config

    def _advice(self) -> str:
        """What to do if there is no run here: name the run around this path, or train one."""
        for folder in self.path.parents:
            if all((folder / own.name).exists() for own in (self.config_file, self.checkpoints)):
                named = shlex.quote(f"--workdir={folder}")
                if self.path.name == REVERSE:
                    return "The run in the folder above has one direction (train.agreement_weight)."
                if not self.path.exists():
                    return f"There is no such folder in the run {named}."
                return f"The run is in the folder above: {named}, and --checkpoint names a step."
        if self._flag != "--workdir":
            return f"Name a run with {self._flag}=FOLDER."
        named = shlex.quote(f"--workdir={self.path}")
        return f"Train one with `python -m transformer_jax train --config=CONFIG {named}`."

    def check_new(self) -> None:
        """Raises RunError if the folder holds a run."""
        if self.config_file.exists():
            raise RunError(f"{self.path} holds a run. Choose another {self._flag}.")

    def check(self, config: Config, lock: bool = True) -> None:
        """Checks that `train` may use the folder. Writes nothing but the lock of an existing run.

        Args:
          config: the config of the run to be trained.
          lock: whether to lock the run.

        Raises:
          RunError: the folder holds another run (the message names each key that differs) or files
            that belong to no run, cannot be written, or is used by another `train`.
        """
        self.check_name()
        self._check_files()
        if wrong := in_the_way(self.path):
            raise RunError(f"Cannot write into {self.path}: {wrong}. Choose another {self._flag}.")
        if self.config_file.exists():
            differences = immutable_differences(self.read_config(), config)
            if differences:
                raise RunError(
                    f"{self.path} holds another run: {'; '.join(differences.values())}. "
                    "Choose another --workdir, or go back to that run's settings."
                )
        elif self.path.is_dir() and any(
            not is_temporary(p) and p.name != LOCK for p in self.path.iterdir()
        ):
            raise RunError(
                f"{self.path} is not empty and holds no run. Choose another {self._flag}."
            )
        if self.checkpoints.exists() and not self.checkpoints.is_dir():
            raise RunError(f"Cannot write into {self.checkpoints}: it is a file.")
        if self.checkpoints.exists() and not os.access(self.checkpoints, os.W_OK):
            raise RunError(f"Cannot write into {self.checkpoints}: change its permissions.")
        if lock and self.config_file.exists():
            self.lock()

    @functools.cached_property  # one object, which holds the lock
    def reverse(self) -> "RunFolder":
        """The run of the other direction of translation, with train.agreement_weight."""
        return RunFolder(self.path / REVERSE)

    def check_can_train(self) -> None:
        """Raises RunError if training may not write here, whatever the config is."""
        if self.made is not None:
            raise RunError(
                f"{self.path} was {self.made} and cannot be trained on. Fine-tune it in another "
                f"folder: --config=finetune:{self.path} --workdir=OTHER."
            )
        main = RunFolder(self.path.parent)
        may_be_part = self.path.name == REVERSE and main.config_file.is_file()
        if may_be_part and main.read_config().train.agreement_weight is not None:
            raise RunError(
                f"{self.path} is trained together with {main.path}: use --workdir={main.path} for "
                "both, or train.init_from to start a new run from one of them."
            )

    @property
    def made(self) -> str | None:
        """ "imported", "pruned" or "quantized"; None: it was trained here.

        None too if its corpus file cannot be read.
        """
        try:
            how = self.corpus_file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError):  # `check_corpus` reports it
            return None
        return how.partition(":")[0] if how in MADE else None

    def fingerprints(self) -> tuple[str, ...]:
        """Of the training split, the validation split and the teacher, as far as recorded.

        Of a run that was not trained here: those of the run that it was made of.

        Raises:
          DataError: they cannot be read.
          RunError: they are lost.
        """
        if not self.corpus_file.exists():
            self._check_not_lost(self.corpus_file)
            return ()
        known = read_utf8(self.corpus_file)
        if not known.strip():
            raise RunError(f"{self.corpus_file} is empty: put that run's file back.")
        first, _, rest = known.partition("\n")
        return tuple((rest if first.strip() in MADE else known).split())

    @property
    def is_imported(self) -> bool:
        """Whether `import` made the run, so that it has no text of its own."""
        return self.made == "imported"

    def check_name(self, done: str = "written") -> None:
        """Checks that Orbax can write checkpoints into the folder.

        Orbax treats paths as glob patterns and as UTF-8. Below a folder named [x] it writes
        checkpoints that cannot be restored, and reports no error.

        Args:
          done: what cannot be done otherwise, for the message.

        Raises:
          RunError: the path has characters that prevent this.
        """
        found = PATTERN.search(str(self.path))
        try:
            str(self.path).encode()
        except UnicodeEncodeError:
            wrong = "is not UTF-8"
        else:
            wrong = f"contains {found[0]}" if found else ""
        if wrong:
            raise RunError(
                f"{self._flag}={self.path}: this path {wrong}, so checkpoints cannot be {done} "
                f"there (nor with any of * ? [ \\ in it). Choose another {self._flag}, or rename "
                "the folder."
            )

    def _check_files(self) -> None:
        files = (self.config_file, self.corpus_file, self.vocabulary_file, self.sums_file)
        for path in (*files, self.path / "metrics.jsonl", self.path / LOCK):
            if is_stream(path):
                raise RunError(f"{path} is a pipe or a device, not a run's file. Remove it.")
        for path in (*files, self.path / "metrics.jsonl", self.checkpoints):
            if leads_nowhere(path):
                raise RunError(
                    f"{path} is a link that leads nowhere. Mount its disk, or remove it."
                )
        self._check_not_lost(self.config_file, self.vocabulary_file)

    def _check_not_lost(self, *files: Path) -> None:
        """Raises RunError if a run that has checkpoints lacks one of these files."""
        lost = [path.name for path in files if not path.is_file()]
        if lost and any(self.checkpoints.glob("[0-9]*")):
            raise RunError(
                f"{self.path} has checkpoints and no {lost[0]}: put that run's file back, or "
                "choose another --workdir."
            )

    def check_corpus(self, *fingerprints: str) -> None:
        """Raises RunError if the run has other text than that with these fingerprints.

        Args:
          fingerprints: of the training split, of the validation split, and of the teacher
            (train.teacher), which is NO_TEACHER if there is none. A run of an older version has
            recorded the first only, and one without a teacher the first two.
        """
        recorded = self.fingerprints() or fingerprints
        pattern = f"[0-9a-f]{{{len(fingerprints[0])}}}"
        if not (self.made or all(re.fullmatch(pattern, x) for x in recorded)):
            raise RunError(
                f"{self.corpus_file} is damaged: it holds SHA-256 sums of the run's text. Put that "
                "run's file back."
            )
        if fingerprints[0] != recorded[0]:
            raise RunError(
                f"{self.path} holds a run that was trained on other text: the content of its "
                "training split has changed (as by new files valid.*: without them it lacks some "
                "pairs). Choose another --workdir, or give data.path the text of that run."
            )
        if fingerprints[1:] and recorded[1:] and fingerprints[1] != recorded[1]:
            raise RunError(
                f"{self.path} holds a run with other validation text, and its best checkpoint and "
                "train.patience would compare scores of both. Restore that text, or start another "
                f"run from this one: --init_from={self.path} --workdir=OTHER."
            )
        if fingerprints[2:3] not in ((), recorded[2:3] or (NO_TEACHER,)):
            raise RunError(
                f"{self.path} holds a run with another teacher: train.teacher was added, taken "
                "away, or has other weights now. Give it the run with the weights of the start, "
                "or choose another --workdir."
            )

    def claim(self, config: Config, *fingerprints: str) -> None:
        """Creates the folder for this config and text, whose fingerprints `check_corpus` takes.

        Call the checks before; call `seal` after the vocabulary is written.

        Raises:
          RunError: the folder cannot be written, or another `train` was faster.
          OSError: the disk is full.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            # Without sums a run is accepted, so a kill before `seal` leaves a folder that loads.
            self._identity = identity_of(self.sums_file)
            self.sums_file.unlink(missing_ok=True)
            write_atomically(self.config_file, to_json(config).encode())
            write_atomically(self.corpus_file, "".join(f"{x}\n" for x in fingerprints).encode())
        except OSError as error:
            if error.errno in DISK_FULL:
                raise
            raise RunError(
                f"Cannot write into {self.path}: {error.strerror}. Choose another {self._flag}."
            ) from None

    def seal(self) -> None:
        """Writes the SHA-256 sums of config and vocabulary, which `read_config` verifies."""
        write_sums(self.sums_file, self.config_file, self.vocabulary_file, self._identity)

    def lock(self) -> None:
        """Keeps every other `train` out until `unlock` or the end of this process.

        Raises:
          RunError: another `train` uses the folder.
        """
        if self._lock is not None:
            return
        try:
            file = open(self.path / LOCK, "ab")  # noqa: SIM115  stays open with the lock
        except OSError as error:
            raise RunError(f"Cannot write {self.path / LOCK}: {error.strerror}.") from None
        try:
            # lockf locks for the process, so a worker that outlives it does not keep the lock.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.close()
            raise RunError(
                f"Another command is at work in {self.path}. Wait for it, or choose another "
                f"{self._flag}."
            ) from None
        except OSError as error:  # a file system without locks
            log.warning("%s cannot be locked (%s): do not start a second `train`", file.name, error)
        self._lock = file

    def unlock(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
