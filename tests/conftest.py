"""Fixtures that several test files share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real parallel text; without TRANSFORMER_JAX_DATA the test is skipped."""
    folder = os.environ.get("TRANSFORMER_JAX_DATA")
    if not folder:
        pytest.skip("TRANSFORMER_JAX_DATA is not set")
    return Path(folder)


@pytest.fixture
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout's folder, made the working directory: configs/ and experiments/ lie there."""
    monkeypatch.chdir(ROOT)
    return ROOT
