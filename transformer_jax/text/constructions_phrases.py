"""Constructions of one clause that turn on a phrase: prepositions, comparison, numbers, passive, coordination, genitive."""

from functools import cache

from transformer_jax.text import english, german, lexicon, phrases
from transformer_jax.text import lexicon_words as words
from transformer_jax.text.clauses import BE, Clause
from transformer_jax.text.constructions import (
    INSIDE,
    NOT_A,
    Sentence,
    construction,
    negate,
    quantified,
    told,
)
from transformer_jax.text.drawing import GERMAN_COMMA, Draw, Retry, same_noun, tense_of
from transformer_jax.text.lexicon_entries import Adjective, Fixed, Noun
from transformer_jax.text.lexicon_nouns import NOUNS
from transformer_jax.text.lexicon_verbs import COST
from transformer_jax.text.phrases import Given, Nominal, NounPhrase, Phrase, Word, coordination

AND, OR = Fixed("and", "und"), Fixed("or", "oder")


def add(clause: Clause, phrase: Phrase, front: bool) -> Sentence:
    """The clause with an adverbial, in front or after the verb."""
    if front:
        return Sentence(phrase.en + clause.english(), clause.german(front=phrase.de))
    clause.place = phrase
    return Sentence(clause.english(), clause.german())


TOGETHER = frozenset("dance,sing,work,swim,arrive,come back,disappear".split(","))
FOR_OTHERS = frozenset("buy cook bake write paint draw order translate build".split())


@construction("prepositions with the dative: mit, aus, nach, vor")
def preposition_dative(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    preposition = draw.one((words.WITH, words.OUT_OF, words.AFTER, words.BEFORE))
    if preposition is words.WITH:
        verb = draw.verb(time, "intransitive", among=TOGETHER)
        noun = draw.noun("subject", verb, lambda n: "person" in n.kinds)
        draw.combine("subject", verb, noun)
        clause = draw.complete(verb, draw.noun_phrase(noun, subject=True), time)
    elif preposition is words.OUT_OF:
        verb = draw.verb(time, "motion", among=frozenset(("come", "run")))
        subject = draw.subject(verb)
        clause = Clause(draw.key(), subject, verb, tense_of(time, verb))
    else:
        time = draw.one(("past", "future"))
        clause = draw.clause(time)
    return with_preposition(
        draw, clause, preposition, front=preposition in (words.AFTER, words.BEFORE)
    )


def with_preposition(
    draw: Draw, clause: Clause, preposition: words.Preposition, front: bool
) -> Sentence:
    """The clause with a prepositional phrase, its noun definite and not the subject's again."""
    subject = clause.subject
    used = subject.noun if isinstance(subject, NounPhrase) else None
    noun = draw.noun("place", preposition, lambda n: n is not used)
    draw.combine("place", preposition, noun)
    plural = False if preposition in (words.AROUND, words.THROUGH, words.OUT_OF) else None
    nominal = draw.definite(noun, draw.owner(subject), plural=plural)
    phrase = phrases.prepositional(
        draw.key(), preposition.en, preposition.de, preposition.case, nominal
    )
    if front:
        return add(clause, phrase, True)
    clause.complement = phrase
    return Sentence(clause.english(), clause.german())


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
    noun = draw.noun("subject", verb, lambda n: "person" in n.kinds)
    draw.combine("subject", verb, noun)
    clause = Clause(draw.key(), draw.noun_phrase(noun, subject=True), verb, tense_of(time, verb))
    return with_preposition(draw, clause, preposition, False)


@construction("prepositions with the genitive: während, wegen, trotz")
def preposition_genitive(draw: Draw) -> Sentence:
    preposition = draw.one((words.DURING, words.BECAUSE_OF, words.DESPITE))
    noun = draw.noun("place", preposition)
    draw.combine("place", preposition, noun)
    nominal = draw.noun_phrase(
        noun, draw.weighted([(0.8, words.THE), (0.2, words.THIS)]), plural=False
    )
    phrase = phrases.prepositional(draw.key(), preposition.en, preposition.de, "gen", nominal)
    return add(draw.clause("past"), phrase, True)


@construction("verbs with a prepositional object: warten auf, denken an")
def prepositional_object(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect", "habit"))
    if time == "habit":
        return told(draw, time, "prepositional reflexive_prepositional")
    clause = draw.clause(time, "prepositional reflexive_prepositional")
    if draw.chance(0.2):
        negate(clause)
    return Sentence(clause.english(), clause.german())


@construction("reflexive verbs where English has no pronoun")
def reflexive(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect", "habit"))
    if time == "habit":
        return told(draw, time, "reflexive reflexive_prepositional", pronouns=0.4)
    clause = draw.clause(time, "reflexive reflexive_prepositional", pronouns=0.4)
    if time == "past" and clause.verb.aspect != "state" and draw.chance(0.5):
        when = draw.when("past")
        return Sentence(when.en + clause.english(), clause.german(front=when.de))
    return Sentence(clause.english(), clause.german())


NO_REQUEST = ("steal", "cough", "sneeze", "cry", "dream", "escape", "love", "fall", "smoke")
NO_PASSIVE = (
    "have",
    "need",
    "meet",
    "try on",
    "know",
    "look at",
    "take along",
    "bring along",
    "learn",
)


@construction("passive: werden and the participle; the agent with von")
def passive(draw: Draw) -> Sentence:
    time = draw.one(("past", "past", "perfect", "now", "future", "modal"))
    verb = draw.verb(time, "transitive")
    if verb.aspect == "state" or verb.en.whole in NO_PASSIVE or verb.en.particle == "for":
        raise Retry
    noun = draw.noun("object", verb)
    draw.combine("object", verb, noun)
    subject = draw.noun_phrase(noun, subject=True)
    clause = Clause(draw.key(), subject, verb, tense_of(time, verb), passive=True)
    if time == "modal":
        clause.modal = draw.one((words.MUST, words.CAN, words.SHOULD, words.MAY))
    elif draw.chance(0.6) or time == "now":
        agent = draw.noun("subject", verb, lambda n: n is not noun)
        draw.combine("subject", verb, agent)
        clause.complement = phrases.prepositional(
            draw.key(), "by", "von", "dat", draw.noun_phrase(agent, subject=True)
        )
    if time == "past" and draw.chance(0.4):
        when = draw.when("past")
        return Sentence(when.en + clause.english(), clause.german(front=when.de))
    return Sentence(clause.english(), clause.german())


def comparable_pair(draw: Draw) -> tuple[Adjective, NounPhrase, NounPhrase]:
    """An adjective and two definite noun phrases, not of the same noun, that can be compared by it."""
    first = draw.one(NOUNS)
    adjective = draw.adjective(first, comparable=True)
    if adjective is None or first.mass:
        raise Retry
    second = draw.noun(
        "adjective", adjective, lambda n: n is not first and bool(n.kinds & first.kinds)
    )
    if second.mass:
        raise Retry
    draw.combine("adjective", adjective, second)
    return adjective, draw.definite(first, adjective=0), draw.definite(second, adjective=0)


@construction("comparison: größer als, so groß wie")
def comparative(draw: Draw) -> Sentence:
    adjective, first, second = comparable_pair(draw)
    past, key, link = draw.chance(0.3), draw.key(), draw.key()
    if draw.chance(0.35):
        en = [Word("as", (link,)), Word(adjective.en, (key,)), Word("as", (link + 1,))]
        de = [Word("so", (link,)), Word(adjective.de, (key,)), Word("wie", (link + 1,))]
    else:
        en = [*(Word(w, (key,)) for w in adjective.en_comparative.split()), Word("than", (link,))]
        de = [Word(adjective.de_comparative, (key,)), Word("als", (link,))]
    complement = Phrase(en + second.english(), de + second.german("nom"))
    clause = Clause(draw.key(), first, BE, "past" if past else "present", complement=complement)
    return Sentence(clause.english(), clause.german())


@construction("superlatives and comparatives before a noun take the adjective's endings")
def superlative(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    verb = draw.verb(time, "transitive")
    subject = draw.subject(verb)
    noun = draw.noun("object", verb, lambda n: not n.mass and not n.proper and "kin" not in n.kinds)
    draw.combine("object", verb, noun)
    clause = Clause(draw.key(), subject, verb, tense_of(time, verb))
    degree = draw.one(("superlative", "comparative", "ordinal"))
    if degree == "ordinal":
        nominal = NounPhrase(draw.key(), noun, words.THE, False, draw.one(words.ORDINALS))
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
    return Sentence(clause.english(), clause.german())


# What may be over soon.
PASSING = ("young", "small", "tired", "ill", "hungry", "sad", "nervous", "warm", "cold", "hot", "fresh", "dirty", "broken",
           "poor", "quiet", "dark")  # fmt: skip


@construction("predicative adjectives take no ending")
def predicate(draw: Draw) -> Sentence:
    noun = draw.one(NOUNS)
    few = draw.chance(0.3)
    if few:
        subject = draw.noun_phrase(noun, plural=True, subject=True, adjective=0)
    else:
        subject = draw.definite(noun, adjective=0)
    clause = draw.predication(subject, draw.chance(0.3))
    key = draw.key()
    kind = draw.one(("plain", "degree", "degree", "still", "nicht"))
    if (
        kind == "degree"
        and not few
        and clause.complement.en[0].text in words.GOOD | words.BAD - {"broken"}
    ):
        degree = phrases.fixed(draw.one(words.DEGREES), key)
        clause.complement = degree + clause.complement
    elif kind == "still" and clause.complement.en[0].text in PASSING and not few:
        clause.frequency = phrases.fixed(words.STILL, key)
    elif kind == "nicht":
        negate(clause)
    return Sentence(clause.english(), clause.german())


@construction("professions stand without an article")
def profession(draw: Draw) -> Sentence:
    first = draw.one(lexicon.nouns("kin name friend neighbor"))
    subject = draw.definite(first, plural=False) if not first.proper else draw.noun_phrase(first)
    female = first.gender == "f"
    job = draw.one([n for n in lexicon.nouns("job") if (n.gender == "f") == female])
    key = draw.key()
    past = draw.chance(0.3)
    complement = Phrase([Word("a"), Word(job.en, (key,))], [Word(job.de, (key,))])
    clause = Clause(draw.key(), subject, BE, "past" if past else "present", complement=complement)
    return Sentence(clause.english(), clause.german())


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
        return Sentence(clause.english(), clause.german())
    return possession(draw, kind)


def part_and_whole(draw: Draw) -> tuple[Noun, Noun]:
    """A part, such as a roof, and what has it."""
    part = draw.one(lexicon.nouns("part"))
    return part, draw.one(wholes(part))


@cache
def wholes(part: Noun) -> tuple[Noun, ...]:
    """All that has such a part."""
    return tuple(n for n in NOUNS if is_part(part, n))


def is_part(part: Noun, whole: Noun) -> bool:
    """Whether such a thing has such a part."""
    if part.en in ("door", "window", "roof"):
        rooms = part.en != "roof" and "room" in whole.kinds
        return rooms or (
            "building" in whole.kinds and "landmark" in whole.kinds and whole.en != "tower"
        )
    if part.en == "gate":
        return whole.en in ("castle", "factory", "park", "garden")
    return whole.en in ("house", "castle", "hotel")


# Few enough that training shows all their genitives.
OWNERS = "kin man woman boy girl child teacher doctor neighbor friend boss king queen farmer student singer"


def possession(draw: Draw, kind: str) -> Sentence:
    """Somebody's thing as the object of a verb or the subject of a predication."""
    names = kind == "name"
    owner = draw.one(lexicon.nouns("name" if names else OWNERS))
    thing = draw.one(lexicon.nouns("own clothes vehicle luggage loan -public"))
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
    return Sentence(clause.english(), clause.german())


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


ROUTINE = frozenset("arrive,come back,wake up,get up,fall asleep".split(","))
# How old they may be.
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
        return Sentence(clause.english(), clause.german())
    key = draw.key()
    if kind == "age":
        old = next(a for a in words.ADJECTIVES if a.en == "old")
        kinds, bounds = draw.one(AGES)
        noun = draw.one(lexicon.nouns(kinds))
        draw.combine("adjective", old, noun)
        ages = (
            [n for n in words.NUMBERS if bounds[0] <= n <= bounds[-1]]
            if len(bounds) == 2
            else bounds
        )
        number = draw.one(ages)
        subject = draw.definite(noun, adjective=0)
        tail = (("years", "Jahre"), ("old", "alt"))
    else:
        noun = draw.one(lexicon.nouns("clothes furniture device luggage"))
        number = draw.one(list(words.NUMBERS))
        subject = draw.definite(noun, adjective=1)
        tail = (("euros", "Euro"),)
    verb = BE if kind == "age" else COST
    amount = draw.fixed(words.NUMBERS[number])
    complement = Phrase(
        amount.en + [Word(en, (key + i,)) for i, (en, _) in enumerate(tail)],
        amount.de + [Word(de, (key + i,)) for i, (_, de) in enumerate(tail)],
    )
    clause = Clause(draw.key(), subject, verb, "present", complement=complement)
    return Sentence(clause.english(), clause.german())


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
        return Sentence(clause.english(), clause.german())
    conjunction = draw.fixed(draw.one((AND, AND, OR)))
    if conjunction.en[0].text == "or":
        time = "future"
    verb = draw.verb(time, "transitive dative")
    clause = Clause(draw.key(), draw.subject(verb), verb, tense_of(time, verb))
    pair = [draw.object(verb, clause.subject, pronouns=0) for _ in range(2)]
    if same_noun(*pair) or not alike(*pair):
        raise Retry
    both = coordination(pair[0], conjunction, pair[1])
    if verb.frame == "dative":
        clause.dative = both
    else:
        clause.accusative = both
    return Sentence(clause.english(), clause.german())


def alike(first: Nominal, second: Nominal) -> bool:
    """Whether two nouns are of a kind, and so go well together."""
    if not isinstance(first, NounPhrase) or not isinstance(second, NounPhrase):
        return False
    return bool(first.noun.kinds & second.noun.kinds)


@construction("nicht ... sondern: not a car but a bicycle = kein Auto, sondern ein Fahrrad")
def sondern(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    verb = draw.verb(time, "transitive")
    subject = draw.subject(verb)
    nouns = [
        draw.noun("object", verb, lambda n: not n.mass and not n.proper and "kin" not in n.kinds)
        for _ in range(2)
    ]
    if nouns[0] is nouns[1] or not nouns[0].kinds & nouns[1].kinds:
        raise Retry
    for noun in nouns:
        draw.combine("object", verb, noun)
    if (
        quantified(subject)
        or same_noun(subject, NounPhrase(0, nouns[0]))
        or same_noun(subject, NounPhrase(0, nouns[1]))
    ):
        raise Retry
    denied = draw.noun_phrase(nouns[0], NOT_A, plural=False)
    instead = draw.noun_phrase(nouns[1], words.A, plural=False)
    clause = Clause(
        draw.key(), subject, verb, tense_of(time, verb), accusative=denied, negation="kein"
    )
    key = draw.key()
    en = [*clause.english(), Word("but", (key,)), *instead.english()]
    de = [*clause.german(), *GERMAN_COMMA.de, Word("sondern", (key,)), *instead.german("acc")]
    return Sentence(en, de)


@construction("there is, there are = es gibt with the accusative")
def there_is(draw: Draw) -> Sentence:
    preposition = draw.one(INSIDE)
    where = draw.noun("place", preposition)
    draw.combine("place", preposition, where)
    kinds = {
        "town": "building -airport -university",
        "room": "furniture",
        "building": "furniture",
        "outside": "animal",
    }
    wanted = {kind for place, kind in kinds.items() if place in where.kinds}
    if where.en in ("house", "castle", "hotel"):
        wanted = {"room"}
    noun = draw.one(lexicon.nouns(" ".join(sorted(wanted)) + f" -{where.en}"))
    key, past, plural = draw.key(), draw.chance(0.4), draw.chance(0.5)
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


@construction("polite imperatives: the verb first, then Sie")
def imperative(draw: Draw) -> Sentence:
    verb = draw.verb("modal")
    if verb.en.whole in NO_REQUEST or "person" not in verb.subject.split():
        raise Retry
    # Nothing in the English sentence says Sie.
    subject = Given(draw.key(), [], {"nom": [Word("Sie")]}, "3p", pronominal=True)
    clause = draw.complete(verb, subject, "modal", pronouns=0.3)
    please = Phrase([Word("please", (1,))], [Word("bitte", (1,))])
    do = []
    definite = all(n is None or n.definite for n in (clause.accusative, clause.dative))
    if definite and draw.chance(0.3):
        negate(clause)
        do = [Word("do", (clause.key,)), Word("not", (clause.key + 2,))]
    return Sentence(
        please.en + do + clause.english_infinitive(), please.de + clause.german("first")
    )


@construction("its agrees with its owner's gender: das Haus und sein Dach, die Kirche und ihr Dach")
def its_part(draw: Draw) -> Sentence:
    part, whole = part_and_whole(draw)
    adjective = draw.adjective(part)
    if adjective is None:
        raise Retry
    draw.combine("adjective", adjective, whole)
    if adjective not in lexicon.adjectives_for(whole, draw.split):
        raise Retry
    its = words.ITS_F if whole.gender == "f" else words.ITS_M
    second = NounPhrase(draw.key(), part, its, part.en in ("room", "bedroom") or draw.chance(0.3))
    subject = coordination(NounPhrase(draw.key(), whole), draw.fixed(AND), second)
    clause = draw.copula(subject, adjective, draw.chance(0.4))
    return Sentence(clause.english(), clause.german())
