"""Constructions of more than one clause: subordination, infinitives, coordination."""

from grammar import combinations, words
from grammar.choices import SIMPLE_FRAMES, Retry
from grammar.clauses import Clause
from grammar.constructions import (
    Sentence,
    conjunction,
    construction,
    listed,
    negate,
    reference,
    separable_clause,
    subordinate_first,
    subordinate_last,
    two_clauses,
)
from grammar.drawing import GERMAN_COMMA, Draw, same_noun
from grammar.entries import Verb
from grammar.lexicon import ADJECTIVES, CONJUNCTIONS, NOUNS
from grammar.phrases import (
    Given,
    Nominal,
    NounPhrase,
    Phrase,
    Pronoun,
    Word,
)
from grammar.times import ASPECTS_AT, tense_of

MOODS = tuple(
    a for a in ADJECTIVES if a.en in "tired ill hungry sad happy nervous lazy curious poor".split()
)


def mood(draw: Draw, main: Clause, past: bool) -> Clause:
    """A clause about how the main clause's subject feels: weil er müde ist."""
    pronoun = reference(draw, main.subject)
    adjective = draw.one(MOODS)
    if pronoun is None:
        raise Retry
    if isinstance(main.subject, NounPhrase):
        if main.subject.adjective is adjective or not combinations.matches(
            main.subject.noun, adjective.kinds
        ):
            raise Retry
        draw.combine("adjective", adjective, main.subject.noun)
    return draw.copula(pronoun, adjective, past)


@construction("verb-final clauses of reason and concession: weil, obwohl")
def reason(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    joint = conjunction(draw, draw.one(("because", "although")))
    if draw.chance(0.65):
        main = draw.clause(time)
        return subordinate_last(main, joint, mood(draw, main, time == "past"))
    main, clause = two_clauses(draw, time, time)
    return subordinate_last(main, joint, clause)


@construction("a subordinate clause in front ends in its verb; the main verb follows at once")
def reason_first(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    joint = conjunction(draw, draw.one(("because", "although")))
    main, clause = two_clauses(draw, time, time)
    return subordinate_first(draw, joint, clause, main)


@construction("separable verbs stay whole at the end of a subordinate clause")
def separable_subordinate(draw: Draw) -> Sentence:
    time = draw.one(("past", "now"))
    clause = separable_clause(draw, time)
    main = draw.clause(time, "intransitive reflexive transitive")
    if main.verb is clause.verb or same_noun(main.subject, clause.subject):
        raise Retry
    joint = conjunction(draw, draw.one(("because", "although")))
    return subordinate_last(main, joint, clause)


@construction("when is als for the past and wenn otherwise; if is wenn, as soon as sobald")
def when(draw: Draw) -> Sentence:
    kind = draw.one(("when past", "when", "if", "as soon as"))
    if kind == "when past":
        main, clause = two_clauses(draw, "past", "past")
    else:
        main, clause = two_clauses(draw, "habit" if kind == "when" else "future", "condition")
    return subordinate_first(draw, conjunction(draw, kind), clause, main)


@construction("before, after and while: bevor, nachdem with the pluperfect, während")
def sequence(draw: Draw) -> Sentence:
    kind = draw.one(("before", "after", "while"))
    joint = conjunction(draw, kind)
    clause = draw.clause("pluperfect" if kind == "after" else "past", pronouns=0.1)
    if kind == "while":
        if clause.verb.aspect != "activity":
            raise Retry
        clause.tense = "past progressive"
    pronoun = reference(draw, clause.subject)
    if pronoun is None or pronoun.thing or isinstance(clause.subject, Pronoun) or draw.chance(0.4):
        main = draw.clause("past", pronouns=0)
        if same_noun(main.subject, clause.subject):
            raise Retry
    else:
        assert isinstance(clause.subject, NounPhrase)
        verb = draw.one(
            combinations.verbs_for(clause.subject.noun, "subject", SIMPLE_FRAMES, draw.split)
        )
        if verb.aspect not in ASPECTS_AT["past"]:
            raise Retry
        draw.combine("subject", verb, clause.subject.noun)
        main = draw.complete(verb, pronoun, "past", pronouns=0)
    if main.verb is clause.verb:
        raise Retry
    return subordinate_first(draw, joint, clause, main)


@construction("dass: Die Frau weiß, dass der Mann das Auto gekauft hat.")
def that(draw: Draw) -> Sentence:
    past = draw.chance(0.4)
    verb = draw.one(combinations.verbs_of("clausal"))
    main = Clause(draw.key(), draw.subject(verb), verb, "past" if past else "present")
    clause = draw.clause("pluperfect" if past else draw.one(("now", "perfect", "future")))
    if same_noun(main.subject, clause.subject):
        raise Retry
    return subordinate_last(main, conjunction(draw, "that"), clause)


@construction("indirect questions are verb-final: ob, warum, wo, wann")
def indirect_question(draw: Draw) -> Sentence:
    verb = draw.one(combinations.verbs_of("interrogative"))
    past = draw.chance(0.4)
    main = Clause(draw.key(), draw.subject(verb), verb, "past" if past else tense_of("now", verb))
    if verb.aspect == "state":
        negate(main)
    asked = draw.one((CONJUNCTIONS.only("whether"), words.WHY, words.WHEN))
    clause = draw.clause(
        "future" if asked is words.WHEN and not past else "pluperfect" if past else "perfect"
    )
    if same_noun(main.subject, clause.subject) or (asked is words.WHEN and past):
        raise Retry
    return subordinate_last(main, draw.fixed(asked), clause)


def second_clause(draw: Draw, first: Clause, frames: str = SIMPLE_FRAMES) -> Clause:
    """What the first clause's subject tries, promises or wants; its own subject is not written."""
    subject = first.subject
    if isinstance(subject, NounPhrase):
        verb = draw.one(combinations.verbs_for(subject.noun, "subject", frames, draw.split))
        draw.combine("subject", verb, subject.noun)
    else:
        verb = draw.verb("modal", frames)
        if "person" not in verb.subject.split():
            raise Retry
    if verb.aspect != "activity" or verb is first.verb:
        raise Retry
    return draw.complete(verb, subject, "modal", pronouns=0.1)


@construction("zu before the infinitive at the end, inside a separable verb")
def zu_infinitive(draw: Draw) -> Sentence:
    time = draw.one(("past", "now", "perfect"))
    verb = draw.one(combinations.verbs_of("control"))
    if verb.aspect not in ASPECTS_AT[time]:
        raise Retry
    main = draw.begin(verb, draw.subject(verb), time)
    clause = second_clause(draw, main)
    # Before a bare infinitive the comma would be optional.
    if not clause.middle_field(subject=False):
        raise Retry
    to = draw.key()
    return Sentence(
        main.english() + clause.english_infinitive(Word("to", (to,))),
        main.german() + GERMAN_COMMA.de + clause.german_infinitive(to),
    )


@construction("um ... zu for a purpose; ohne ... zu and statt ... zu for English -ing")
def um_zu(draw: Draw) -> Sentence:
    kind = draw.one(("in order", "in order", "without", "instead of"))
    main = draw.clause(
        draw.one(("past", "past", "now")), "motion" if kind == "in order" else SIMPLE_FRAMES
    )
    clause = second_clause(draw, main)
    key = draw.key()
    de = {"in order": "um", "without": "ohne", "instead of": "statt"}[kind]
    joint = Phrase([Word(w, (key,)) for w in kind.split()], [Word(de, (key,))])
    if kind == "in order":
        tail = clause.english_infinitive(Word("to", (key + 1,)))
        zu = key + 1
    else:
        tail = clause.english_predicate([Word(clause.verb.en.gerund, (clause.key,))])
        zu = clause.key
    return Sentence(
        main.english() + joint.en + tail,
        main.german() + GERMAN_COMMA.de + joint.de + clause.german_infinitive(zu),
    )


@construction("und and aber join clauses, deshalb puts its verb second")
def joined_clauses(draw: Draw) -> Sentence:
    kind = draw.one(("and", "but", "so"))
    if kind == "and":
        time = draw.one(("past", "now"))
        first, second = two_clauses(draw, time, time)
        joint = conjunction(draw, "and")
        return Sentence(
            first.english() + joint.en + second.english(),
            first.german() + joint.de + second.german(),
        )
    comma = draw.comma()
    second = draw.clause("past")
    first = mood(draw, second, past=True)
    # The noun comes first, then its pronoun.
    first.subject, second.subject = second.subject, first.subject
    if kind == "but":
        joint = conjunction(draw, "but")
        tail = second.german()
    else:
        joint = conjunction(draw, "so")
        tail = second.german(front=[])
    return Sentence(
        first.english() + comma.en + joint.en + second.english(),
        first.german() + comma.de + joint.de + tail,
    )


@construction("one subject, two verbs")
def joined_verbs(draw: Draw) -> Sentence:
    first = draw.clause("past")
    verb = shared_verb(draw, first.subject)
    if verb is first.verb:
        raise Retry
    silent = Given(draw.key(), [], {"nom": []}, first.subject.person)
    second = draw.complete(verb, silent, "past", pronouns=0)
    if same_noun(first.accusative, second.accusative):
        raise Retry
    joint = conjunction(draw, "and")
    return Sentence(
        first.english() + joint.en + second.english(), first.german() + joint.de + second.german()
    )


def shared_verb(draw: Draw, subject: Nominal) -> Verb:
    """Another verb for the subject, in the past."""
    if isinstance(subject, NounPhrase):
        verb = draw.one(combinations.verbs_for(subject.noun, "subject", SIMPLE_FRAMES, draw.split))
        draw.combine("subject", verb, subject.noun)
    else:
        verb = draw.verb("past")
        if "person" not in verb.subject.split():
            raise Retry
    if verb.aspect not in ASPECTS_AT["past"]:
        raise Retry
    return verb


THINGS = tuple(n for n in NOUNS if "person" not in n.kinds)


# What somebody does to a thing first, and what next.
FIRST_STEPS = listed(
    "buy, find, see, look at, steal, order, pick up, unpack, wash, write, paint, draw, build, cook,"
    "bake, peel, bring along"
)
NEXT_STEPS = listed(
    "sell, hide, carry, repair, open, close, break, fill, use, photograph, describe, eat, drink,"
    "wear, try on, read, translate, sign, throw away, bring back, hang up, lock, lose, forget,"
    "copy, feed, praise, taste, turn on, turn off"
)


@construction("it is er, sie or es, ihn, sie or es, by the gender of the noun")
def pronoun_agreement(draw: Draw) -> Sentence:
    if draw.chance(0.4):
        noun = draw.one(THINGS)
        subject = draw.definite(noun, adjective=0)
        past = draw.chance(0.4)
        one, two = draw.adjective(noun), draw.adjective(noun)
        pronoun = reference(draw, subject)
        if pronoun is None or one is None or two is None or not words.contrast(one, two):
            raise Retry
        first, second = draw.copula(subject, one, past), draw.copula(pronoun, two, past)
        comma = draw.comma()
        joint = conjunction(draw, "but")
        return Sentence(
            first.english() + comma.en + joint.en + second.english(),
            first.german() + comma.de + joint.de + second.german(),
        )
    first = draw.clause("past", "transitive")
    thing = first.accusative
    if (
        not isinstance(thing, NounPhrase)
        or "person" in thing.noun.kinds
        or same_noun(thing, first.subject)
    ):
        raise Retry
    pronoun = reference(draw, thing)
    verb = draw.one(combinations.verbs_for(thing.noun, "object", "transitive", draw.split))
    if pronoun is None or first.verb.en.whole not in FIRST_STEPS or verb.en.whole not in NEXT_STEPS:
        raise Retry
    if isinstance(first.subject, NounPhrase):
        if not combinations.matches(first.subject.noun, verb.subject):
            raise Retry
        draw.combine("subject", verb, first.subject.noun)
    draw.combine("object", verb, thing.noun)
    silent = Given(draw.key(), [], {"nom": []}, first.subject.person)
    second = Clause(draw.key(), silent, verb, "past", accusative=pronoun)
    joint = conjunction(draw, "and")
    return Sentence(
        first.english() + joint.en + second.english(), first.german() + joint.de + second.german()
    )
