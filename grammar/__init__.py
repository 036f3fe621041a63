"""The program that wrote the built-in corpus: a synchronous grammar of English-German pairs.

    lexicon -> words -> phrases -> clauses -> constructions -> pairs

The package has what this wrote (transformer_jax/text/built_in_corpus.py) and does not import this
folder. `python -m grammar --out=FOLDER` writes it again; with `--text --train=200000` it writes
more pairs, as lines and links that data.source='files' reads. To add a word, add a line to a .tsv
file; to add a construction, add a function to a module constructions_*.py.
"""

from grammar.pairs import CONSTRUCTIONS, AlignedPair, generate, lexicon_size

__all__ = ["CONSTRUCTIONS", "AlignedPair", "generate", "lexicon_size"]
