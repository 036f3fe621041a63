"""The revision of the code that made a result."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CODE = ("transformer_jax", "configs", "experiments")  # changed results do not count


def revision() -> str:
    """The checkout's commit, with a "+" if its code has changed since; "unknown" without git."""
    if not (ROOT / ".git").exists():
        return "unknown"  # an installed package may be inside the checkout of another project
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
        return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
