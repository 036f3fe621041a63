"""The wheel has everything that a user needs, tried in an empty folder without the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow("builds a wheel, and starts Python from it")

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
