"""A run's settings: the schema, its checks, config files and overrides."""
