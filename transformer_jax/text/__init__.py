"""Corpus to batches: sentence pairs, subwords, packed rows."""
