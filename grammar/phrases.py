"""Noun phrases, pronouns and prepositional phrases, each with its words in both languages.

A word has *links*, which are numbers: words of the two sides that share one are aligned. A noun
phrase's links start at its `key`: the determiner has `key`, the adjective `key + 1` and the noun
`key + 2`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from grammar import german
from grammar.entries import Adjective, Determiner, Fixed, Noun
from grammar.words import THE


class Word(NamedTuple):
    """A word of one side, and its links."""

    text: str
    links: tuple[int, ...] = ()


class Phrase(NamedTuple):
    """The words of both sides."""

    en: list[Word]
    de: list[Word]

    def __add__(self, other: "Phrase") -> "Phrase":  # type: ignore[override]
        return Phrase(self.en + other.en, self.de + other.de)


NOTHING = Phrase([], [])


class Nominal(Protocol):
    """A subject or an object."""

    @property
    def key(self) -> int:
        """The first of its links."""

    @property
    def person(self) -> str:
        """ "1s", "3s", "1p" or "3p"."""

    @property
    def pronominal(self) -> bool:
        """Whether it is a personal pronoun, which German puts before adverbials."""

    @property
    def definite(self) -> bool:
        """Whether it is definite; German puts nicht after it."""

    def english(self, subject: bool = False) -> list[Word]:
        """The English words; `subject` chooses between he and him."""

    def german(self, case: str) -> list[Word]:
        """The German words in the case."""


def fixed(entry: Fixed, key: int) -> Phrase:
    """The words of an entry that never changes, linked by its alignment."""
    en_links: dict[int, tuple[int, ...]] = {}
    de_links: dict[int, tuple[int, ...]] = {}
    for number, (i, j) in enumerate(entry.links()):
        en_links[i] = (*en_links.get(i, ()), key + number)
        de_links[j] = (*de_links.get(j, ()), key + number)
    return Phrase(
        [Word(text, en_links.get(i, ())) for i, text in enumerate(entry.en.split())],
        [Word(text, de_links.get(j, ())) for j, text in enumerate(entry.de.split())],
    )


@dataclasses.dataclass(slots=True)
class NounPhrase:
    """Determiner, adjective, noun, and a tail: das alte Haus, drei alte Häuser."""

    key: int
    noun: Noun
    determiner: Determiner = THE
    plural: bool = False
    adjective: Adjective | None = None
    degree: str = ""  # "comparative" or "superlative" of the adjective
    tail: Phrase = NOTHING  # a relative clause, a genitive or a prepositional phrase

    pronominal = False

    @property
    def person(self) -> str:
        """ "3p" for a plural, else "3s"."""
        return "3p" if self.plural else "3s"

    @property
    def definite(self) -> bool:
        """Whether it is a name or has a definite determiner."""
        return self.noun.proper or self.determiner.definite

    @property
    def column(self) -> str:
        """The column of the German tables: a gender, or "p" for plurals."""
        return "p" if self.plural else self.noun.gender

    def english(self, subject: bool = False) -> list[Word]:
        """the old house"""
        words = []
        text = self.determiner.en_plural if self.plural else self.determiner.en
        if text:
            words.append(Word(text, (self.key,)))
        if self.adjective:
            for part in getattr(
                self.adjective, f"en_{self.degree}" if self.degree else "en"
            ).split():
                words.append(Word(part, (self.key + 1,)))
        words.append(Word(self.noun.en_plural if self.plural else self.noun.en, (self.key + 2,)))
        return words + self.tail.en

    def german(self, case: str) -> list[Word]:
        """das alte Haus, dem alten Haus"""
        words = []
        if self.determiner.pattern:
            text = german.determiner(self.determiner.de, self.determiner.pattern, case, self.column)
            words.append(Word(text, (self.key,)))
        if self.adjective:
            stem = getattr(self.adjective, f"de_{self.degree}" if self.degree else "de")
            text = german.attributive(
                stem, self.determiner.declension(self.plural), case, self.column
            )
            words.append(Word(text, (self.key + 1,)))
        words.append(Word(self.noun.german(case, self.plural), (self.key + 2,)))
        return words + self.tail.de


ENGLISH_PRONOUNS = {
    "1s": ("I", "me"),
    "1p": ("we", "us"),
    "3sm": ("he", "him"),
    "3sf": ("she", "her"),
    "3p": ("they", "them"),
}


@dataclasses.dataclass(slots=True)
class Pronoun:
    """A personal pronoun; `form` is a key of german.PRONOUNS. English calls a `thing` "it"."""

    key: int
    form: str
    thing: bool = False

    pronominal = True
    definite = True

    @property
    def person(self) -> str:
        """The form without its gender: "3s" for "3sm"."""
        return self.form[:2]

    def english(self, subject: bool = False) -> list[Word]:
        """he, him, or it."""
        if self.thing and self.form != "3p":
            return [Word("it", (self.key,))]
        return [Word(ENGLISH_PRONOUNS[self.form][not subject], (self.key,))]

    def german(self, case: str) -> list[Word]:
        """er, ihn, ihm."""
        return [Word(german.PRONOUNS[self.form][case], (self.key,))]


@dataclasses.dataclass(slots=True)
class Given:
    """Given words as a nominal: who/wer, a coordination, a relative pronoun."""

    key: int
    en: Sequence[Word]
    de: Mapping[str, Sequence[Word]]  # by case
    person: str = "3s"
    definite: bool = True
    pronominal: bool = False

    def english(self, subject: bool = False) -> list[Word]:
        """The given English words, as subject or not."""
        return list(self.en)

    def german(self, case: str) -> list[Word]:
        """The given German words of this case."""
        return list(self.de[case])


def coordination(first: Nominal, conjunction: Phrase, second: Nominal, person: str = "3p") -> Given:
    """Two nominals and a conjunction: der Mann und die Frau."""
    return Given(
        first.key,
        first.english() + conjunction.en + second.english(),
        {c: first.german(c) + conjunction.de + second.german(c) for c in ("nom", "acc", "dat")},
        person,
        first.definite and second.definite,
    )


def prepositional(key: int, en: str, de: str, case: str, nominal: Nominal) -> Phrase:
    """Preposition and nominal, contracted if German contracts them: im Garten, zur Schule."""
    preposition = Word(de, (key,))
    words = nominal.german(case)
    if isinstance(nominal, NounPhrase) and nominal.determiner is THE:
        contracted = german.CONTRACTIONS.get((de, words[0].text))
        if contracted:
            words = [Word(contracted, (key, *words[0].links)), *words[1:]]
            return Phrase([Word(w, (key,)) for w in en.split()] + nominal.english(), words)
    return Phrase([Word(w, (key,)) for w in en.split()] + nominal.english(), [preposition, *words])
