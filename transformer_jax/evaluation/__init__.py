"""Scores of translations."""
