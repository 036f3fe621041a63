"""The Transformer (Vaswani et al. 2017) as a JAX/Flax research codebase.

`load(workdir)` loads a run into a Python program (docs/python.md).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.api import Run as Run
    from transformer_jax.api import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports `load` and `Run` when they are used, since the import of JAX takes a second."""
    if name not in ("load", "Run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformer_jax import api

    return getattr(api, name)
