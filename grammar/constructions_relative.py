"""Relative clauses: the relative pronoun in every case."""

from grammar import combinations, german, words
from grammar.choices import SIMPLE_FRAMES, Retry
from grammar.clauses import Clause
from grammar.constructions import Sentence, construction, plain
from grammar.drawing import GERMAN_COMMA, Draw, same_noun
from grammar.entries import Noun, Verb
from grammar.phrases import Given, NounPhrase, Phrase, Word
from grammar.times import ASPECTS_AT


def relativizer(draw: Draw, head: NounPhrase, case: str) -> Phrase:
    """who, whom or which, and the German relative pronoun in the case."""
    person = "person" in head.noun.kinds
    en = ("who" if case == "nom" else "whom") if person else "which"
    key = draw.key()
    return Phrase([Word(en, (key,))], [Word(german.RELATIVE[case, head.column], (key,))])


def relate(head: NounPhrase, start: Phrase, clause: Clause) -> None:
    """Adds a relative clause to its head; `pairs` drops a comma at the sentence's end."""
    comma = GERMAN_COMMA.de
    head.tail = Phrase(
        start.en + clause.english(), comma + start.de + clause.german("final") + comma
    )


def head_phrase(draw: Draw, noun: Noun) -> NounPhrase:
    """The head of a relative clause: definite, or indefinite in the singular."""
    if noun.proper or "kin" in noun.kinds or noun.mass:
        raise Retry
    plural = draw.chance(0.25)
    determiner = words.THE if plural or draw.chance(0.8) else words.A
    return draw.noun_phrase(noun, determiner, plural=plural, adjective=0.15)


def embed(draw: Draw, head: NounPhrase, time: str, used: Verb | None = None) -> Sentence:
    """A main clause in which the head is the subject (of an adjective or a verb) or the object.

    `used` is the relative clause's verb, which the main clause must not have too.
    """
    kind = draw.one(("predicate", "subject", "object"))
    noun = head.noun
    if kind == "predicate":
        if head.determiner is words.A or head.adjective:
            raise Retry
        clause = draw.predication(head, time == "past")
        return plain(clause)
    if kind == "subject":
        verb = draw.one(combinations.verbs_for(noun, "subject", SIMPLE_FRAMES, draw.split))
        if verb is used or verb.aspect not in ASPECTS_AT[time]:
            raise Retry
        draw.combine("subject", verb, noun)
        clause = draw.complete(verb, head, time)
        return plain(clause)
    verb = draw.one(combinations.verbs_for(noun, "object", "transitive dative", draw.split))
    if verb is used or verb.aspect not in ASPECTS_AT[time] or verb.de.prefix:
        raise Retry
    draw.combine("object", verb, noun)
    clause = draw.begin(verb, draw.subject(verb, pronouns=0.5), time)
    if same_noun(clause.subject, head):
        raise Retry
    if verb.frame == "dative":
        clause.dative = head
    else:
        clause.accusative = head
    return plain(clause)


@construction("relative pronoun in the nominative: der Mann, der singt")
def relative_nominative(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    verb = draw.verb(time)
    noun = draw.pick("subject", verb)
    head = head_phrase(draw, noun)
    start = relativizer(draw, head, "nom")
    silent = Given(draw.key(), [], {"nom": []}, head.person)
    clause = draw.complete(verb, silent, time)
    if same_noun(clause.accusative, head) or same_noun(clause.dative, head):
        raise Retry
    relate(head, start, clause)
    return embed(draw, head, time, clause.verb)


@construction("relative pronoun in the accusative: der Mann, den die Frau kennt")
def relative_accusative(draw: Draw) -> Sentence:
    return relative_object(draw, "transitive", "acc")


@construction("relative pronoun in the dative: der Mann, dem die Frau hilft")
def relative_dative(draw: Draw) -> Sentence:
    return relative_object(draw, "dative", "dat")


def relative_object(draw: Draw, frame: str, case: str) -> Sentence:
    """The head is the relative verb's object."""
    time = draw.one(("past", "now"))
    verb = draw.verb(time, frame)
    noun = draw.pick("object", verb)
    head = head_phrase(draw, noun)
    clause = draw.begin(verb, draw.subject(verb, pronouns=0.4), time)
    if same_noun(clause.subject, head):
        raise Retry
    relate(head, relativizer(draw, head, case), clause)
    return embed(draw, head, time, clause.verb)


@construction("relative pronoun in the genitive: der Mann, dessen Auto kaputt ist")
def relative_genitive(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    noun = draw.one(combinations.nouns("person -kin -name"))
    head = head_phrase(draw, noun)
    thing = draw.one(combinations.nouns("own kin vehicle luggage -public"))
    if thing is noun:
        raise Retry
    key = draw.key()
    whose = Phrase([Word("whose", (key,))], [Word(german.RELATIVE["gen", head.column], (key,))])
    plural = "single" not in thing.kinds and draw.chance(0.2)
    owned = NounPhrase(draw.key(), thing, words.BARE, plural)
    if draw.chance(0.5):
        clause = draw.predication(owned, time == "past")
        relate(head, whose, clause)
    else:
        verb = draw.one(combinations.verbs_for(thing, "object", "transitive dative", draw.split))
        if verb.aspect not in ASPECTS_AT[time]:
            raise Retry
        draw.combine("object", verb, thing)
        clause = draw.begin(verb, draw.subject(verb, pronouns=0.4), time)
        if same_noun(clause.subject, owned) or same_noun(clause.subject, head):
            raise Retry
        case = "dat" if verb.frame == "dative" else "acc"
        relate(head, whose + Phrase(owned.english(), owned.german(case)), clause)
    return embed(draw, head, time, clause.verb)


@construction("relative pronoun after a preposition: der Stuhl, auf dem die Katze sitzt")
def relative_prepositional(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    verb = draw.verb(time, "prepositional reflexive_prepositional location")
    subject = draw.subject(verb, pronouns=0.4)
    if verb.frame == "location":
        preposition = draw.one(draw.whereabouts(subject))
        noun = draw.pick("place", preposition)
        en, de, case = preposition.en, preposition.de, preposition.case
    else:
        noun = draw.pick("object", verb)
        en, de, case = verb.preposition
    head = head_phrase(draw, noun)
    clause = draw.begin(verb, subject, time)
    key = clause.key if en == "-" else draw.key()
    start = Phrase([Word(w, (key,)) for w in en.split() if en != "-"], [Word(de, (key,))])
    if same_noun(subject, head):
        raise Retry
    relate(head, start + relativizer(draw, head, case), clause)
    return embed(draw, head, time, clause.verb)
