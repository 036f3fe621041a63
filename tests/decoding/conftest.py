"""Cheap compilation, as in tests/training/conftest.py."""

import tests.runs  # noqa: F401  (sets the flags)
