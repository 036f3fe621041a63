"""Tables and claims of the paper as commands: `python -m experiments.NAME`."""
