"""Constructions of the verb: tenses, modals, prefixes, objects, passive, imperative."""

from grammar import phrases, words
from grammar.choices import SIMPLE_FRAMES, Retry
from grammar.clauses import Clause
from grammar.constructions import (
    AT,
    AT_PLACES,
    INSIDE,
    SIMPLE_TIMES,
    Sentence,
    add_frequency,
    construction,
    fronted,
    listed,
    negate,
    plain,
    separable_clause,
    statement,
)
from grammar.drawing import Draw
from grammar.phrases import (
    Given,
    NounPhrase,
    Phrase,
    Word,
)
from grammar.times import tense_of


@construction("articles, adjectives and nouns agree in gender, number and case")
def agreement(draw: Draw) -> Sentence:
    return statement(draw, draw.one(SIMPLE_TIMES), SIMPLE_FRAMES, pronouns=0.1)


@construction("verb second: a fronted adverbial of time moves the subject behind the verb")
def fronted_time(draw: Draw) -> Sentence:
    time = draw.one(("past", "past", "now", "habit", "future"))
    clause = draw.clause(time)
    if clause.verb.aspect == "state":
        raise Retry
    return fronted(clause, draw.when(time))


@construction("an adverbial of time comes before the object, not at the end")
def time_inside(draw: Draw) -> Sentence:
    time = draw.one(("past", "future", "habit"))
    clause = draw.clause(time)
    clause.time = draw.when(time)
    return plain(clause)


@construction("verb second after a fronted place; in, an and auf with the dative")
def fronted_place(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    verb = draw.verb(time, among=AT_PLACES)
    clause = draw.complete(verb, draw.subject(verb), time)
    if isinstance(clause.subject, NounPhrase) and "person" not in clause.subject.noun.kinds:
        raise Retry  # no wolves at the university
    place = draw.place(draw.one((INSIDE, INSIDE, AT)))
    if draw.chance(0.5):
        return fronted(clause, place)
    clause.place = place
    return plain(clause)


@construction("verb second after a comment on the sentence; frequency before the object")
def comment(draw: Draw) -> Sentence:
    if draw.chance(0.5):
        clause = draw.clause("habit")
        add_frequency(draw, clause)
        return plain(clause)
    return fronted(draw.clause("past"), draw.fixed(draw.one(words.COMMENTS)))


@construction("perfect: haben or sein, and the participle at the end")
def perfect(draw: Draw) -> Sentence:
    clause = draw.clause("perfect")
    if draw.chance(0.25):
        clause.frequency = draw.fixed(words.ALREADY)
    return plain(clause)


@construction("future: werden, and the infinitive at the end")
def future(draw: Draw) -> Sentence:
    clause = draw.clause("future")
    if draw.chance(0.6):
        clause.time = draw.when("future")
    return plain(clause)


@construction("modal verbs, and the infinitive at the end")
def modal(draw: Draw) -> Sentence:
    clause = draw.clause("modal")
    clause.modal = draw.one(words.MODALS)
    if clause.modal is not words.SHOULD and draw.chance(0.35):
        clause.tense = "past"
        return fronted(clause, draw.when("past"))
    if draw.chance(0.25):
        negate(clause)
    return plain(clause)


@construction("separable verbs: the prefix ends the main clause")
def separable(draw: Draw) -> Sentence:
    time = draw.one(SIMPLE_TIMES)
    clause = separable_clause(draw, time)
    if time == "habit":
        add_frequency(draw, clause)
    return plain(clause)


@construction("some verbs take the dative for an English object: helfen, danken, folgen")
def dative_verb(draw: Draw) -> Sentence:
    return statement(draw, draw.one((*SIMPLE_TIMES, "perfect")), "dative")


@construction("the receiver is in the dative, before the object")
def receiver(draw: Draw) -> Sentence:
    return statement(draw, draw.one((*SIMPLE_TIMES, "perfect", "future")), "ditransitive transfer")


@construction("where something is: two-way prepositions with the dative")
def location(draw: Draw) -> Sentence:
    clause = draw.clause(draw.one(("past", "now")), "location", pronouns=0.15)
    if draw.chance(0.15):
        negate(clause)
    return plain(clause)


@construction("where something goes: the same prepositions with the accusative")
def placement(draw: Draw) -> Sentence:
    clause = draw.clause(draw.one(("past", "now", "perfect")), "placement")
    return plain(clause)


@construction("motion: into with the accusative, to with zu and the dative; perfect with sein")
def motion(draw: Draw) -> Sentence:
    clause = draw.clause(draw.one(("past", "now", "perfect", "future")), "motion")
    if draw.chance(0.3) and clause.tense == "past":
        clause.time = draw.when("past")
    return plain(clause)


@construction("verbs with a prepositional object: warten auf, denken an")
def prepositional_object(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect", "habit"))
    if time == "habit":
        return statement(draw, time, "prepositional reflexive_prepositional")
    clause = draw.clause(time, "prepositional reflexive_prepositional")
    if draw.chance(0.2):
        negate(clause)
    return plain(clause)


@construction("reflexive verbs where English has no pronoun")
def reflexive(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect", "habit"))
    if time == "habit":
        return statement(draw, time, "reflexive reflexive_prepositional", pronouns=0.4)
    clause = draw.clause(time, "reflexive reflexive_prepositional", pronouns=0.4)
    if time == "past" and clause.verb.aspect != "state" and draw.chance(0.5):
        return fronted(clause, draw.when("past"))
    return plain(clause)


NO_PASSIVE = listed("have, need, meet, try on, know, look at, take along, bring along, learn")


@construction("passive: werden and the participle; the agent with von")
def passive(draw: Draw) -> Sentence:
    time = draw.one(("past", "past", "perfect", "now", "future", "modal"))
    verb = draw.verb(time, "transitive")
    if verb.aspect == "state" or verb.en.whole in NO_PASSIVE or verb.en.particle == "for":
        raise Retry
    noun = draw.pick("object", verb)
    subject = draw.noun_phrase(noun, subject=True)
    clause = Clause(draw.key(), subject, verb, tense_of(time, verb), passive=True)
    if time == "modal":
        clause.modal = draw.one((words.MUST, words.CAN, words.SHOULD, words.MAY))
    elif draw.chance(0.6) or time == "now":
        agent = draw.pick("subject", verb, lambda n: n is not noun)
        clause.complement = phrases.prepositional(
            draw.key(), "by", "von", "dat", draw.noun_phrase(agent, subject=True)
        )
    if time == "past" and draw.chance(0.4):
        return fronted(clause, draw.when("past"))
    return plain(clause)


NO_REQUEST = ("steal", "cough", "sneeze", "cry", "dream", "escape", "love", "fall", "smoke")


@construction("polite imperatives: the verb first, then Sie")
def imperative(draw: Draw) -> Sentence:
    verb = draw.verb("modal")
    if verb.en.whole in NO_REQUEST or "person" not in verb.subject.split():
        raise Retry
    # No English word is aligned with Sie.
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
