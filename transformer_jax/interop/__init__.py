"""Imports models of Marian and Hugging Face; exports models to other engines."""
