"""The commands: the only place that puts the parts of the package together."""
