"""Figures that a benchmark's process reports about itself."""

import os
import resource
import time
from pathlib import Path


def seconds_since_start() -> float:
    """Seconds since this process started, imports included."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def peak_mib() -> float:
    """Peak memory of this process. Linux's ru_maxrss starts at the parent's; VmHWM does not."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
