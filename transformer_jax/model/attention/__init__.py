"""Attention: equation 1, scores to weights, what a position sees, and what search keeps."""
