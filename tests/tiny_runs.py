"""Tiny runs for the tests of whole commands: a corpus as text files, a config, one trained run."""

import functools
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SIZES = {"train": 300, "valid": 24, "test": 12}  # pairs
STEPS = 40
TINY: dict[str, Any] = {
    "data.max_length": 48,
    "vocabulary.size": 400,
    "model.num_layers": 1,
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.d_ff": 32,
    "model.norm": "pre",
    "train.steps": STEPS,
    "train.tokens_per_batch": 400,
    "train.row_length": 48,
    "train.warmup_steps": 10,
    "train.peak_learning_rate": 1e-2,
    # No interval divides another: a checkpoint falls into a window of metrics.
    "train.log_every": 3,
    "train.valid_every": 10,
    "train.checkpoint_every": 5,
    "train.keep_last": 3,
    "decode.max_length": 64,
    "decode.tokens_per_batch": 256,
    "decode.max_extra_length": 10,
}
# Changes to configs/demo.py for a run of a few steps.
TINY_DEMO: dict[str, Any] = {
    "data.pairs": 300,
    "vocabulary.size": 400,
    "model.num_layers": 1,
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.d_ff": 32,
    "train.steps": 6,
    "train.decay_steps": 6,
    "train.warmup_steps": 2,
    "train.tokens_per_batch": 400,
    "decode.tokens_per_batch": 256,
    "train.log_every": 2,
    "train.valid_every": 6,
    "train.checkpoint_every": 6,
    "decode.max_extra_length": 10,
}
TIMINGS = ("source_tokens_per_second", "target_tokens_per_second", "mfu")


@functools.cache
def scratch() -> tempfile.TemporaryDirectory:
    """A folder that is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="transformer_jax_tests_")


@functools.cache
def tiny_corpus() -> Path:
    """A folder of text files in English and German, from the built-in grammar."""
    from transformer_jax.text.built_in_corpus import built_in_pairs

    folder = Path(scratch().name) / "corpus"
    folder.mkdir()
    for split, pairs in SIZES.items():
        written = built_in_pairs(split, pairs)
        write_lines(folder / f"{split}.en", [pair.src for pair in written])
        write_lines(folder / f"{split}.de", [pair.tgt for pair in written])
    return folder


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Writes a text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return path


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that `write_lines` wrote."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def tiny_values(**changes: Any) -> dict[str, Any]:
    """Dotted keys of the tiny config; `train__steps=5` changes train.steps."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return {"data.path": str(tiny_corpus()), **TINY, **dotted}


def tiny_config(**changes: Any) -> Any:
    """The tiny Config."""
    from transformer_jax.config.changes import with_values
    from transformer_jax.config.schema import Config

    return with_values(Config(), tiny_values(**changes))


def write_preset(path: Path, values: Mapping[str, Any]) -> Path:
    """A config file with these dotted keys."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        (tree.setdefault(sections[0], {}) if sections else tree)[last] = value
    path.write_text(f"def get_config():\n    return {tree!r}\n")
    return path


def command(*arguments: str) -> int:
    """Runs a command line in this process; its exit status."""
    from transformer_jax.__main__ import main

    return main(arguments)


def train(workdir: Path, **changes: Any) -> int:
    """The command `train` on the tiny corpus; `train__steps=5` changes train.steps."""
    preset = write_preset(Path(tempfile.mkdtemp(dir=scratch().name)) / "preset.py", TINY)
    values = {"data.path": str(tiny_corpus())}
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    overrides = [f"--config.{name}={value}" for name, value in values.items()]
    return command("train", f"--config={preset}", f"--workdir={workdir}", *overrides)


@functools.cache
def trained_run() -> Path:
    """The folder of a trained run, never stopped; tests read it and leave it as it is."""
    folder = Path(scratch().name) / "run"
    assert train(folder) == 0
    return folder


def copy_of_run(folder: Path, **changes: Any) -> Path:
    """A trained run to break; `model__wait_k=1` changes its config, which then has no sums."""
    shutil.copytree(trained_run(), folder)
    if changes:
        config = json.loads((folder / "config.json").read_text())
        for name, value in changes.items():
            section, _, last = name.partition("__")
            config[section][last] = value
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "run.sha256.json").unlink()
    return folder


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder, by its path there; of a folder, nothing."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in folder.rglob("*")
    }


def metrics(workdir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without timings."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return [{k: v for k, v in record.items() if k not in TIMINGS} for record in records]


def arrays(checkpoint: Path) -> dict[str, Any]:
    """Every array of a checkpoint as NumPy, by its path, such as params.embedding.table."""
    import jax
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        items = {name: checkpointer.restore(checkpoint / name) for name in ("params", "rest")}
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(items))
    return {dotted(path): leaf for path, leaf in leaves}


def dotted(path: tuple) -> str:
    """A path in a tree, whatever its nodes are."""
    import jax

    return re.sub(r"\W+", ".", jax.tree_util.keystr(path)).strip(".")


# New processes ---------------------------------------------------------------------------------


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@functools.cache
def forkserver() -> Any:
    """Starts processes that have imported what `train` needs and have computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformer_jax.use.train"])
    return context


def train_in_process(workdir: Path, log: Path, flags: str = "", **changes: Any) -> Any:
    """Starts `train` in a new process, which the test kills or joins."""
    flags = f"{os.environ['XLA_FLAGS']} {flags}"
    arguments = (workdir, log, flags, scratch().name, str(tiny_corpus()), changes)
    process = forkserver().Process(target=_train_and_exit, args=arguments)
    process.start()
    return process


def _train_and_exit(
    workdir: Path, log: Path, flags: str, scratch: str, corpus: str, changes: dict[str, Any]
) -> None:
    os.environ["XLA_FLAGS"] = flags
    tempfile.tempdir = scratch  # a killed process leaves its files there
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.exit(train(workdir, **{"data__path": corpus, **changes}))
