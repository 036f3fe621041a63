"""Constructions of prepositions, comparison, predicates and numbers."""

from grammar import combinations, phrases, words
from grammar.choices import Retry
from grammar.clauses import BE, Clause
from grammar.constructions import (
    Sentence,
    construction,
    fronted,
    listed,
    negate,
    plain,
)
from grammar.drawing import Draw, same_noun
from grammar.entries import Adjective, Preposition
from grammar.lexicon import ADJECTIVES, NOUNS, ORDINALS
from grammar.phrases import NounPhrase, Phrase, Word

TOGETHER = listed("dance,sing,work,swim,arrive,come back,disappear")


FOR_OTHERS = frozenset("buy cook bake write paint draw order translate build".split())


@construction("prepositions with the dative: mit, aus, nach, vor")
def preposition_dative(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    preposition = draw.one((words.WITH, words.OUT_OF, words.AFTER, words.BEFORE))
    if preposition is words.WITH:
        verb = draw.verb(time, "intransitive", among=TOGETHER)
        noun = draw.pick("subject", verb, lambda n: "person" in n.kinds)
        clause = draw.complete(verb, draw.noun_phrase(noun, subject=True), time)
    elif preposition is words.OUT_OF:
        verb = draw.verb(time, "motion", among=frozenset(("come", "run")))
        subject = draw.subject(verb)
        clause = draw.begin(verb, subject, time)
    else:
        time = draw.one(("past", "future"))
        clause = draw.clause(time)
    return with_preposition(
        draw, clause, preposition, front=preposition in (words.AFTER, words.BEFORE)
    )


def with_preposition(draw: Draw, clause: Clause, preposition: Preposition, front: bool) -> Sentence:
    """The clause with a prepositional phrase, whose noun is definite and not the subject's."""
    subject = clause.subject
    used = subject.noun if isinstance(subject, NounPhrase) else None
    noun = draw.pick("place", preposition, lambda n: n is not used)
    plural = False if preposition in (words.AROUND, words.THROUGH, words.OUT_OF) else None
    nominal = draw.definite(noun, draw.owner(subject), plural=plural)
    phrase = phrases.prepositional(
        draw.key(), preposition.en, preposition.de, preposition.case, nominal
    )
    if front:
        return fronted(clause, phrase)
    clause.complement = phrase
    return plain(clause)


@construction("prepositions with the accusative: ohne, durch, um, für")
def preposition_accusative(draw: Draw) -> Sentence:
    preposition = draw.one((words.WITHOUT, words.THROUGH, words.AROUND, words.FOR))
    time = draw.one(("past", "now"))
    if preposition is words.FOR:
        verb = draw.verb(time, "transitive", among=FOR_OTHERS)
        subject = draw.subject(verb)
        clause = draw.complete(verb, subject, time)
        return with_preposition(draw, clause, preposition, False)
    frame = "motion" if preposition in (words.THROUGH, words.AROUND) else "intransitive"
    among = frozenset(("run", "drive")) if frame == "motion" else TOGETHER - {"swim", "disappear"}
    verb = draw.verb(time, frame, among=among)
    noun = draw.pick("subject", verb, lambda n: "person" in n.kinds)
    clause = draw.begin(verb, draw.noun_phrase(noun, subject=True), time)
    return with_preposition(draw, clause, preposition, False)


@construction("prepositions with the genitive: während, wegen, trotz")
def preposition_genitive(draw: Draw) -> Sentence:
    preposition = draw.one((words.DURING, words.BECAUSE_OF, words.DESPITE))
    noun = draw.pick("place", preposition)
    nominal = draw.noun_phrase(
        noun, draw.weighted([(0.8, words.THE), (0.2, words.THIS)]), plural=False
    )
    phrase = phrases.prepositional(draw.key(), preposition.en, preposition.de, "gen", nominal)
    return fronted(draw.clause("past"), phrase)


def comparable_pair(draw: Draw) -> tuple[Adjective, NounPhrase, NounPhrase]:
    """An adjective, and two definite noun phrases that can be compared with it."""
    first = draw.one(NOUNS)
    adjective = draw.adjective(first, comparable=True)
    if adjective is None or first.mass:
        raise Retry
    second = draw.noun(
        "adjective", adjective, lambda n: n is not first and combinations.alike(n, first)
    )
    if second.mass:
        raise Retry
    draw.combine("adjective", adjective, second)
    return adjective, draw.definite(first, adjective=0), draw.definite(second, adjective=0)


@construction("comparison: größer als, so groß wie")
def comparative(draw: Draw) -> Sentence:
    adjective, first, second = comparable_pair(draw)
    past = draw.chance(0.3)
    key = draw.key()
    link = draw.key()
    if draw.chance(0.35):
        en = [Word("as", (link,)), Word(adjective.en, (key,)), Word("as", (link + 1,))]
        de = [Word("so", (link,)), Word(adjective.de, (key,)), Word("wie", (link + 1,))]
    else:
        en = [*(Word(w, (key,)) for w in adjective.en_comparative.split()), Word("than", (link,))]
        de = [Word(adjective.de_comparative, (key,)), Word("als", (link,))]
    complement = Phrase(en + second.english(), de + second.german("nom"))
    clause = Clause(draw.key(), first, BE, "past" if past else "present", complement=complement)
    return plain(clause)


@construction("superlatives and comparatives before a noun take the adjective's endings")
def superlative(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    verb = draw.verb(time, "transitive")
    subject = draw.subject(verb)
    noun = draw.pick("object", verb, combinations.countable)
    clause = draw.begin(verb, subject, time)
    degree = draw.one(("superlative", "comparative", "ordinal"))
    if degree == "ordinal":
        nominal = NounPhrase(draw.key(), noun, words.THE, False, draw.one(ORDINALS))
    else:
        nominal = NounPhrase(
            draw.key(), noun, words.THE if degree == "superlative" else words.A, False
        )
        nominal.adjective = draw.adjective(noun, comparable=True)
        nominal.degree = degree
        if nominal.adjective is None:
            raise Retry
    if same_noun(subject, nominal):
        raise Retry
    clause.accusative = nominal
    return plain(clause)


# What can be true for a while only.
PASSING = listed(
    "young, small, tired, ill, hungry, sad, nervous, warm, cold, hot, fresh, dirty, broken, poor,"
    "quiet, dark"
)


@construction("predicative adjectives take no ending")
def predicate(draw: Draw) -> Sentence:
    noun = draw.one(NOUNS)
    plural = draw.chance(0.3)
    if plural:
        subject = draw.noun_phrase(noun, plural=True, subject=True, adjective=0)
    else:
        subject = draw.definite(noun, adjective=0)
    clause = draw.predication(subject, draw.chance(0.3))
    key = draw.key()
    kind = draw.one(("plain", "degree", "degree", "still", "nicht"))
    if (
        kind == "degree"
        and not plural
        and clause.complement.en[0].text in words.GOOD | words.BAD - {"broken"}
    ):
        degree = phrases.fixed(draw.one(words.DEGREES), key)
        clause.complement = degree + clause.complement
    elif kind == "still" and clause.complement.en[0].text in PASSING and not plural:
        clause.frequency = phrases.fixed(words.STILL, key)
    elif kind == "nicht":
        negate(clause)
    return plain(clause)


@construction("professions have no article")
def profession(draw: Draw) -> Sentence:
    first = draw.one(combinations.nouns("kin name friend neighbor"))
    subject = draw.definite(first, plural=False) if not first.proper else draw.noun_phrase(first)
    female = first.gender == "f"
    job = draw.one([n for n in combinations.nouns("job") if (n.gender == "f") == female])
    key = draw.key()
    past = draw.chance(0.3)
    complement = Phrase([Word("a"), Word(job.en, (key,))], [Word(job.de, (key,))])
    clause = Clause(draw.key(), subject, BE, "past" if past else "present", complement=complement)
    return plain(clause)


ROUTINE = listed("arrive,come back,wake up,get up,fall asleep")


(COST,) = combinations.verbs_of("measure")


# Plausible ages: all of them, or the first and the last.
AGES = (
    ("grandfather grandmother", (60, 70, 80, 90)),
    ("father mother uncle aunt", (30, 49)),
    ("youngster animal", (2, 12)),
    ("adult brother sister son daughter name", (20, 49)),
    ("building town", (20, 49)),
)


@construction("ages, prices and the clock; units before tens", weight=2)
def numbers(draw: Draw) -> Sentence:
    kind = draw.one(("age", "price", "clock"))
    if kind == "clock":
        hour = draw.fixed(words.NUMBERS[2 + int(draw.rng.random() * 11)])
        time = draw.one(("past", "future"))
        verb = draw.verb(time, "intransitive", among=ROUTINE)
        clause = draw.complete(verb, draw.subject(verb), time)
        at, clock = draw.key(), draw.key()
        clause.place = Phrase(
            [Word("at", (at,)), *hour.en, Word("o'clock", (clock,))],
            [Word("um", (at,)), *hour.de, Word("Uhr", (clock,))],
        )
        return plain(clause)
    key = draw.key()
    if kind == "age":
        old = next(a for a in ADJECTIVES if a.en == "old")
        kinds, bounds = draw.one(AGES)
        noun = draw.one(combinations.nouns(kinds))
        draw.combine("adjective", old, noun)
        ages = (
            [n for n in words.NUMBERS if bounds[0] <= n <= bounds[-1]]
            if len(bounds) == 2
            else bounds
        )
        number = draw.one(ages)
        subject = draw.definite(noun, adjective=0)
        tail = [("years", "Jahre"), ("old", "alt")]
    else:
        noun = draw.one(combinations.nouns("clothes furniture device luggage"))
        number = draw.one(list(words.NUMBERS))
        subject = draw.definite(noun, adjective=1)
        tail = [("euros", "Euro")]
    verb = BE if kind == "age" else COST
    amount = draw.fixed(words.NUMBERS[number])
    complement = Phrase(
        amount.en + [Word(en, (key + i,)) for i, (en, _) in enumerate(tail)],
        amount.de + [Word(de, (key + i,)) for i, (_, de) in enumerate(tail)],
    )
    clause = Clause(draw.key(), subject, verb, "present", complement=complement)
    return plain(clause)
