"""A run's settings: the schema, what values are allowed, config files and overrides."""
