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


def printed(**variables: object) -> str:
    """What the program prints with these variables and no other settings of JAX's cache."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    environment |= {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return (done.stdout + done.stderr).strip()


@pytest.mark.parametrize("own", [False, True], ids=["ours", "the user's"])
def test_programs_are_kept_where_the_user_says(own, tmp_path):
    ours, users = tmp_path / "cache", tmp_path / "own"
    variables = {"TRANSFORMER_JAX_CACHE": ours, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0}
    expected = ours / "compiled"
    if own:
        variables["JAX_COMPILATION_CACHE_DIR"] = expected = users
    assert printed(**variables) == str(expected)
    assert any(expected.iterdir())
    assert ours.exists() != own


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "cache"
    warning = f"TRANSFORMER_JAX_CACHE: cannot write into {folder / 'compiled'}; nothing is cached"
    assert printed(TRANSFORMER_JAX_CACHE=folder) == f"None\n{warning}"
