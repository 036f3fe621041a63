"""Which words go together, and which combinations of words are held out.

A *combination* is a relation between two content words, such as (object, buy, car) or (adjective,
old, man). A hash of its names assigns each combination to training, validation or test, for every
seed.
"""

from functools import cache

from grammar.entries import Adjective, Noun, Preposition, Verb
from grammar.lexicon import ADJECTIVES, NOUNS, VERBS
from transformer_jax.text.built_in_corpus import split_of

SPLITS = ("train", "valid", "test")
Head = Verb | Adjective | Preposition  # the word of a combination that names kinds of nouns

# Kinds of things that people call "my" and "your".
OWNABLE = frozenset(
    ("own", "thing", "clothes", "vehicle", "furniture", "pet", "proposal", "tale", "error")
)
NOT_OWNABLE = frozenset(("public", "plant", "present"))
ACQUIRING = frozenset(("buy", "steal", "order", "promise"))  # their object is not one's own yet
UNCOUNTED = frozenset(("event", "hardship", "matter"))  # no "eleven parties"
# Two nouns that share one of these kinds can be compared or coordinated.
CLASSES = frozenset(
    "person animal food drink text clothes vehicle furniture building room outside town plant "
    "device event matter luggage dishes toy instrument tool opening".split()
)


def matches(noun: Noun, spec: str) -> bool:
    """Whether the noun is one of those that a specification, "kind word -kind -word", names."""
    wanted = False
    for token in spec.split():
        if token.startswith("-"):
            if (
                token[1:] in noun.kinds
                or token[1:] == noun.en
                or (token == "-neutral" and noun.neutral)
            ):
                return False
        elif token in noun.kinds or token == noun.en:
            wanted = True
    return wanted


@cache
def nouns(spec: str) -> tuple[Noun, ...]:
    """The nouns of the lexicon that a specification, "kind word -kind -word", names."""
    return tuple(n for n in NOUNS if matches(n, spec))


def alike(first: Noun, second: Noun) -> bool:
    """Whether two nouns are similar enough to be compared or coordinated."""
    return bool(first.kinds & second.kinds & CLASSES)


def countable(noun: Noun) -> bool:
    """Whether it is neither a mass noun nor a name nor somebody's kin."""
    return not noun.mass and not noun.proper and "kin" not in noun.kinds


def _spec(relation: str, head: Head) -> str:
    """The specification of the nouns that the head takes in a relation; a receiver is a person."""
    if isinstance(head, Verb):
        return {"subject": head.subject, "object": head.object, "receiver": "person"}[relation]
    return head.kinds


def _name(head: Head) -> str:
    return head.name if isinstance(head, Verb) else f"{head.en}={head.de}"


@cache
def bucket(relation: str, head: Head, noun: Noun) -> str:
    """The split of this combination; the same on every machine and for every seed."""
    return split_of(f"{relation}|{_name(head)}|{noun.en}")


def allowed(relation: str, head: Head, noun: Noun, split: str) -> bool:
    """Whether the split may show this combination: it shows its own and those of training."""
    return bucket(relation, head, noun) in ("train", split)


@cache
def partners(relation: str, head: Head, split: str) -> tuple[Noun, ...]:
    """The nouns that may have this relation to the head in this split."""
    return tuple(n for n in nouns(_spec(relation, head)) if allowed(relation, head, n, split))


@cache
def adjectives_for(noun: Noun, split: str) -> tuple[Adjective, ...]:
    """The adjectives that this noun may have in this split."""
    return tuple(
        a for a in ADJECTIVES if matches(noun, a.kinds) and allowed("adjective", a, noun, split)
    )


@cache
def verbs_for(noun: Noun, relation: str, frames: str, split: str) -> tuple[Verb, ...]:
    """The verbs of some frames that may have this noun as their subject or object in this split."""
    return tuple(
        v
        for frame in frames.split()
        for v in verbs_of(frame.replace("_", " "))
        if matches(noun, _spec(relation, v)) and allowed(relation, v, noun, split)
    )


@cache
def verbs_of(frame: str) -> tuple[Verb, ...]:
    """The verbs of a frame."""
    return tuple(v for v in VERBS if v.frame == frame)
