"""Compiled programs, kept for the next run."""

import os

import jax

from transformer_jax.files import cache_folder


def keep_compiled_programs() -> None:
    """From now on what is compiled, and took a second, is kept in the user's cache folder.

    Never in a run's folder: people exchange those, and a program is no data. What the user told
    JAX itself (JAX_COMPILATION_CACHE_DIR) stands. Call it before the first compilation.
    """
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        folder = cache_folder() / "compiled"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return
        if os.access(folder, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(folder))
