"""What a construction is, and what the constructions share.

A construction is a function from a `Draw` to a `Sentence`, registered by its decorator with one
line that says how German differs. To add one is to write such a function in one of the modules
constructions_*.py.
"""

from collections.abc import Callable
from typing import NamedTuple

from transformer_jax.grammar import lexicon_words as words
from transformer_jax.grammar.clauses import Clause
from transformer_jax.grammar.drawing import (
    GERMAN_COMMA,
    Draw,
    Retry,
    same_noun,
)
from transformer_jax.grammar.lexicon_entries import Determiner, Fixed
from transformer_jax.grammar.phrases import (
    Nominal,
    NounPhrase,
    Phrase,
    Pronoun,
    Word,
)


class Sentence(NamedTuple):
    """Words of both sides and the mark that ends them."""

    en: list[Word]
    de: list[Word]
    mark: str = "."


Construction = Callable[[Draw], Sentence]


class Entry(NamedTuple):
    """A registered construction."""

    description: str
    function: Construction
    weight: int  # how often it is drawn, beside the others' 1


REGISTRY: dict[str, Entry] = {}


def construction(description: str, weight: int = 1) -> Callable[[Construction], Construction]:
    """Registers a construction under its function's name."""

    def register(function: Construction) -> Construction:
        REGISTRY[function.__name__] = Entry(description, function, weight)
        return function

    return register


SIMPLE_TIMES = ("past", "now", "habit")


NOT_A = Determiner("a", "", "kein", "ein", True, True, False)


INSIDE = tuple(p for p in words.SOMEWHERE if p.de == "in")


AT = tuple(p for p in words.SOMEWHERE if p.de == "an")


def listed(names: str) -> frozenset[str]:
    """English dictionary forms, separated by commas."""
    return frozenset(name.strip() for name in names.split(","))


# Activities that one does at a place worth naming.
AT_PLACES = listed(
    "sleep, work, dance, sing, eat, drink, read, greet, hug, kiss, wait, photograph, rest, learn,"
    "talk, observe, look for, cry, laugh"
)


def plain(clause: Clause) -> Sentence:
    """The clause as a statement with its subject in front."""
    return Sentence(clause.english(), clause.german())


def told(draw: Draw, time: str, frames: str, pronouns: float = 0.25) -> Sentence:
    """A plain statement; what is done as a habit is done often, always or never."""
    clause = draw.clause(time, frames, pronouns)
    if time == "habit":
        add_frequency(draw, clause)
    return plain(clause)


def fronted(clause: Clause, front: Phrase, mark: str = ".") -> Sentence:
    """The clause with something in front; in German the verb follows at once, then the subject."""
    return Sentence(front.en + clause.english(), clause.german(front=front.de), mark)


def add_frequency(draw: Draw, clause: Clause) -> None:
    """Says how often; not of every, all or both, which would have two readings."""
    if any(quantified(n) for n in (clause.subject, clause.accusative, clause.dative)):
        raise Retry
    clause.frequency = draw.fixed(draw.one(words.FREQUENCIES))


def quantified(nominal: Nominal | None) -> bool:
    """Every, all, both, no: where a negation would have two readings."""
    return isinstance(nominal, NounPhrase) and nominal.determiner in (
        words.EVERY,
        words.ALL,
        words.BOTH,
        words.NO,
    )


def negate(clause: Clause) -> None:
    """Negates the clause by nicht, where that is what German would say."""
    nominals = (clause.subject, clause.accusative, clause.dative)
    if any(n and not n.definite for n in nominals[1:]) or any(quantified(n) for n in nominals):
        raise Retry
    clause.negation = "nicht"


def conjunction(draw: Draw, en: str, de: str) -> Phrase:
    """A conjunction of one or more English words and one German word."""
    return draw.fixed(Fixed(en, de))


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
    """The pronoun that takes up the nominal, where both languages agree on it."""
    if isinstance(nominal, Pronoun):
        return Pronoun(draw.key(), nominal.form)
    if not isinstance(nominal, NounPhrase) or nominal.determiner is words.EVERY:
        return None
    thing = "person" not in nominal.noun.kinds
    if nominal.plural:
        return Pronoun(draw.key(), "3p", thing)
    return None if nominal.noun.neutral else Pronoun(draw.key(), "3s" + nominal.noun.gender, thing)


def two_clauses(draw: Draw, first: str, second: str) -> tuple[Clause, Clause]:
    """Two clauses about different verbs and subjects."""
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
