"""A run's folder: its config, checkpoints, averages and metrics."""
