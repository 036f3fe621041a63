"""What a process sets up as it starts: large pages, memory, and the cache of compiled programs."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from transformer_jax import allocator

# Large pages by one restart on Linux, memory touched, cycles of garbage --------------------------


RESTARTED = """
import os, sys
from transformer_jax.allocator import use_huge_pages
use_huge_pages()
print(os.environ["GLIBC_TUNABLES"], os.getpid(), sys.argv[1:], sys.stdin.read())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it restarts on Linux only")
@pytest.mark.parametrize("given", [None, "", "glibc.malloc.check=0"])
def test_arguments_input_and_process_id_stay_and_a_user_s_setting_is_kept(given):
    environment = {k: v for k, v in os.environ.items() if k != allocator.TUNABLES}
    environment |= {} if given is None else {allocator.TUNABLES: given}
    with subprocess.Popen(
        [sys.executable, "-c", RESTARTED, "a b", "--c"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        output, _ = process.communicate("line")
    tunables = allocator.HUGE_PAGES if given is None else given
    assert output == f"{tunables} {process.pid} ['a b', '--c'] line\n"
    assert process.returncode == 0


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delenv(allocator.TUNABLES, raising=False)
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("restarted"))
    allocator.use_huge_pages()
    assert allocator.TUNABLES not in os.environ


def test_memory_is_touched_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(allocator, "MOST_TOUCHED", 2**26)
    made = []

    def ones(size: int, dtype: type) -> np.ndarray:
        made.append(np.ones(size, dtype))
        return made[-1]

    monkeypatch.setattr(np, "empty", ones)
    for size in (0, 10_000, 2**30):
        allocator.touch(size).join()
    assert [len(one) for one in made] == [0, 10_000, 2**26]
    assert all(one[:: allocator.PAGE].sum() == 0 for one in made), "a byte of each page"


def test_python_searches_for_cycles_rarely_during_a_start_and_as_usual_after_it(monkeypatch):
    before = gc.get_threshold()
    usual = (700, 10, 10)
    monkeypatch.setattr(allocator, "USUAL", usual)
    try:
        allocator.collect_rarely()
        assert gc.get_threshold()[0] > 100 * usual[0]
        allocator.collect_as_usual()
        assert gc.get_threshold() == usual
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


# Compiled programs are kept in the user's cache, and nowhere else --------------------------------


COMPILED = """
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
    command = [sys.executable, "-c", COMPILED]
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
