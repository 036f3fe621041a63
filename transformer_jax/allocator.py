"""Memory settings: large pages, returning free memory, and Python's search for cycles."""

import ctypes
import gc
import os
import sys
import threading

TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"  # transparent large pages, where the system allows them
PAGE = 4_096  # bytes
MOST_TOUCHED = 2**30
USUAL = gc.get_threshold()
RARE = (200_000, *USUAL[1:])
SWITCH = f"{TUNABLES}= (empty) turns off large pages, for which a command restarts itself on Linux"


def use_huge_pages() -> None:
    """Restarts this process with glibc's allocator set to ask for large pages; Linux only.

    To turn it off, set the environment variable GLIBC_TUNABLES: to nothing (`GLIBC_TUNABLES=
    transformer-jax train ...`) or to settings of your own. If it is set, nothing happens here.

    Every training step on a CPU allocates fresh memory. Large pages save most of its page faults
    (106,000 a step without them, 500 with them, for a model of configs/multi30k.py's size) and with
    them 7 to 17 % of the CPU time; docs/speed.md has the measurement. glibc reads the variable only
    when a process starts, so the process replaces itself (execv) with the same arguments, standard
    streams and process id. Call it before anything else is done.
    """
    if sys.platform == "linux" and TUNABLES not in os.environ and sys.executable:
        os.environ[TUNABLES] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def touch(size: int) -> threading.Thread:
    """Writes to so many bytes of new memory in a thread, and returns them to the system.

    On a virtual machine the first use of a page is slow, because the host has to find it too. The
    first training step then finds pages that the host has given already: 0.85 instead of 1.4 s for
    a model of configs/multi30k.py's size (docs/speed.md).

    Returns:
      The thread; there is no need to wait for it.
    """

    def write() -> None:
        import numpy as np  # here, so that --help stays fast

        np.empty(min(size, MOST_TOUCHED), np.uint8)[::PAGE] = 0

    thread = threading.Thread(target=write, name="touch memory", daemon=True)
    thread.start()
    return thread


def give_back() -> None:
    """Returns free memory to the system: glibc would keep 0.2 GB that a compilation has freed."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def collect_rarely() -> None:
    """Lets Python search for cycles of garbage less often, until `collect_as_usual`.

    Imports and tracing make many objects and little garbage, so that the search takes 0.3 of the
    4.3 s of a start with cached programs.
    """
    gc.set_threshold(*RARE)


def collect_as_usual() -> None:
    """Lets Python search as often as before, but not through objects that exist already."""
    gc.freeze()
    gc.set_threshold(*USUAL)
