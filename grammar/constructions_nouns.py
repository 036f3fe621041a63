"""Constructions of nouns: the genitive, coordination, es gibt."""

from functools import cache

from grammar import combinations, english, german, phrases, words
from grammar.choices import Retry
from grammar.constructions import (
    INSIDE,
    Sentence,
    construction,
    plain,
)
from grammar.drawing import Draw
from grammar.entries import Noun
from grammar.lexicon import CONJUNCTIONS, NOUNS
from grammar.phrases import (
    Given,
    NounPhrase,
    Phrase,
    Word,
    coordination,
)

AND = CONJUNCTIONS.only("and")
OR = CONJUNCTIONS.only("or")


@construction("the genitive: das Dach des Hauses, das Auto des Lehrers, Peters Auto")
def genitive(draw: Draw) -> Sentence:
    kind = draw.one(("person", "person", "name", "part"))
    if kind == "part":
        part, whole = part_and_whole(draw)
        adjective = draw.adjective(part)
        whole_phrase = NounPhrase(draw.key(), whole, words.THE)
        key = draw.key()
        tail = Phrase([Word("of", (key,)), *whole_phrase.english()], whole_phrase.german("gen"))
        tail.de[0] = Word(tail.de[0].text, (key, *tail.de[0].links))
        subject = NounPhrase(draw.key(), part, words.THE, tail=tail)
        if adjective is None:
            raise Retry
        clause = draw.copula(subject, adjective, draw.chance(0.4))
        return plain(clause)
    return possession(draw, kind)


def part_and_whole(draw: Draw) -> tuple[Noun, Noun]:
    """A part, such as a roof, and something that has it."""
    part = draw.one(combinations.nouns("part"))
    return part, draw.one(wholes(part))


@cache
def wholes(part: Noun) -> tuple[Noun, ...]:
    """All nouns for things that have such a part."""
    return tuple(n for n in NOUNS if is_part(part, n))


def is_part(part: Noun, whole: Noun) -> bool:
    """Whether `whole` has `part` as a part, such as a house its roof."""
    if part.en in ("door", "window", "roof"):
        rooms = part.en != "roof" and "room" in whole.kinds
        return rooms or (
            "building" in whole.kinds and "landmark" in whole.kinds and whole.en != "tower"
        )
    if part.en == "gate":
        return whole.en in ("castle", "factory", "park", "garden")
    return whole.en in ("house", "castle", "hotel")


# Few enough that training shows all their genitives.
OWNERS = (
    "kin man woman boy girl child teacher doctor neighbor friend boss king queen farmer student "
    "singer"
)


def possession(draw: Draw, kind: str) -> Sentence:
    """Somebody's thing, and what it is like: Peters Auto ist neu."""
    names = kind == "name"
    owner = draw.one(combinations.nouns("name" if names else OWNERS))
    thing = draw.one(combinations.nouns("own clothes vehicle luggage loan -public"))
    if thing is owner:
        raise Retry
    adjective = draw.adjective(thing)
    owner_phrase = (
        NounPhrase(draw.key(), owner, words.BARE)
        if names
        else draw.definite(owner, adjective=0.1, plural=False)
    )
    subject = owned(draw, owner_phrase, thing, draw.chance(0.2))
    if adjective is None:
        raise Retry
    clause = draw.copula(subject, adjective, draw.chance(0.4))
    return plain(clause)


def owned(draw: Draw, owner: NounPhrase, thing: Noun, plural: bool) -> Given:
    """Peter's car = Peters Auto; the teacher's car = das Auto des Lehrers."""
    key = draw.key()
    en = owner.english()
    en[-1] = Word(english.possessive(en[-1].text, False), (*en[-1].links, key))
    en.append(Word(thing.en_plural if plural else thing.en, (key + 1,)))
    column = "p" if plural else thing.gender
    de: dict[str, list[Word]] = {}
    for case in ("nom", "acc", "dat"):
        noun = Word(thing.german(case, plural), (key + 1,))
        if owner.noun.proper:
            de[case] = [Word(owner.noun.de + "s", (owner.key + 2, key)), noun]
        else:
            article = Word(german.DEFINITE[case, column], (key,))
            de[case] = [article, noun, *owner.german("gen")]
    return Given(draw.key(), en, de, "3p" if plural else "3s")


@construction("coordinated subjects and objects")
def coordinated_nouns(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    if draw.chance(0.5):
        verb = draw.verb(time)
        nouns = [draw.noun("subject", verb), draw.noun("subject", verb)]
        if nouns[0] is nouns[1]:
            raise Retry
        for noun in nouns:
            draw.combine("subject", verb, noun)
        first, second = (draw.definite(n) for n in nouns)
        subject = coordination(first, draw.fixed(AND), second)
        clause = draw.complete(verb, subject, time, pronouns=0)
        return plain(clause)
    conjunction = draw.fixed(draw.one((AND, AND, OR)))
    if conjunction.en[0].text == "or":
        time = "future"
    verb = draw.verb(time, "transitive dative")
    clause = draw.begin(verb, draw.subject(verb), time)
    pair = [draw.object(verb, clause.subject, pronouns=0) for _ in range(2)]
    nouns = [n.noun for n in pair if isinstance(n, NounPhrase)]
    if nouns[0] is nouns[1] or not combinations.alike(*nouns):
        raise Retry
    both = coordination(pair[0], conjunction, pair[1])
    if verb.frame == "dative":
        clause.dative = both
    else:
        clause.accusative = both
    return plain(clause)


@construction("there is, there are = es gibt with the accusative")
def there_is(draw: Draw) -> Sentence:
    preposition = draw.one(INSIDE)
    where = draw.pick("place", preposition)
    kinds = {
        "town": "building -airport -university",
        "room": "furniture",
        "building": "furniture",
        "outside": "animal",
    }
    wanted = {kind for place, kind in kinds.items() if place in where.kinds}
    if where.en in ("house", "castle", "hotel"):
        wanted = {"room"}
    noun = draw.one(combinations.nouns(" ".join(sorted(wanted)) + f" -{where.en}"))
    key = draw.key()
    past = draw.chance(0.4)
    plural = draw.chance(0.5)
    plurals = (words.MANY, words.SOME, words.SEVERAL, words.NO, *words.NUMERALS.values())
    determiner = draw.one(plurals) if plural else draw.weighted([(0.8, words.A), (0.2, words.NO)])
    nominal = draw.noun_phrase(noun, determiner, plural=plural, adjective=0.7)
    place = phrases.prepositional(
        draw.key(), preposition.en, preposition.de, "dat", NounPhrase(draw.key(), where)
    )
    be = english.BE[past, nominal.person]
    en = [Word("there", (key,)), Word(be, (key + 1,)), *nominal.english(), *place.en]
    de = [
        *place.de,
        Word("gab" if past else "gibt", (key + 1,)),
        Word("es", (key,)),
        *nominal.german("acc"),
    ]
    return Sentence(en, de)


@construction("its agrees with its owner's gender: das Haus und sein Dach, die Kirche und ihr Dach")
def its_part(draw: Draw) -> Sentence:
    part, whole = part_and_whole(draw)
    adjective = draw.adjective(part)
    if adjective is None:
        raise Retry
    draw.combine("adjective", adjective, whole)
    if adjective not in combinations.adjectives_for(whole, draw.split):
        raise Retry
    its = words.ITS_F if whole.gender == "f" else words.ITS_M
    second = NounPhrase(draw.key(), part, its, part.en in ("room", "bedroom") or draw.chance(0.3))
    subject = coordination(NounPhrase(draw.key(), whole), draw.fixed(AND), second)
    clause = draw.copula(subject, adjective, draw.chance(0.4))
    return plain(clause)
