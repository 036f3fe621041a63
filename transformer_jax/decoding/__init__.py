"""Greedy and beam search, and translation of text."""
