"""Fused kernels for GPUs, and when they are used."""
