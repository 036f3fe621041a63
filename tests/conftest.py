"""Cheap compilation for every test, and fixtures that several test files share."""

import gc
import importlib.metadata
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import hypothesis
import jax
import pytest

from tests import tiny_runs as runs
from transformer_jax.allocator import give_back

ROOT = Path(__file__).parent.parent

# The files that take longest. They begin first, so that no worker waits minutes for the other one.
SLOW = (
    "training/test_survival.py",
    "test_kinds.py",
    "parallel/test_sharding.py",
    "tables/test_command.py",
    "model/test_harness.py",
    "test_hostile_text.py",
    "training/test_step.py",
    "use/test_train.py",
    "training/test_resume.py",
    "training/test_two_directions.py",
    "model/test_auxiliary.py",
    "decoding/test_translator.py",
    "commands/test_import.py",
    "test_nothing_is_unpickled.py",
    "test_wmt14.py",
)

# Compilation is nearly all of the tests' time, and several times cheaper so. XLA reads the variable
# at its first use; processes that tests start inherit it. jaxlib 0.12 refuses the third flag.
CHEAP = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
    CHEAP.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*CHEAP, os.environ.get("XLA_FLAGS", "")]).strip()

# One cache for all workers and for what they start, and not the user's. Workers inherit it.
if "PYTEST_XDIST_WORKER" not in os.environ:
    CACHE = tempfile.TemporaryDirectory(prefix="transformer_jax_cache_")
    os.environ["TRANSFORMER_JAX_CACHE"] = CACHE.name

MOST_PROGRAMS = 16  # training programs that a worker keeps; each has some megabytes
# Bytes of a worker, up to which a file reuses what the files before it have traced and compiled: a
# tenth of the time. Without a limit it would be many gigabytes.
MOST_MEMORY = 3 << 30

# Python's search for cycles takes a twentieth of the time: traced programs are millions of objects.
gc.set_threshold(100_000, 20, 100)

# An example may take seconds on a busy machine, which is no defect.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# Loggers that have a handler are left alone by `set_up_logs`: pytest goes on seeing the records of
# commands that run in its own process.
for name in ("transformer_jax", "experiments"):
    logging.getLogger(name).addHandler(logging.NullHandler())


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real parallel text; without TRANSFORMER_JAX_DATA the test is skipped."""
    folder = os.environ.get("TRANSFORMER_JAX_DATA")
    if not folder:
        pytest.skip("TRANSFORMER_JAX_DATA is not set")
    return Path(folder)


@pytest.fixture
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the checkout the working directory, because configs/ and experiments/ are there."""
    monkeypatch.chdir(ROOT)
    return ROOT


PROGRAMS: dict[Any, Any] = {}  # by their settings; the last one used is the last


@pytest.fixture(scope="module", autouse=True)
def equal_programs_are_compiled_once() -> Iterator[None]:
    """`train` reuses the program that this worker compiled for equal settings."""
    from transformer_jax.use import train

    compile_program = train.compile_program

    def compiled(*settings: Any, meanwhile: Callable[[], Any] | None = None) -> Any:
        if settings in PROGRAMS:
            PROGRAMS[settings] = PROGRAMS.pop(settings)
            if meanwhile:
                meanwhile()
        else:
            PROGRAMS[settings] = compile_program(*settings, meanwhile=meanwhile)
            if len(PROGRAMS) > MOST_PROGRAMS:
                del PROGRAMS[next(iter(PROGRAMS))]
        return PROGRAMS[settings]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "compile_program", compiled)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of slow files first, in the order of `SLOW`."""
    ranks = {ROOT / "tests" / name: rank for rank, name in enumerate(SLOW)}
    items.sort(key=lambda item: ranks.get(item.path, len(SLOW)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forgets compiled programs, if a file has ended and they are large."""
    if (nextitem is None or nextitem.path != item.path) and memory() > MOST_MEMORY:
        jax.clear_caches()
        give_back()


def memory() -> float:
    """The bytes that this process holds; infinite where the system does not say."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else inf


def pytest_sessionfinish() -> None:
    """Removes the scratch folder: a test worker ends without Python's own clean-up."""
    if runs.scratch.cache_info().currsize:
        runs.scratch().cleanup()
