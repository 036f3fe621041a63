"""The built-in corpus: a synchronous grammar of English-German pairs with gold word alignments.

    nouns, verbs, words -> phrases -> clauses -> constructions -> pairs

`generate("train", 20_000)` writes the corpus. A word is added by a line in
lexicon_{nouns,verbs,words}.py, a construction by a function in constructions_*.py.
"""

from transformer_jax.grammar.pairs import CONSTRUCTIONS, AlignedPair, generate, lexicon_size

__all__ = ["CONSTRUCTIONS", "AlignedPair", "generate", "lexicon_size"]
