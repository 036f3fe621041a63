"""The built-in corpus: a synchronous grammar of English-German pairs with gold word alignments.

    lexicon -> words -> phrases -> clauses -> constructions -> pairs

`generate("train", 20_000)` returns the corpus. To add a word, add a line to a .tsv file of this
folder; to add a construction, add a function to a module constructions_*.py.
"""

from transformer_jax.grammar.pairs import CONSTRUCTIONS, AlignedPair, generate, lexicon_size

__all__ = ["CONSTRUCTIONS", "AlignedPair", "generate", "lexicon_size"]
