"""Experiments: runs each row and seed of a table as an ordinary run, and makes the table."""
