"""run.sha256.json: SHA-256 sums of the files that the weights of a run depend on.

The sums cover the vocabulary and the immutable keys of config.json, section by section. Sums of
mutable keys would be wrong after each `train` that changes one.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformer_jax.config.schema import KEYS
from transformer_jax.errors import RunError
from transformer_jax.files import write_atomically

RUN = "run"  # the name of the run's identity in the file


def write_sums(
    sums_file: Path, config_file: Path, vocabulary_file: Path, identity: str | None = None
) -> None:
    """Writes the sums of two files, which must be complete.

    Args:
      sums_file: to write.
      config_file, vocabulary_file: the run's.
      identity: of the run, from its earlier sums: it stays, although a later version may add keys
        to the config; None: a new one, from the config as it is.
    """
    # Later versions may have other mutable keys, so the file lists those of this version.
    mutable = sorted(name for name, key in KEYS.items() if key.mutable)
    config = _config_sums(config_file, mutable)
    content = {
        "files": {vocabulary_file.name: _sum(vocabulary_file.read_bytes())},
        "config": config,
        "mutable": mutable,
        RUN: identity or _sum(json.dumps(config, sort_keys=True).encode()),
    }
    write_atomically(sums_file, (json.dumps(content, indent=1) + "\n").encode())


def identity_of(sums_file: Path) -> str | None:
    """What tells a run from others with the same vocabulary; None: its file does not say."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        return str(json.loads(sums_file.read_text(encoding="utf-8"))[RUN])
    return None


def check_sums(sums_file: Path, config_file: Path, vocabulary_file: Path) -> None:
    """Compares both files with their sums. Runs of earlier versions have none and are accepted.

    Raises:
      RunError: a file was changed (the message names it, and the section of the config), or the
        sums cannot be read.
    """
    if not sums_file.exists():
        return
    try:
        content = json.loads(sums_file.read_text(encoding="utf-8"))
        files, sections = dict(content["files"]), dict(content["config"])
        mutable = frozenset(content["mutable"])
        if not all(re.fullmatch("[0-9a-f]{64}", x) for x in [*files.values(), *sections.values()]):
            raise ValueError
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise RunError(
            f"{sums_file} is damaged, so the run's files cannot be verified. Put the run's own "
            "file back, or remove it to use the run without this check."
        ) from None
    # The code that loads the vocabulary reports a file that is missing or cannot be read.
    readable = vocabulary_file.is_file() and os.access(vocabulary_file, os.R_OK)
    if readable and _sum(vocabulary_file.read_bytes()) != files.get(vocabulary_file.name):
        raise RunError(
            f"{vocabulary_file} was changed: it is not the file that the run was made with "
            f"({sums_file.name} has its SHA-256 sum). Put the run's own file back."
        )
    found = _config_sums(config_file, mutable)
    changed = [name for name in found | sections if found.get(name) != sections.get(name)]
    if changed:
        keys = [name for name in changed if name in KEYS]  # outside all sections, such as the seed
        others = [name for name in changed if name not in KEYS]
        words = [f"section {', '.join(others)}"] if others else []
        words += [f"key {', '.join(keys)}"] if keys else []
        named = f"{' and '.join(words)} {'is' if len(changed) == 1 else 'are'}"
        raise RunError(
            f"{config_file} was changed: its {named} not what the run was made with "
            f"({sums_file.name} has their SHA-256 sums). Undo the change; other settings of a "
            "model or its training are another run, with another --workdir."
        )


def _config_sums(config_file: Path, mutable: Collection[str]) -> dict[str, str]:
    """A sum of each section, and of each key outside all sections, without the mutable keys.

    The sums cover only the keys in the file, so a key that a later version adds changes no sum.
    """
    tree: dict[str, Any] = json.loads(config_file.read_text(encoding="utf-8"))
    sums = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            kept = {key: v for key, v in value.items() if f"{name}.{key}" not in mutable}
            if not kept:
                continue
            value = kept
        elif name in mutable:
            continue
        sums[name] = _sum(json.dumps(value, sort_keys=True).encode())
    return sums


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
