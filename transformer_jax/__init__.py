"""The Transformer (Vaswani et al. 2017) as a JAX/Flax research codebase."""

__version__ = "0.1.0"
