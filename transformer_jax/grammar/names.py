"""Invented names, which are in no lexicon: pronounceable, and different in each split."""

import random
from collections.abc import Mapping, Sequence

from transformer_jax.grammar.combinations import split_of
from transformer_jax.grammar.lexicon import NOUNS

NAMES = frozenset(noun.en for noun in NOUNS if noun.proper)  # the same in German
ENDINGS = ("", "'s", "s")  # Peter, Peter's car, Peters Auto
NAME_OF = {name + ending: name for name in NAMES for ending in ENDINGS}
ONSETS = "bdfgklmnprtvw"
VOWELS = "aeiou"
CODAS = ("", "l", "n", "r")
SYLLABLES = 3
NOUN_FORMS = frozenset(form for noun in NOUNS for form in (noun.en.capitalize(), noun.de))


def invented_name(rng: random.Random, split: str) -> str:
    """A name, such as Kemidan, that only this split may show, whatever the seed."""
    while True:
        parts = [_one(rng, choices) for choices in (ONSETS, VOWELS) * SYLLABLES]
        name = "".join([*parts, _one(rng, CODAS)]).capitalize()
        if split_of(f"invented name|{name}") == split and name not in NOUN_FORMS:
            return name


def names_in(words: Sequence[str]) -> list[str]:
    """The lexicon's names among these words, each once, in their order."""
    return list(dict.fromkeys(NAME_OF[word] for word in words if word in NAME_OF))


def renamed(words: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """The words with new names in the same forms; `names` maps old names to new ones."""
    forms = {old + ending: new + ending for old, new in names.items() for ending in ENDINGS}
    return tuple(forms.get(word, word) for word in words)


def _one(rng: random.Random, choices: Sequence[str]) -> str:
    return choices[int(rng.random() * len(choices))]
