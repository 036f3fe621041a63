"""Figures that a process of a benchmark reports about its training and about itself."""

import os
import time
from pathlib import Path


def seconds_since_start() -> float:
    """Seconds since this process started, imports included."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def memory_mib() -> float:
    """The most memory that this process held (ru_maxrss starts at its parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def speeds(src: float, tgt: float, slots: float, steps: int, seconds: float) -> dict[str, float]:
    """Figures of training steps: source and target tokens, and positions, padding included."""
    return {
        "tokens_per_s": (src + tgt) / seconds,
        "target_tokens_per_s": tgt / seconds,
        "target_tokens_per_step": tgt / steps,
        "ms_per_step": 1e3 * seconds / steps,
        "padding": 1 - (src + tgt) / slots,
    }
