"""Where a result comes from: the revision of the code, and the processor."""

import platform
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


def processor() -> str:
    """The name of this machine's processor; "unknown" if the system does not report it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
