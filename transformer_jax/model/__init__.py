"""The Transformer as pure functions and thin Flax modules."""
