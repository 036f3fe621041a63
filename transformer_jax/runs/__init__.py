"""A run's folder: config, checkpoints, averages, metrics."""
