"""What the C library's allocator is told: large pages, and to give back what is free."""

import ctypes
import os
import sys

TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"  # transparent ones, where the system allows them on request


def use_huge_pages() -> None:
    """Begins this process anew with glibc's allocator told to ask for large pages.

    On Linux training on a CPU is 1.2 to 1.4 times as fast with them, as every step touches fresh
    memory; the C library reads the setting only when a process begins. Elsewhere, and where the
    user has set the variable (empty, too), nothing happens. Call it before anything else is done.
    """
    if sys.platform == "linux" and TUNABLES not in os.environ and sys.executable:
        os.environ[TUNABLES] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def give_back() -> None:
    """Returns free memory to the system; a compilation leaves 0.2 GB that glibc would keep."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
