"""Compiled programs are kept in the user's cache, and nowhere else."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax
from transformer_jax.compilation import keep_compiled_programs

keep_compiled_programs()
jax.jit(lambda x: x + 1)(1.0)
print(jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.parametrize("own", [False, True], ids=["ours", "the user's"])
def test_programs_are_kept_where_the_user_says(own, tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    environment |= {"TRANSFORMER_JAX_CACHE": str(tmp_path / "cache")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    expected = tmp_path / "cache" / "compiled"
    if own:
        expected = tmp_path / "own"
        environment["JAX_COMPILATION_CACHE_DIR"] = str(expected)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(expected)
    assert any(expected.iterdir())
    assert (tmp_path / "cache").exists() != own


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    environment = os.environ | {"TRANSFORMER_JAX_CACHE": str(tmp_path / "file" / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("None\n", "")
