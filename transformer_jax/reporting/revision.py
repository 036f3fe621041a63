"""Which code made a result."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CODE = ("transformer_jax", "configs", "experiments")  # results beside it do not count as changes


def revision() -> str:
    """The checkout's commit, with a + where its code was changed since; else "unknown"."""
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
        return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
