"""The package: importing it changes nothing, and its wheel has everything that a user needs."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# Imports change nothing of the process -----------------------------------------------------------

CODE = """
import atexit, importlib, logging, os, pkgutil, signal, sys, warnings
# Libraries first: what they set up themselves is not ours.
import absl.logging, asyncio, flax, grain, jax, optax, orbax.checkpoint, pandas
import sacrebleu, sacremoses, sentencepiece

def state():
    names = [None, "absl", "asyncio", "transformer_jax", "experiments"]
    loggers = [logging.getLogger(name) for name in names]
    signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    hooks = [sys.excepthook, sys.unraisablehook, sys.stdout, sys.stderr, atexit._ncallbacks()]
    seen = [[logger.level, *logger.handlers, *logger.filters] for logger in loggers]
    return seen, signals, hooks, list(warnings.filters), dict(os.environ)

import transformer_jax
packages = [transformer_jax]
before = state()
for package in packages:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
assert len([name for name in sys.modules if name.startswith("transformer_jax.")]) > 60
after = state()
variables = {name for name, _ in set(before[-1].items()) ^ set(after[-1].items())}
assert not variables, variables
for was, now in zip(before[:-1], after[:-1]):
    assert was == now, (was, now)
"""


def test_importing_every_module_sets_up_no_logs_hooks_or_filters():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


COMMANDS = "import transformer_jax.use.train, transformer_jax.commands.translate"
LATE = "jax.experimental.pallas orbax.checkpoint grain pandas jinja2 scipy.stats"
# Its choices are the defaults. The registries of others are in modules that import JAX.
CHECKED = """
from transformer_jax.config import changes, checks, files, schema
checks.check(changes.with_values(schema.Config(), {'data.source': 'grammar'}))
"""


@pytest.mark.parametrize(
    ("code", "late"),
    [
        (COMMANDS, LATE),
        ("import transformer_jax.runs.metrics", "tensorboardX tqdm jax numpy"),
        ("import transformer_jax.reporting.plots", "matplotlib"),
        (CHECKED, "jax"),
    ],
    ids=["commands", "metrics", "plots", "a config is checked"],
)
def test_what_a_start_does_not_need_is_imported_late(code, late):
    code += f"\nimport sys; print([name for name in {late.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


# The wheel, in an empty folder without the checkout ----------------------------------------------

ROOT = Path(__file__).parent.parent
# What the wheel is made of.
PARTS = ("transformer_jax", "configs", "experiments", "pyproject.toml", "README.md", "LICENSE")
USED = """
import importlib.resources, pathlib, runpy, sys
import transformer_jax
from transformer_jax.config.files import load_config
from transformer_jax.text.built_in_corpus import built_in_pairs
assert pathlib.Path(transformer_jax.__file__).is_relative_to(sys.argv[1])
print(load_config("demo").model.d_model, load_config("wmt14.py:base").model.d_model)
print(built_in_pairs("test", 1)[0].tgt)
for package in ("reporting", "serving"):
    page = importlib.resources.files(f"transformer_jax.{package}") / "page.html"
    assert "<html" in page.read_text(encoding="utf-8")
sys.argv = ["transformer-jax", "experiment"]
runpy.run_module("transformer_jax", run_name="__main__")
"""


@pytest.mark.slow("builds a wheel, and starts Python from it")
def test_a_wheel_works_in_an_empty_folder(tmp_path):
    source, unpacked, empty = (tmp_path / name for name in ("source", "unpacked", "empty"))
    for folder in (source, empty):
        folder.mkdir()
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    build += ["--no-index", "--quiet", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=300)
    [wheel] = tmp_path.glob("transformer_jax-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
        names = archive.namelist()
    assert "transformer_jax/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "grammar"))]
    found = subprocess.run(
        [sys.executable, "-c", USED, str(unpacked)],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    assert found.startswith("128 512\n")
    assert "table2_bleu" in found and "later_parts" in found
