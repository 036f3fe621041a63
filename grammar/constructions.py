"""What a construction is, and what the constructions share.

A construction is a function from a `Draw` to a `Sentence`. Its decorator registers it with one line
that says how German differs. To add one, write such a function in a module constructions_*.py.
"""

from collections.abc import Callable
from typing import NamedTuple

from grammar import words
from grammar.choices import Retry
from grammar.clauses import Clause
from grammar.drawing import GERMAN_COMMA, Draw, same_noun
from grammar.entries import Determiner
from grammar.lexicon import CONJUNCTIONS
from grammar.phrases import (
    Nominal,
    NounPhrase,
    Phrase,
    Pronoun,
    Word,
)


class Sentence(NamedTuple):
    """The words of both sides, and the mark at the end."""

    en: list[Word]
    de: list[Word]
    mark: str = "."


Construction = Callable[[Draw], Sentence]


class Entry(NamedTuple):
    """A registered construction."""

    description: str
    function: Construction
    weight: int  # how often it is drawn, relative to the others


REGISTRY: dict[str, Entry] = {}


def construction(description: str, weight: int = 1) -> Callable[[Construction], Construction]:
    """Registers a construction under its function's name."""

    def register(function: Construction) -> Construction:
        REGISTRY[function.__name__] = Entry(description, function, weight)
        return function

    return register


SIMPLE_TIMES = ("past", "now", "habit")

# For the object of a negated clause: English negates the verb, German the determiner.
NOT_A = Determiner("a", "", "kein", "ein", False)
NOT_ANY = Determiner("", "", "kein", "ein", False)

INSIDE = tuple(p for p in words.SOMEWHERE if p.de == "in")
AT = tuple(p for p in words.SOMEWHERE if p.de == "an")


def listed(names: str) -> frozenset[str]:
    """English dictionary forms, separated by commas."""
    return frozenset(name.strip() for name in names.split(","))


# Activities that a sentence may place somewhere.
AT_PLACES = listed(
    "sleep, work, dance, sing, eat, drink, read, greet, hug, kiss, wait, photograph, rest, learn,"
    "talk, observe, look for, cry, laugh"
)


def plain(clause: Clause) -> Sentence:
    """The clause as a statement that begins with the subject."""
    return Sentence(clause.english(), clause.german())


def statement(draw: Draw, time: str, frames: str, pronouns: float = 0.25) -> Sentence:
    """A new clause as a statement; a habit gets a frequency: often, always, never."""
    clause = draw.clause(time, frames, pronouns)
    if time == "habit":
        add_frequency(draw, clause)
    return plain(clause)


def fronted(clause: Clause, front: Phrase, mark: str = ".") -> Sentence:
    """The clause with something in front; German then puts the verb before the subject."""
    return Sentence(front.en + clause.english(), clause.german(front=front.de), mark)


def add_frequency(draw: Draw, clause: Clause) -> None:
    """Adds an adverb of frequency.

    Raises:
      Retry: the clause has every, all, both or no, so it would have two readings.
    """
    if any(quantified(n) for n in (clause.subject, clause.accusative, clause.dative)):
        raise Retry
    clause.frequency = draw.fixed(draw.one(words.FREQUENCIES))


def quantified(nominal: Nominal | None) -> bool:
    """Whether it has every, all, both or no: a negation would have two readings."""
    return isinstance(nominal, NounPhrase) and nominal.determiner in (
        words.EVERY,
        words.ALL,
        words.BOTH,
        words.NO,
    )


def negate(clause: Clause) -> None:
    """Negates the clause with nicht.

    Raises:
      Retry: if German would use kein.
    """
    nominals = (clause.subject, clause.accusative, clause.dative)
    if any(n and not n.definite for n in nominals[1:]) or any(quantified(n) for n in nominals):
        raise Retry
    clause.negation = "nicht"


def conjunction(draw: Draw, name: str) -> Phrase:
    """The conjunction of that name."""
    return draw.fixed(CONJUNCTIONS.only(name))


def subordinate_last(main: Clause, joint: Phrase, clause: Clause) -> Sentence:
    """Der Mann lacht, weil die Frau singt."""
    return Sentence(
        main.english() + joint.en + clause.english(),
        main.german() + GERMAN_COMMA.de + joint.de + clause.german("final"),
    )


def subordinate_first(draw: Draw, joint: Phrase, clause: Clause, main: Clause) -> Sentence:
    """Weil die Frau singt, lacht der Mann."""
    comma = draw.comma()
    return Sentence(
        joint.en + clause.english() + comma.en + main.english(),
        joint.de + clause.german("final") + comma.de + main.german("first"),
    )


def reference(draw: Draw, nominal: Nominal) -> Pronoun | None:
    """The pronoun for the nominal, if both languages have the same one."""
    if isinstance(nominal, Pronoun):
        return Pronoun(draw.key(), nominal.form)
    if not isinstance(nominal, NounPhrase) or nominal.determiner is words.EVERY:
        return None
    thing = "person" not in nominal.noun.kinds
    if nominal.plural:
        return Pronoun(draw.key(), "3p", thing)
    return None if nominal.noun.neutral else Pronoun(draw.key(), "3s" + nominal.noun.gender, thing)


def two_clauses(draw: Draw, first: str, second: str) -> tuple[Clause, Clause]:
    """Two clauses with different verbs and subjects; at most one subject is a pronoun."""
    one, two = draw.clause(first), draw.clause(second)
    pronouns = isinstance(one.subject, Pronoun) and isinstance(two.subject, Pronoun)
    if one.verb is two.verb or same_noun(one.subject, two.subject) or pronouns:
        raise Retry
    return one, two


SEPARABLE = "intransitive transitive dative ditransitive transfer prepositional reflexive"


def separable_clause(draw: Draw, time: str) -> Clause:
    """A clause whose verb has a separable prefix."""
    verb = draw.verb(time, SEPARABLE, separable=True)
    return draw.complete(verb, draw.subject(verb), time)
