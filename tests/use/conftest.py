"""Cheap compilation, as in tests/training/conftest.py."""

import tests.tiny_runs  # noqa: F401  (sets the flags)
