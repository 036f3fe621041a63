"""JAX's cache of compiled programs, kept for later runs."""

import contextlib
import logging
import os

import jax

from transformer_jax.files import cache_folder

log = logging.getLogger(__name__)


def keep_compiled_programs() -> None:
    """From now on, programs that take a second or more to compile are kept in the user's cache.

    They are not kept in the run's folder, because people exchange runs, and a program is not data.
    The user's own setting (JAX_COMPILATION_CACHE_DIR) has priority. Call this before the first
    compilation.
    """
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        folder = cache_folder() / "compiled"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(folder))
        elif "TRANSFORMER_JAX_CACHE" in os.environ:
            log.warning("TRANSFORMER_JAX_CACHE: cannot write into %s; nothing is cached", folder)
