"""The Transformer (Vaswani et al. 2017) as a JAX/Flax research codebase.

`train(config, workdir)` trains a run in a Python program, and `load(workdir)` loads one
(docs/python.md).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.api import Run, load, train

__version__ = "0.1.0"
__all__ = ["Run", "load", "train"]


def __getattr__(name: str) -> Any:
    """Imports `load`, `train` and `Run` when used, since the import of JAX takes a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformer_jax import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
